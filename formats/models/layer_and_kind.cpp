#include "formats/models/layer_and_kind.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "formats/models/weight_name.hpp"

namespace nibble {
namespace {

bool is_layer_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

LayerAndKind layer_and_kind(std::string_view name) {
  name = without_weight_suffix(name);
  LayerAndKind found;
  while (!name.empty()) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string_view piece = name.substr(0, dot);
    name.remove_prefix(std::min(dot + 1, name.size()));
    if (is_layer_number(piece)) {
      if (!found.layer) {
        found.layer = std::stoull(std::string(piece));
        found.kind.clear();  // the text before a layer's number is the same for all kinds
      }
      continue;
    }
    if (!found.kind.empty()) found.kind += '.';
    found.kind += piece;
  }
  return found;
}

}  // namespace nibble
