#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

/// What a tensor of an adapter is to the module that it belongs to.
enum class AdapterPart : std::uint8_t {
  a,            ///< lora_A [r, in]
  b,            ///< lora_B [out, r]
  b_bias,       ///< lora_bias [out]
  magnitude,    ///< of DoRA [out]
  embedding_a,  ///< lora_embedding_A [r, tokens]
  embedding_b,  ///< lora_embedding_B [dimensions, r]
  tokens,       ///< new rows of an embedding
  replacement,  ///< a tensor that replaces one of the base
  codes,        ///< a part of a quantized weight of the base, which is saved beside its adapter
  unused,       ///< needed for training alone
};

/// The name of a tensor in an adapter, taken apart.
struct AdapterName {
  AdapterPart part = AdapterPart::replacement;
  std::string module;  ///< in the model; for a replacement the name of the tensor, for codes that of the weight
  /// How many adapted parameters of the same module lie inside: peft nests their wrappers, and each adds ".base_layer"
  /// to the names of those inside.
  std::size_t depth = 0;
};

/// Takes a name apart: "base_model.model.lm_head.lora_A.weight" is part `a` of "lm_head". Nothing if it is no name that
/// peft gives to a tensor of LoRA.
[[nodiscard]] std::optional<AdapterName> parse_adapter_name(std::string_view name);

}  // namespace nibble
