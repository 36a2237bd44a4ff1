// A position in a source file, as std::source_location, which clang 14 does not have.
#pragma once
#include <version>
#if defined(__cpp_lib_source_location)
#include <source_location>
#endif

namespace nibble::device {

#if defined(__cpp_lib_source_location)
using Site = std::source_location;
#else
class Site {
 public:
  static constexpr Site current(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE(),
                                unsigned column = __builtin_COLUMN()) {
    Site site;
    site.file_ = file;
    site.line_ = line;
    site.column_ = column;
    return site;
  }
  [[nodiscard]] constexpr const char* file_name() const { return file_; }
  [[nodiscard]] constexpr unsigned line() const { return line_; }
  [[nodiscard]] constexpr unsigned column() const { return column_; }

 private:
  const char* file_ = "";
  unsigned line_ = 0, column_ = 0;
};
#endif

}  // namespace nibble::device
