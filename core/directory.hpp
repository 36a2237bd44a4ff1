#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.hpp"

/// What is done to the entries of an open directory. Names are looked up in it and never followed as links, so nothing
/// that happens to its path meanwhile matters.
namespace nibble {

/// A descriptor of the directory `name` in `at`, or none: errno says why.
[[nodiscard]] Descriptor open_directory(int at, const std::string& name) noexcept;

/// lstat(); nothing if there is no such entry. Throws Error(io) if the system does not tell.
[[nodiscard]] std::optional<struct ::stat> status_of(int at, const std::string& name, std::string_view label);

/// Names of the entries, without . and .., sorted. Throws Error(io): what could not be listed must not count as empty.
[[nodiscard]] std::vector<std::string> list_directory(int directory, std::string_view label);

/// The paths of everything below the directory, sorted; links are entries, not ways. Throws Error(io), also for folders
/// that lie deeper than 256.
[[nodiscard]] std::vector<std::string> list_tree(int directory, std::string_view label);

/// Whether something is mounted right there. Bind mounts are on the same device as their folder, so that says nothing.
[[nodiscard]] bool is_mount_point(int at, const char* name) noexcept;

/// With this begin names that folders which lie deep get while they are removed.
inline constexpr std::string_view removed_prefix = ".removed-";

/// Removes an entry with all that is in it, as far as that is possible: nothing is an error, and no memory is taken, so
/// that it serves when there is none. Nesting of any depth is no danger. What is mounted in it is not entered.
void remove_tree(int at, const char* name) noexcept;

/// The same for all entries of an open directory.
void remove_entries(int directory) noexcept;

/// Whether a name stands for an entry of the directory itself: no path, not . or .., and no more than 255 bytes.
[[nodiscard]] bool is_entry_name(std::string_view name) noexcept;

}  // namespace nibble
