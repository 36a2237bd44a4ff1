#include "cli/measurement/report_file.hpp"

#include <fcntl.h>

#include <array>
#include <span>
#include <string>

#include "core/files/file.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

// A page names at its beginning the program that made it.
bool is_report(int file) {
  std::array<char, 1024> head{};
  const Transfer got = read_all(file, 0, std::as_writable_bytes(std::span(head)));
  return std::string_view(head.data(), got.bytes).find(R"(<meta name="generator" content="nibble)") !=
         std::string_view::npos;
}

}  // namespace

ReportFile::ReportFile(const std::filesystem::path& path)
    : transaction_(path, Transaction::Kind::file,
                   {.overwrite = true, .may_replace = is_report, .with_manifest = false}),
      label_(escaped(path.string())) {}

std::vector<std::string> ReportFile::write(std::string_view page) {
  OutputFile file(transaction_.directory(), transaction_.name(), label_);
  file.write_at(0, std::as_bytes(std::span(page)));
  file.flush();
  file.close();
  transaction_.commit();
  std::vector<std::string> warnings = transaction_.warnings();
  if (!transaction_.remains().empty()) warnings.push_back(transaction_.remains());
  return warnings;
}

}  // namespace nibble::cli
