#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/file.hpp"

namespace nibble {

/// Makes a file or a directory appear whole or not at all.
///
/// The output is built in a hidden directory and renamed when it is complete:
///
///   beside    `.OUT.nibble/` in the folder of OUT. Over an existing directory the two are exchanged in one step.
///   inside    `OUT/.nibble/`, where OUT is a mount point, its folder is not writable, or the file system cannot
///             exchange. The old index and config go first and the new ones come last, so that at no time a loader
///             accepts a mixture; a journal lets the next run finish what was interrupted.
///
/// The hidden directory is locked with flock(), which dies with its process: what a killed run left behind is
/// cleared by the next.
class Transaction {
 public:
  enum class Kind : std::uint8_t { file, directory };

  /// Throws Error(output_exists) if target exists and is not to be overwritten, or if another process holds the
  /// lock; Error(usage) if its folder does not exist; Error(io).
  Transaction(const std::filesystem::path& target, Kind kind, bool overwrite);

  /// Removes what was not committed.
  ~Transaction();

  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  /// The directory to build in. Everything in it becomes part of a directory target. For a file target, what is
  /// called `staged_file` becomes the target, and `staged_manifest` becomes `TARGET.nibble.json`.
  [[nodiscard]] int directory() const noexcept { return work_.get(); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  static constexpr const char* staged_file = "data";
  static constexpr const char* staged_manifest = "manifest";

  /// Everything in directory() has been flushed: makes it the target.
  void commit();

  /// Free bytes of the file system that the target will be on.
  [[nodiscard]] std::uint64_t free_bytes() const;

 private:
  void open_work_directory();
  void check_replaceable(std::vector<std::string> entries) const;
  void commit_file();
  void commit_beside();
  void commit_inside();

  Kind kind_;
  bool overwrite_;
  bool inside_ = false;
  bool committed_ = false;
  std::string shown_;      // the target as the user wrote it, for messages
  std::string name_;       // its last component
  std::string work_name_;  // the hidden directory's name in root_
  Descriptor parent_;      // the folder of the target
  Descriptor root_;        // where the hidden directory is: parent_, or the target itself
  Descriptor work_;        // the hidden directory, locked
};

/// Removes everything below a directory, and the directory itself if `itself`. Missing entries are no error.
void remove_tree(int parent, const std::string& name, bool itself = true);

/// Names of the entries of a directory, without . and .., sorted.
[[nodiscard]] std::vector<std::string> list_directory(int directory);

}  // namespace nibble
