#include "formats/models/hub.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <system_error>

#include "core/files/file.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

namespace fs = std::filesystem;

bool is_word(std::string_view text, std::string_view more) {
  return !text.empty() && text.find_first_of("-./") != 0 && text.find("..") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  more.find(c) != std::string_view::npos;
         });
}

std::optional<fs::path> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  const std::string_view text = value;
  const char* home = std::getenv("HOME");
  if (home == nullptr || (text != "~" && !text.starts_with("~/"))) return fs::path(text);
  return fs::path(home) / text.substr(std::min<std::size_t>(2, text.size()));
}

}  // namespace

std::optional<ModelName> parse_model_name(std::string_view text) {
  ModelName name{text, "main"};
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    name = {text.substr(0, at), text.substr(at + 1)};
    if (!is_word(name.revision, "._-/") || name.revision.back() == '/') return std::nullopt;  // "refs/pr/1" is one
  }
  // The first models of the hub have no organization: "gpt2".
  const std::size_t slash = name.repository.find('/');
  if (!is_word(name.repository.substr(0, slash), "._-") ||
      (slash != std::string_view::npos && !is_word(name.repository.substr(slash + 1), "._-")))
    return std::nullopt;
  return name;
}

fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const auto path = variable(name)) return *path;
  if (const auto home = variable("HF_HOME")) return *home / "hub";
  if (const auto cache = variable("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  return variable("HOME").value_or("/") / ".cache" / "huggingface" / "hub";
}

std::optional<fs::path> find_in_hub_cache(const ModelName& name) {
  std::string folder = "models--" + std::string(name.repository);
  if (const std::size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  const fs::path repository = hub_cache() / folder;

  std::string commit(name.revision);
  std::error_code error;
  const fs::path ref = repository / "refs" / commit;
  if (fs::is_regular_file(ref, error)) {
    constexpr std::uint64_t max_bytes = 128;  // a commit has 40 characters
    commit = InputFile(AT_FDCWD, ref, escaped(ref.native())).read_text(max_bytes);
    while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
  }
  if (!is_word(commit, "")) return std::nullopt;
  const fs::path snapshot = repository / "snapshots" / commit;
  if (!fs::is_directory(snapshot, error)) return std::nullopt;
  return snapshot;
}

}  // namespace nibble
