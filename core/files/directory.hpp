#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/file.hpp"

/// Operations on the entries of an open directory. Names are looked up in it and links are never followed, so it does
/// not matter if its path changes meanwhile.
namespace nibble {

/// A descriptor of the directory `name` in `at`, or none: errno says why.
[[nodiscard]] Descriptor open_directory(int at, const std::string& name) noexcept;

/// lstat(); nothing if there is no such entry. Throws Error(io) if the system does not tell.
[[nodiscard]] std::optional<struct ::stat> status_of(int at, const std::string& name, std::string_view label);

/// Whether there may be such an entry: never false if the system does not tell.
[[nodiscard]] bool may_exist(int at, const char* name) noexcept;

/// Names of the entries, without . and .., sorted. Throws Error(io): a directory that cannot be listed must not count
/// as empty.
[[nodiscard]] std::vector<std::string> list_directory(int directory, std::string_view label);

/// The same of the directory at a path; a link is followed. std::filesystem's iterators would end the program if there
/// were no memory for a name.
[[nodiscard]] std::vector<std::string> list_directory(const std::filesystem::path& path, std::string_view label);

/// The paths of everything below the directory, sorted; links are listed and not followed. Throws Error(io), also for
/// folders that lie deeper than 256.
[[nodiscard]] std::vector<std::string> list_tree(int directory, std::string_view label);

/// Whether something is mounted exactly there. The device number does not tell: bind mounts have the device number of
/// their folder.
[[nodiscard]] bool is_mount_point(int at, const char* name) noexcept;

/// The prefix of the names that deeply nested folders get while they are removed.
inline constexpr std::string_view removed_prefix = ".removed-";

/// Removes an entry with everything in it, as far as that is possible: it reports no errors, and allocates no memory,
/// so it works when there is none. It works for any depth of nesting. Mounted file systems in it are not entered.
void remove_tree(int at, const char* name) noexcept;

/// The same for all entries of an open directory.
void remove_entries(int directory) noexcept;

/// Whether a name stands for an entry of the directory itself: no path, not . or .., and no more than 255 bytes.
[[nodiscard]] bool is_entry_name(std::string_view name) noexcept;

}  // namespace nibble
