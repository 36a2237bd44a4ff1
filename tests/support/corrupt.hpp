#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/error.hpp"

namespace nibble::test {

/// A directory that is gone, with all in it, at the end of the test.
class TempDir {
 public:
  TempDir();  ///< where temporary files go
  explicit TempDir(const std::filesystem::path& parent);
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

[[nodiscard]] std::string read_file(const std::filesystem::path& path);

/// Names in a directory, sorted.
[[nodiscard]] std::vector<std::string> entries_of(const std::filesystem::path& directory);

/// A safetensors file from the text of its header and its data; `length` replaces the true length of the header.
[[nodiscard]] std::string safetensors_file(std::string_view header, std::string_view data = {},
                                           std::optional<std::uint64_t> length = {});

/// One F32 tensor of 4 elements for each name.
[[nodiscard]] std::string safetensors_with(const std::vector<std::string>& names);

/// A file, or the files of a directory, that have one thing wrong, and what is said about it.
struct Corrupt {
  std::string id;                            ///< of the test: letters, digits and '_'
  std::map<std::string, std::string> files;  ///< by name
  std::string open;                          ///< the one to open; empty: the directory
  std::string error;                         ///< the whole text; "DIR" stands for the directory

  friend void PrintTo(const Corrupt& file, std::ostream* out) { *out << file.id; }
};

/// One for every check of the header, of the index, of config.json. Seeds for fuzzing, too.
[[nodiscard]] std::vector<Corrupt> corrupt_safetensors();
[[nodiscard]] std::vector<Corrupt> corrupt_directories();
[[nodiscard]] std::vector<Corrupt> corrupt_configs();

/// What `call` throws. Empty if it throws nothing; the code in front if it is another one than `code`.
template <class Call> [[nodiscard]] std::string error_of(Call call, Errc code = Errc::bad_input) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() != code) return "code " + std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    return error.what();
  }
  return {};
}

}  // namespace nibble::test
