#pragma once

#include <string>

#include "formats/commit/target.hpp"
#include "formats/commit/work_directory.hpp"

/// What a run that was stopped has left in its work directory.
namespace nibble {

/// Somebody else may have created an entry with the name of the work directory: throws Error(output_exists) if it has
/// entries that are not nibble's. `work` is open, `shown` its path for messages.
void judge_remains(const Target& target, int work, const std::string& shown);

/// Handles what an earlier run left: finishes its replacement, and throws Error(output_exists) if there are old entries
/// of unknown origin; remains may be cleared afterwards. Returns a line that its user should know, about a journal that
/// was ignored; empty as a rule.
[[nodiscard]] std::string recover(const Target& target, const WorkDirectory& work);

/// After recover(): whether the run was stopped before its commit began, and left a log of what it had built.
[[nodiscard]] bool may_resume(const WorkDirectory& work) noexcept;

}  // namespace nibble
