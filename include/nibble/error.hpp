#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

#include "nibble/remedy.hpp"

namespace nibble {

/// Why an operation failed. The value is the exit code of the command line (docs/exit-codes.md).
enum class Errc : int {
  internal = 1,       ///< a bug in nibble
  usage = 2,          ///< an option or argument that makes no sense, a rule that matches nothing
  bad_input = 3,      ///< not a checkpoint, damaged, or something that nibble refuses
  io = 4,             ///< the operating system refused to read or write
  no_space = 5,       ///< not enough memory or disk space, found before the first byte was written
  output_exists = 6,  ///< the output exists, or another nibble is writing it
  input_changed = 7,  ///< the input changed while it was read
  difference = 8,     ///< a tensor's error exceeds a limit
  interrupted = 130,  ///< stopped by a signal: the program exits with 128 and its number
};

/// The one exception that nibble throws. what() is a single line that names the thing, the fact and the limit:
///
///   model.safetensors: tensor 'lm_head.weight': data ends at byte 4096, file has 4000
class Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& what, Remedy remedy = {})
      : std::runtime_error(what), code_(code), remedy_(remedy) {}
  Error(Errc code, const std::string& what, Remedy::Kind remedy) : Error(code, what, Remedy{remedy}) {}
  /// About a file or another thing that has a name: what() is "SUBJECT: FACT". The subject is shown as it is, so it is
  /// escaped already.
  Error(Errc code, std::string_view subject, std::string_view fact, Remedy remedy = {})
      : std::runtime_error(std::string(subject).append(": ").append(fact)),
        code_(code),
        remedy_(remedy),
        subject_bytes_(subject.size()) {}
  Error(Errc code, std::string_view subject, std::string_view fact, Remedy::Kind remedy)
      : Error(code, subject, fact, Remedy{remedy}) {}
  [[nodiscard]] Errc code() const noexcept { return code_; }
  /// What the error is about; empty if it was thrown where that is not known. Valid as long as the error.
  [[nodiscard]] std::string_view subject() const noexcept { return std::string_view(what()).substr(0, subject_bytes_); }
  /// What the caller may change, if that would help.
  [[nodiscard]] Remedy remedy() const noexcept { return remedy_; }

 private:
  Errc code_;
  Remedy remedy_;
  std::size_t subject_bytes_ = 0;  // of what(); not a copy of them, so that an error can be copied without memory
};

/// A name from a file in a form that fits one line of text: control characters, quotes and invalid UTF-8 are escaped,
/// and names over 80 characters are shortened in the middle.
[[nodiscard]] std::string printable(std::string_view name);

/// The same at full length, for paths.
[[nodiscard]] std::string escaped(std::string_view text);

/// The same error, about this subject unless it has one already. Code that knows only tensors throws errors without a
/// subject, and its callers know the file.
[[nodiscard]] Error about(const Error& error, std::string_view subject);

}  // namespace nibble
