#include "formats/commit/modes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/files/directory.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr mode_t of_others = S_IRWXG | S_IRWXO;

[[noreturn]] void fail(const std::string& shown, std::string_view action) {
  throw Error(Errc::io, printable(shown), fmt::format("{}: {}", action, std::strerror(errno)));
}

void narrow_entries(int fresh, int old, const std::vector<std::string>& entries, mode_t inherited,
                    const std::string& shown) {
  for (const std::string& name : entries)
    if (const auto status = status_of(old, name, printable(shown)); status && S_ISREG(status->st_mode))
      inherited &= status->st_mode;
  for (const std::string& name : list_directory(fresh, printable(shown))) {
    const auto mine = status_of(fresh, name, printable(shown));
    if (!mine) continue;
    const bool is_directory = S_ISDIR(mine->st_mode);
    const bool has_namesake = std::find(entries.begin(), entries.end(), name) != entries.end();
    auto namesake = has_namesake ? status_of(old, name, printable(shown)) : std::nullopt;
    // Whoever could read a file may enter the folder that replaces it.
    if (is_directory && namesake && S_ISREG(namesake->st_mode)) namesake->st_mode |= (namesake->st_mode & 0444) >> 2;
    const mode_t mode = namesake       ? narrowed_mode(fresh, name, *mine, *namesake)
                        : is_directory ? mine->st_mode & 07777
                                       : mine->st_mode & (S_IRWXU | inherited);
    if (mode != (mine->st_mode & 07777) && fchmodat(fresh, name.c_str(), mode, 0) != 0)
      fail(shown, "cannot set the mode of its files");
    if (!is_directory) continue;
    const Descriptor inner = open_directory(fresh, name);
    if (inner.get() < 0) fail(shown, "cannot open a folder in it");
    const bool has_old = namesake && S_ISDIR(namesake->st_mode);
    const Descriptor old_inner = has_old ? open_directory(old, name) : Descriptor();
    if (has_old && old_inner.get() < 0) fail(shown, "cannot open a folder in it");
    narrow_entries(inner.get(), old_inner.get(),
                   has_old ? list_directory(old_inner.get(), printable(shown)) : std::vector<std::string>{}, inherited,
                   shown);
  }
}

}  // namespace

mode_t narrowed_mode(int fresh, const std::string& name, const struct stat& mine, const struct stat& old) {
  const bool same_group =
      mine.st_gid == old.st_gid || fchownat(fresh, name.c_str(), uid_t(-1), old.st_gid, AT_SYMLINK_NOFOLLOW) == 0;
  return mine.st_mode & (S_IRWXU | (same_group ? old.st_mode & of_others : old.st_mode & S_IRWXO));
}

void narrow_modes(int fresh, int old, const std::vector<std::string>& entries, const std::string& shown) {
  narrow_entries(fresh, old, entries, of_others, shown);
}

}  // namespace nibble
