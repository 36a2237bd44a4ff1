#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>
#include <vector>

/// Permissions of what replaces something: nobody gets new ones.
namespace nibble {

/// The mode of an entry that replaces another: to others than its owner it gives what the old one gave, and to its
/// group only if that is the old one's. `name` in the directory `fresh` gets the old one's group, if that is allowed.
[[nodiscard]] mode_t narrowed_mode(int fresh, const std::string& name, const struct stat& mine, const struct stat& old);

/// Narrows everything in the open directory `fresh`, which replaces these entries of the directory `old`. An entry with
/// a namesake gets only permissions that the namesake had; any other file gets only permissions that every old file
/// had. Throws Error(io); `shown` is the output, for messages.
void narrow_modes(int fresh, int old, const std::vector<std::string>& entries, const std::string& shown);

}  // namespace nibble
