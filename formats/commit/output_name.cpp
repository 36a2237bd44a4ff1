#include "formats/commit/output_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <system_error>

#include "formats/containers/container.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

// Extensions of other tools' files: whoever gives one to an output expects something that nibble does not write. This
// is a list because names of models contain dots, too: "Llama-3.1-8B" has no extension.
constexpr std::string_view foreign_extensions[]{
    ".gguf",    ".ggml",  ".bin",  ".pt",  ".pth",  ".ckpt", ".pkl", ".onnx", ".h5",  ".pb",  ".tflite",
    ".msgpack", ".npy",   ".npz",  ".zip", ".tar",  ".tgz",  ".gz",  ".bz2",  ".xz",  ".zst", ".7z",
    ".json",    ".jsonl", ".yaml", ".yml", ".toml", ".txt",  ".md",  ".csv",  ".html"};

}  // namespace

void check_output_name(const std::filesystem::path& path, const Reader& in) {
  const std::string& out = path.native();
  const auto refuse = [&](std::string_view why) {
    throw Error(Errc::usage, fmt::format("output '{}': {}", escaped(out), why));
  };
  if (out.empty()) refuse("is empty");
  if (out.find('\0') != std::string::npos) refuse("contains a NUL byte");
  std::string name = out.substr(0, out.find_last_not_of('/') + 1);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const ContainerTraits& container = written_container();
  for (const std::string_view foreign : foreign_extensions)
    if (name.ends_with(foreign)) refuse(fmt::format("nibble writes {}, not {}", container.name, foreign));
  const std::string input = escaped(in.path().native());
  if (in.is_directory()) {
    if (name.ends_with(container.extension))
      refuse(
          fmt::format("the input '{}' is a directory, so the output is a directory, too: its name must not end in {}",
                      input, container.extension));
    return;
  }
  if (out.ends_with('/'))
    refuse(fmt::format("the input '{}' is a file, so the output is a file, too: its name must not end in /", input));
  if (std::error_code error; std::filesystem::is_directory(path, error))
    refuse(fmt::format("is a directory, but the input '{}' is a file: name a file for the output", input));
}

}  // namespace nibble
