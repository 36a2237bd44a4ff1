#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "formats/commit/transaction.hpp"

namespace nibble::cli {

/// The file of a report: it appears whole or not at all, and replaces an earlier report or an empty file, but never
/// anything else.
class ReportFile {
 public:
  /// Throws Error(output_exists) if something else is there, Error(usage) if the folder does not exist, Error(io).
  explicit ReportFile(const std::filesystem::path& path);

  /// Returns warnings for the user. Throws Error(output_exists) if something else has appeared there, Error(io).
  [[nodiscard]] std::vector<std::string> write(std::string_view page);

 private:
  Transaction transaction_;
  std::string label_;
};

}  // namespace nibble::cli
