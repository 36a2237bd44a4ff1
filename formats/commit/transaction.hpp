#pragma once

#include <sys/stat.h>

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
#include "formats/commit/work_directory.hpp"
#include "nibble/remedy.hpp"

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
class Transaction {
 public:
  enum class Kind : std::uint8_t { file, directory };

  struct Options {
    bool overwrite = false;
    /// Whether a file that is open for reading may be replaced. Null: any file may.
    bool (*may_replace)(int file) = nullptr;
    bool with_manifest = true;  ///< a file has one beside it, or one that was there goes
    /// Of a directory: the paths of the files and folders that it will have beside its model's. Those that are there
    /// go. Only for what can be said before the work is done; what counts is what directory() has in the end.
    std::span<const std::string> paths{};
  };

  /// Throws Error(output_exists) naming what is in the way: something that exists and is not to be overwritten, or is
  /// no model, or belongs to another user or another nibble; Error(usage) if the folder does not exist or the name is
  /// too long; Error(io).
  Transaction(const std::filesystem::path& target, Kind kind, const Options& options);

  /// Throws what the constructor would, as far as that can be told without writing anything. Returns free_bytes().
  static std::uint64_t check(const std::filesystem::path& target, Kind kind, const Options& options);

  /// Removes what was not committed, unless the next run needs it to finish what could not be undone.
  ~Transaction() = default;
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  /// The directory to build in. Everything in it becomes part of a directory; no name in it begins with a dot. For a
  /// file it takes name() and, where files have one, manifest_name().
  [[nodiscard]] int directory() const noexcept { return new_.get(); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] std::string manifest_name() const;
  static constexpr const char* manifest_suffix = ".nibble.json";

  /// For temporary files; their names do not matter.
  [[nodiscard]] int work_directory() const noexcept { return work_->fd(); }

  /// Everything in directory() has been flushed: makes it the target. After it has returned nothing can fail any more;
  /// if it throws, the target is as it was.
  void commit();

  /// What its user should know, one line each: a journal that was ignored.
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return warnings_; }

  /// A line about what commit() has replaced and could not remove; empty as a rule.
  [[nodiscard]] const std::string& remains() const noexcept { return remains_; }

  /// Free bytes of the file system that the target will be on.
  [[nodiscard]] std::uint64_t free_bytes() const;

 private:
  // The directory that is replaced, as it was when it was decided that it may be: which one, and all paths in it.
  struct Old {
    struct stat status {};
    std::vector<std::string> tree{};
  };
  // The inodes of the files that are replaced; 0 where there is none.
  struct Judged {
    std::uint64_t file = 0, manifest = 0;
  };

  // Where the work directory is, or will be.
  struct WorkLocation {
    Descriptor root;
    std::string name, path;  // in `root`; `path` is that of `root`, for messages
  };

  // Opens the folder and judges what is there; writes nothing.
  struct Look {};
  static constexpr Look look{};
  Transaction(Look, const std::filesystem::path& target, Kind kind, const Options& options);

  [[nodiscard]] bool has_entry(int at, const std::string& name) const;
  void judge_target();
  void judge_permission(const std::string& name, const std::string& shown, const struct stat& status) const;
  void judge_as_it_is() const;
  std::uint64_t judge_file(int at, const std::string& name, const std::string& shown, bool (*may_replace)(int)) const;
  [[nodiscard]] Judged judge_files() const;
  void judge_entries(const std::vector<std::string>& entries) const;
  [[nodiscard]] std::vector<std::string> judge_old(int directory) const;
  [[nodiscard]] std::vector<std::string> judge_leaving(int directory, std::span<const std::string> fresh) const;
  void enter();
  void judge_folders(int directory, const std::vector<std::string>& leaving) const;
  void judge_tree(int directory, const std::vector<std::string>& entries, std::span<const std::string> fresh) const;
  void judge_journal(const Swap::Journal& journal) const;
  [[nodiscard]] WorkLocation work_location() const;
  void judge_work_location() const;
  void judge_remains(int work, const std::string& shown) const;
  [[nodiscard]] std::vector<std::string> entries_of(int directory) const;
  [[nodiscard]] std::vector<std::string> tree_of(int directory, const std::vector<std::string>& entries,
                                                 std::span<const std::string> fresh) const;
  [[nodiscard]] bool must_be_inside(const struct stat& status) const;
  [[nodiscard]] std::string beside_name() const;
  void refuse_interrupted(int root, const std::string& work_name) const;
  void recover();
  void finish_swap(const Swap& swap, const Swap::Journal& journal);

  void narrow(int fresh, int old, const std::vector<std::string>& entries, mode_t inherited) const;
  [[nodiscard]] mode_t narrowed(int fresh, const std::string& name, const struct stat& mine,
                                const struct stat& old) const;
  void commit_file();
  void judge_replaced() const;
  void commit_beside();
  void publish();
  [[nodiscard]] bool exchange(mode_t mode, std::span<const std::string> fresh,
                              const std::function<bool(int)>& all_leave);
  void commit_inside();
  void run(const Swap& swap, const Swap::Steps& steps, const std::function<void()>& judge);
  void finish_commit() noexcept;
  [[nodiscard]] bool remove_old() const noexcept;

  [[noreturn]] void refuse_existing(const std::string& shown, std::string_view fact, Remedy remedy = {}) const;
  [[noreturn]] void fail(std::string_view action) const;

  Kind kind_;
  Options options_;
  bool inside_ = false;
  bool keeps_ = false;                 // inside, because some entries stay
  std::string shown_;                  // the target as the user wrote it, for messages
  std::filesystem::path path_;         // the same without slashes at its end
  std::string name_;                   // its last component
  Descriptor parent_;                  // the folder of the target
  std::optional<WorkDirectory> work_;  // in that folder, or in the target itself
  Descriptor new_;                     // in it, what is built
  std::optional<Old> old_;             // a directory that is to be replaced
  std::vector<std::string> warnings_;
  std::string remains_;
};

}  // namespace nibble
