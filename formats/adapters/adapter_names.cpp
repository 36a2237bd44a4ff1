#include "formats/adapters/adapter_names.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "formats/models/weight_name.hpp"

namespace nibble {
namespace {

constexpr std::string_view peft_prefix = "base_model.model.";
constexpr std::string_view base_layer = ".base_layer";
constexpr std::array<std::string_view, 2> int8_suffixes{".SCB", ".weight_format"};
constexpr std::array<std::string_view, 4> four_bit_parts{"absmax", "quant_map", "nested_absmax", "nested_quant_map"};

// Modules that peft puts around a layer, which names of parameters have if peft saves them one by one.
constexpr std::string_view frozen_wrapper = ".original_module.";
constexpr std::array<std::string_view, 3> wrappers{".modules_to_save.default.", ".modules_to_save.",
                                                   ".token_adapter.base_layer."};

constexpr std::array<std::pair<std::string_view, AdapterPart>, 9> peft_suffixes{{
    {".lora_A.weight", AdapterPart::a},
    {".lora_B.weight", AdapterPart::b},
    {".lora_B.bias", AdapterPart::b_bias},
    {".lora_magnitude_vector", AdapterPart::magnitude},
    {".lora_magnitude_vector.weight", AdapterPart::magnitude},
    {".lora_embedding_A", AdapterPart::embedding_a},
    {".lora_embedding_B", AdapterPart::embedding_b},
    {".token_adapter.trainable_tokens_delta", AdapterPart::tokens},
    {".lora_velora_embed", AdapterPart::unused},
}};

// Whether ".weight." and this are the end of the name of a part of a quantized weight. In a weight that torch computes
// when it is needed, the parts are those of layers in a list.
bool is_part_of_codes(std::string_view name) {
  constexpr std::string_view list = "layers.";
  return std::ranges::find(four_bit_parts, name) != four_bit_parts.end() || name.starts_with("quant_state.") ||
         (name.starts_with(list) && name.size() > list.size() && name[list.size()] >= '0' && name[list.size()] <= '9');
}

// The quantized weight that a tensor of this name, without "base_layer", is a part of: "lm_head.weight" of
// "lm_head.SCB", of "lm_head.weight.absmax" and of "lm_head.weight.layers.0.SCB". Empty if it is none.
std::string quantized_weight(const std::string& name) {
  const std::string inside = std::string(weight_suffix) + ".";
  if (const std::size_t at = name.find(inside); at != std::string::npos)
    return is_part_of_codes(std::string_view(name).substr(at + inside.size()))
               ? name.substr(0, at) + std::string(weight_suffix)
               : std::string();
  for (const std::string_view suffix : int8_suffixes)
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size()) + std::string(weight_suffix);
  return {};
}

// Removes the components "base_layer" and returns how many there were.
std::size_t remove_base_layers(std::string& name) {
  std::size_t removed = 0, at = 0;
  while ((at = name.find(base_layer, at)) != std::string::npos) {
    const std::size_t end = at + base_layer.size();
    if (end == name.size() || name[end] == '.') {
      name.erase(at, base_layer.size());
      ++removed;
    } else {
      at = end;
    }
  }
  return removed;
}

}  // namespace

std::optional<AdapterName> parse_adapter_name(std::string_view name) {
  if (name.starts_with(peft_prefix)) name.remove_prefix(peft_prefix.size());
  AdapterName result;
  if (name.find(frozen_wrapper) != std::string_view::npos) return AdapterName{AdapterPart::unused, std::string(name)};
  for (const auto& [suffix, part] : peft_suffixes)
    if (name.ends_with(suffix)) {
      name.remove_suffix(suffix.size());
      result.part = part;
      break;
    }
  result.module = name;
  for (const std::string_view wrapper : wrappers)
    if (const std::size_t at = result.module.find(wrapper); at != std::string::npos)
      result.module.replace(at, wrapper.size(), ".");
  result.depth = remove_base_layers(result.module);
  const std::string dotted = "." + result.module;
  if (result.module.empty() || dotted.find(".lora_") != std::string::npos ||
      dotted.find(".token_adapter") != std::string::npos)
    return std::nullopt;
  if (result.part != AdapterPart::replacement) return result;
  if (std::string weight = quantized_weight(result.module); !weight.empty()) {
    result.part = AdapterPart::codes;
    result.module = std::move(weight);
  }
  return result;
}

}  // namespace nibble
