// The containers. Adding one: its file defines make_<name>(), and its name goes into the list.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/refuse.hpp"
#include "formats/containers/container.hpp"

// clang-format off
#define NIBBLE_CONTAINERS(X) \
  X(safetensors)
// clang-format on

namespace nibble {

#define NIBBLE_DECLARE(name) Container make_##name();
NIBBLE_CONTAINERS(NIBBLE_DECLARE)
#undef NIBBLE_DECLARE

namespace {

#define NIBBLE_MAKE(name) make_##name(),
const auto& table() {
  static const std::array all{NIBBLE_CONTAINERS(NIBBLE_MAKE)};
  return all;
}
#undef NIBBLE_MAKE

bool begins_with(std::string_view head, std::string_view lower_case) {
  return head.size() >= lower_case.size() &&
         std::equal(lower_case.begin(), lower_case.end(), head.begin(), [](char expected, char c) {
           return (c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) == expected;
         });
}

// Refuses other files that people find under a weight file's name, by their first bytes.
void refuse_known(std::string_view label, std::string_view head) {
  if (begins_with(head, "version https://git-lfs"))
    refuse(label, "is a Git LFS pointer, not the weights: run git lfs pull");
  if (begins_with(head, "<!doctype") || begins_with(head, "<html") || begins_with(head, "<?xml"))
    refuse(label, "is a web page, not the weights: the download failed");
  if (head.substr(0, 4) == "PK\x03\x04")
    refuse(label, "is a zip archive (torch.save?): torch files are not supported yet");
  if (head.substr(0, 4) == "GGUF") refuse(label, "is a GGUF file: GGUF files are not supported yet");
  if (head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5)
    refuse(label, "is a pickle (torch.save?): torch files are not supported yet");
}

}  // namespace

std::span<const ContainerTraits> containers() {
  static const auto traits = [] {
    std::vector<ContainerTraits> all;
    for (const Container& container : table()) all.push_back(container.traits);
    return all;
  }();
  return traits;
}

std::string container_names() {
  std::string names;
  for (const ContainerTraits& container : containers())
    names += (names.empty() ? "" : " or ") + std::string(container.name);
  return names;
}

const ContainerTraits& written_container() {
  static const ContainerTraits& written = *std::ranges::find_if(containers(), &ContainerTraits::writes);
  return written;
}

bool has_weight_extension(std::string_view name) {
  return std::ranges::any_of(containers(),
                             [&](const ContainerTraits& container) { return name.ends_with(container.extension); });
}

bool sniffs_of_weights(std::span<const std::byte> head) {
  return std::any_of(table().begin(), table().end(), [&](const Container& container) { return container.sniff(head); });
}

WeightFile open_weight_file(InputFile file, MemoryLimit& memory) {
  std::array<std::byte, 64> bytes{};
  const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), file.size()));
  const auto head = std::span(bytes).first(count);
  file.read(0, head);
  for (const Container& container : table())
    if (container.sniff(head.first(std::min<std::size_t>(count, 16)))) return container.open(std::move(file), memory);

  refuse_known(file.label(), std::string_view(reinterpret_cast<const char*>(head.data()), head.size()));
  // Damaged, or not weights. The reader of the container after which the file is named reports exactly what is wrong.
  for (const Container& container : table())
    if (file.label().ends_with(container.traits.extension)) return container.open(std::move(file), memory);
  refuse(file.label(), "is not a weight file: it does not begin like {}", container_names());
}

}  // namespace nibble
