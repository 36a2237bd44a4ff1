#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/file.hpp"
#include "formats/commit/swap.hpp"
#include "formats/commit/target.hpp"
#include "formats/commit/work_directory.hpp"
#include "formats/commit/work_log.hpp"

namespace nibble {

/// Makes a file or a directory appear whole or not at all.
///
/// The output is built in a hidden work directory, which only its owner can enter, and moved when it is complete:
///
///   beside    `.OUT.nibble/` in the folder of OUT. A directory appears in one step; an old one is exchanged
///             with it. A file and its manifest are replaced by a Swap, as one output: the old manifest leaves first
///             and the new one comes last, so that a file may lie there without a manifest for a moment, but never
///             beside that of another file.
///   inside    `OUT/.nibble/`, where OUT is a mount point, its folder is not writable, or the file system cannot
///             exchange; and where OUT has entries that stay: the other entries are replaced by a Swap.
///
/// Nothing is lost that the new output does not replace (formats/commit/replaceable.hpp). What is not a file of a model
/// stays in a directory that is replaced: it is not even touched. In a folder that has to go, because the new output
/// has one of the same name, it is in the way.
///
/// Nothing found on disk is trusted. An existing work directory is used only if it belongs to the user who runs nibble
/// and nobody else can write it; the old output is judged again after the exchange has moved it away, and put back if
/// it has changed. The work directory is locked with flock(), which dies with its process: what a killed run left
/// behind is finished or cleared by the next.
///
/// With Options::resume, a run that was stopped before its commit began can be resumed: what it has built, and the log
/// that it wrote of that (WorkLog), stay until take_over() or begin_log() is called.
class Transaction {
 public:
  using Kind = Target::Kind;
  using Options = Target::Options;

  /// Throws Error(output_exists) naming what is in the way: something that exists and is not to be overwritten, or is
  /// no model, or belongs to another user or another nibble; Error(usage) if the folder does not exist or the name is
  /// too long; Error(io).
  Transaction(const std::filesystem::path& path, Kind kind, const Options& options);

  /// Throws what the constructor would, as far as that can be told without writing anything. Returns free_bytes().
  static std::uint64_t check(const std::filesystem::path& path, Kind kind, const Options& options);

  /// Removes what was not committed, unless the next run needs it: to finish what could not be undone, or to resume.
  ~Transaction() = default;
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  /// The directory to build in. Everything in it becomes part of a directory; no name in it begins with a dot. For a
  /// file it takes name() and, where files have one, manifest_name().
  [[nodiscard]] int directory() const noexcept { return new_.get(); }
  [[nodiscard]] const std::string& name() const noexcept { return target_.name(); }
  [[nodiscard]] std::string manifest_name() const { return target_.manifest_name(); }
  static constexpr const char* manifest_suffix = Target::manifest_suffix;

  /// The log of an interrupted run that left what it had built in directory(); none if there is nothing to resume.
  [[nodiscard]] const WorkLog* found_log() const noexcept { return found_ ? &*found_ : nullptr; }
  /// Resumes it, and removes everything from directory() but these entries. Throws Error(io).
  WorkLog take_over(const std::function<bool(const std::string&)>& stays);
  /// A new log. Throws Error(io).
  [[nodiscard]] WorkLog begin_log(std::string_view head) const;

  /// Returns when the entries of directory() and the log have their names on the disk. Throws Error(io).
  void flush_names() const;

  /// What was built stays in the work directory, for a run that resumes this one. Returns its path; empty if that run
  /// would not believe what it finds there, as on file systems without modes. Throws Error(io).
  [[nodiscard]] std::string keep();

  /// For temporary files; their names do not matter.
  [[nodiscard]] int work_directory() const noexcept { return work_->fd(); }

  /// Everything in directory() has been flushed: makes it the target. After it has returned nothing can fail any more;
  /// if it throws, the target is as it was.
  void commit();

  /// What its user should know, one line each: a journal that was ignored.
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return warnings_; }

  /// A line about what commit() has replaced and could not remove; empty as a rule.
  [[nodiscard]] const std::string& remains() const noexcept { return remains_; }

  /// Free bytes of the file system that the target will be on; what an interrupted run left counts as free.
  [[nodiscard]] std::uint64_t free_bytes() const;

 private:
  void enter();
  void find_log();
  void commit_file();
  void commit_beside();
  void publish();
  [[nodiscard]] bool exchange(mode_t mode, std::span<const std::string> fresh,
                              const std::function<bool(int)>& all_leave);
  void commit_inside();
  void run(const Swap& swap, const Swap::Steps& steps, const std::function<void()>& judge);
  void finish_commit() noexcept;
  [[nodiscard]] bool remove_old() const noexcept;

  [[noreturn]] void refuse(std::string_view fact) const;
  [[noreturn]] void fail(std::string_view action) const;

  Target target_;
  std::optional<WorkDirectory> work_;  // in the folder of the target, or in the target itself
  Descriptor new_;                     // in it, what is built
  std::optional<WorkLog> found_;       // of an interrupted run
  std::optional<Target::Old> old_;     // a directory that is to be replaced
  std::vector<std::string> warnings_;
  std::string remains_;
};

}  // namespace nibble
