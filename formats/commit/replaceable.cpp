#include "formats/commit/replaceable.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/files/directory.hpp"
#include "formats/containers/container.hpp"
#include "formats/models/config.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr std::array<std::string_view, 22> model_files{"added_tokens.json",
                                                       "chat_template.jinja",
                                                       "chat_template.json",
                                                       config::file_name,
                                                       "config_sentence_transformers.json",
                                                       "generation_config.json",
                                                       "merges.txt",
                                                       "model_index.json",
                                                       "modules.json",
                                                       manifest_file,
                                                       "preprocessor_config.json",
                                                       "processor_config.json",
                                                       "sentence_bert_config.json",
                                                       "sentencepiece.bpe.model",
                                                       "special_tokens_map.json",
                                                       "spiece.model",
                                                       "tokenizer.json",
                                                       "tokenizer.model",
                                                       "tokenizer_config.json",
                                                       "video_preprocessor_config.json",
                                                       "vocab.json",
                                                       "vocab.txt"};
static_assert(std::ranges::is_sorted(model_files));

}  // namespace

bool is_model_file(std::string_view name) {
  if (name.starts_with('.') || name.starts_with("adapter_")) return false;  // peft's adapter_model.safetensors
  if (std::ranges::binary_search(model_files, name)) return true;
  if (name.ends_with(index_extension)) name.remove_suffix(index_extension.size());
  return has_weight_extension(name) || (name.starts_with("pytorch_model") && name.ends_with(".bin"));
}

Replaceable replaceable(int directory, const std::vector<std::string>& entries, std::span<const std::string> fresh,
                        std::string_view label) {
  std::vector<std::string_view> sorted(fresh.begin(), fresh.end());
  std::ranges::sort(sorted);
  const auto is_fresh = [&](std::string_view path) { return std::ranges::binary_search(sorted, path); };
  Replaceable found;
  for (const std::string& entry : entries) {
    if (entry.starts_with('.')) continue;
    const auto status = status_of(directory, entry, label);
    if (!status) continue;
    const bool is_folder = S_ISDIR(status->st_mode);
    if (!is_fresh(entry) && (is_folder || !is_model_file(entry))) continue;
    found.entries.push_back(entry);
    if (!is_folder || !found.lost.empty()) continue;
    const Descriptor inner = open_directory(directory, entry);
    if (inner.get() < 0)
      throw Error(Errc::io, label, fmt::format("cannot open '{}': {}", printable(entry), std::strerror(errno)));
    for (const std::string& path : list_tree(inner.get(), label))
      if (std::string whole = fmt::format("{}/{}", entry, path); !is_fresh(whole)) {
        found.lost = std::move(whole);
        break;
      }
  }
  return found;
}

}  // namespace nibble
