// FP8 as in DeepSeek-V3's files, which transformers calls fine-grained: blocks of 128 x 128 weights, with scales that
// are called inverse because they undo a division. nibble reads it and writes compressed-tensors instead.

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "quant/schemes/fp8_parts.hpp"

namespace nibble {
namespace {

// transformers calls it by the first name, vLLM by the second.
constexpr std::array<std::string_view, 2> suffixes_of_inputs{".activation_scale", ".input_scale"};

class Fp8Blocks final : public Fp8Parts {
 public:
  Fp8Blocks() : Fp8Parts("_scale_inv", DType::bf16, suffixes_of_inputs) {}  // scales are F32, and the models were BF16
  std::string_view quant_method() const noexcept override { return "fp8"; }
  std::string undecodable_config(std::string_view quantization_config) const override {
    const nlohmann::json config = parse_config(quantization_config);
    if (config.is_null()) return std::string(unreadable_config);
    return undecodable_blocks(config.value("weight_block_size", nlohmann::json()), "weight_block_size");
  }
};

}  // namespace

const Scheme& fp8_blocks_scheme() {
  static const Fp8Blocks scheme;
  return scheme;
}

}  // namespace nibble
