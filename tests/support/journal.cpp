#include "tests/support/journal.hpp"

#include <sys/stat.h>
#include <xxhash.h>

#include <array>
#include <cstdio>

namespace nibble::test {

std::uint64_t inode_of(const std::filesystem::path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

std::string journal(const std::filesystem::path& target, const std::vector<JournalStep>& steps) {
  std::string text = "nibble swap 1";
  const auto end_field = [&] { text.push_back('\0'); };
  end_field();
  text += std::to_string(inode_of(target));
  end_field();
  for (const JournalStep& step : steps) {
    text += step.action;
    text += ' ' + std::to_string(step.old_inode) + ' ' + std::to_string(step.new_inode) + ' ' + step.name;
    end_field();
  }
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  std::array<char, 33> checksum{};
  (void)std::snprintf(checksum.data(), checksum.size(), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                      static_cast<unsigned long long>(hash.low64));
  text += checksum.data();
  end_field();
  return text;
}

}  // namespace nibble::test
