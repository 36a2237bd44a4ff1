#include "formats/adapters/adapter_names.hpp"

#include <array>
#include <utility>

namespace nibble {
namespace {

constexpr std::string_view peft_prefix = "base_model.model.";
constexpr std::string_view base_layer = ".base_layer";

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
  for (const auto& [suffix, part] : peft_suffixes)
    if (name.ends_with(suffix)) {
      name.remove_suffix(suffix.size());
      result.part = part;
      break;
    }
  result.module = name;
  result.depth = remove_base_layers(result.module);
  const std::string dotted = "." + result.module;
  if (result.module.empty() || dotted.find(".lora_") != std::string::npos ||
      dotted.find(".token_adapter") != std::string::npos)
    return std::nullopt;
  return result;
}

}  // namespace nibble
