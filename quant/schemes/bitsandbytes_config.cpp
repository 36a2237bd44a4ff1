// The quantization_config of config.json, key by key as transformers writes it (docs/model-directories.md), and
// the list of skipped modules if the default would not give the set that was quantized.

#include "quant/schemes/bitsandbytes_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "formats/models/architectures.hpp"
#include "formats/models/config.hpp"
#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "nibble/plan.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/schemes/bitsandbytes_quant_types.hpp"
#include "quant/schemes/bitsandbytes_skips.hpp"

namespace nibble {
namespace {

// load_in_4bit or load_in_8bit.
unsigned bits_of(const Codec& codec) { return dynamic_cast<const FourBitCodec*>(&codec) != nullptr ? 4 : 8; }

// 4-bit layers compute in the 16-bit type of the source; an fp32 source has none.
std::string_view compute_dtype(const Plan& plan) {
  return traits(plan.recipe.compute_dtype.value_or(plan.dtype)).torch_name;
}

// Whether a module is part of a numbered layer, as almost all are: `model.layers.0.mlp.up_proj`.
bool is_in_numbered_layer(std::string_view module) {
  for (std::size_t begin = 0; begin < module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    const std::string_view component = module.substr(begin, end - begin);
    if (!component.empty() && component.find_first_not_of("0123456789") == std::string_view::npos) return true;
    begin = end + 1;
  }
  return false;
}

// Whether transformers, left to itself, would replace exactly the modules that are stored quantized. Versions 4 and 5
// agree on that for numbered layers; of the other layers (poolers, classifiers, heads), version 4 leaves plain the one
// with the last parameter if that is a bias, and those under a tied bias. Both versions understand a full list.
bool is_default_set(const Plan& plan) {
  if (plan.model.architecture.empty() || has_other_parts(plan.model)) return false;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor tensor = plan.tensors[i];
    bool differs = false;
    switch (tensor.role) {
      case Role::linear:
      case Role::conv1d:
        differs = !tensor.quantized || !is_in_numbered_layer(tensor.module);
        break;
      case Role::output_embeddings:
      case Role::kept:
        differs = tensor.quantized;
        break;
      case Role::unknown:
      case Role::other:
        // For example what loading splits into several layers, or FP8 without scales.
        differs = !plan.tensors.keeps(i).empty();
        break;
      case Role::embedding:
      case Role::expert:
        break;
    }
    if (differs) return false;
  }
  return true;
}

nlohmann::json skip_modules(const Plan& plan) {
  if (is_default_set(plan)) return nullptr;
  std::vector<std::string> quantized;
  std::vector<std::string> plain;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor tensor = plan.tensors[i];
    if (tensor.quantized) {
      quantized.emplace_back(tensor.module);
    } else {
      for (std::string& module : plan.tensors.keeps(i)) plain.push_back(std::move(module));
    }
  }
  for (std::vector<std::string>* modules : {&quantized, &plain}) {
    std::sort(modules->begin(), modules->end());
    modules->erase(std::unique(modules->begin(), modules->end()), modules->end());
  }
  std::vector<std::string> skips = skip_list(plan.model, plan.tied, quantized, plain);
  std::sort(skips.begin(), skips.end());
  return skips;
}

}  // namespace

bool is_bitsandbytes(const ModelConfig& config) {
  if (!config.quant_method.empty()) return config.quant_method.starts_with("bitsandbytes");
  if (config.quantization_config.empty()) return false;
  const std::string_view text = config.quantization_config;
  bool in_4bit = false, in_8bit = false;
  config::for_each_member(text, config.quantization_key, [&](const config::Member& member) {
    const bool flag = text.substr(member.value_begin, member.value_end - member.value_begin) == "true";
    if (member.key == "load_in_4bit") in_4bit = flag;
    if (member.key == "load_in_8bit") in_8bit = flag;
  });
  return in_4bit || in_8bit;
}

std::string bitsandbytes_obstacle(const Scheme& scheme, const Plan& plan) {
  unsigned bits = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!tensor.quantized) continue;
    const std::unique_ptr<const Codec> codec = make_codec(tensor.codec);
    const unsigned own_bits = bits_of(*codec);
    if (!scheme.stores(*codec))
      return fmt::format("tensor '{}' ({}) is not in a format of bitsandbytes", printable(tensor.info.name),
                         tensor.codec.text());
    if (!scheme.replaces(tensor.role))
      return fmt::format("tensor '{}' ({}) is not a linear layer of the model", printable(tensor.info.name),
                         tensor.codec.text());
    if (bits != 0 && bits != own_bits)
      return fmt::format("tensor '{}' has {} bits, but others have {}", printable(tensor.info.name), own_bits, bits);
    bits = own_bits;
  }
  return {};
}

std::string bitsandbytes_config(const Scheme& scheme, const Plan& plan) {
  // With load_in_4bit, transformers would take the model for one of bitsandbytes, whatever its quant_method. The
  // tensors themselves say how each of them is stored.
  if (plan.nibble_only)
    return nlohmann::json{{"compute_dtype", compute_dtype(plan)}, {"quant_method", nibble_quant_method}}.dump();
  const auto is_quantized = [](const PlannedTensor& tensor) { return tensor.quantized; };
  const PlannedTensor first = *std::find_if(plan.tensors.begin(), plan.tensors.end(), is_quantized);
  const std::unique_ptr<const Codec> codec = make_codec(first.codec);
  const auto* const four_bit = dynamic_cast<const FourBitCodec*>(codec.get());
  const bool four = four_bit != nullptr;
  nlohmann::json json = {{"_load_in_4bit", four},
                         {"_load_in_8bit", !four},
                         {"bnb_4bit_compute_dtype", four ? compute_dtype(plan) : "float32"},
                         {"bnb_4bit_quant_storage", "uint8"},
                         {"bnb_4bit_quant_type", four ? quant_type_of(*codec) : "fp4"},
                         {"bnb_4bit_use_double_quant", four && four_bit->double_quant()},
                         {"llm_int8_enable_fp32_cpu_offload", false},
                         {"llm_int8_has_fp16_weight", false},
                         {"llm_int8_skip_modules", skip_modules(plan)},
                         {"llm_int8_threshold", 6.0},
                         {"load_in_4bit", four},
                         {"load_in_8bit", !four},
                         {"quant_method", scheme.quant_method()}};
  return json.dump();  // keys sorted, as transformers writes them
}

}  // namespace nibble
