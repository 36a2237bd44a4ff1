#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble::test {

struct JournalStep {
  char action = '|';  ///< '-' takes out, '=' exchanges, '+' puts in, '|' is a barrier
  std::string name{};
  std::uint64_t old_inode = 0, new_inode = 0;
};

[[nodiscard]] std::uint64_t inode_of(const std::filesystem::path& path);

/// The journal of a replacement in the directory `target`, as formats/commit/swap.cpp writes it: whole, and with the
/// right checksum, whatever the steps say.
[[nodiscard]] std::string journal(const std::filesystem::path& target, const std::vector<JournalStep>& steps);

}  // namespace nibble::test
