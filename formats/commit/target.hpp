#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/file.hpp"
#include "nibble/remedy.hpp"

namespace nibble {

/// The path of an output, and what is there: whether a transaction may replace it, and from where. Writes nothing.
///
/// Functions that begin with `judge` throw Error(output_exists) if something is in the way and must not be replaced,
/// and Error(io).
class Target {
 public:
  enum class Kind : std::uint8_t { file, directory };

  struct Options {
    bool overwrite = false;
    /// Whether a file that is open for reading may be replaced. Null: any file may.
    bool (*may_replace)(int file) = nullptr;
    bool resume = false;        ///< what an interrupted run has finished is taken over
    bool with_manifest = true;  ///< a file has one beside it, or one that was there goes
    /// Of a directory: the paths of the files and folders that it will have beside its model's. Those that are there
    /// go. Only for what can be said before the work is done; what counts is what a transaction has built in the end.
    std::span<const std::string> paths{};
  };

  static constexpr const char* inside_name = ".nibble";  ///< of a work directory in the target
  static constexpr const char* manifest_suffix = ".nibble.json";

  /// Opens the folder and judges what is there. Throws also Error(usage) if the folder does not exist or the name is
  /// too long.
  Target(const std::filesystem::path& path, Kind kind, const Options& options);

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] const std::string& shown() const noexcept { return shown_; }  ///< as its user wrote it, for messages
  [[nodiscard]] const std::string& name() const noexcept { return name_; }    ///< the last component
  [[nodiscard]] std::string manifest_name() const;
  [[nodiscard]] int parent() const noexcept { return parent_.get(); }  ///< the folder of the target
  [[nodiscard]] std::uint64_t free_bytes() const;

  /// Whether the work directory is in the target itself: because it is a mount point, because its folder cannot be
  /// written, or because some of its entries stay (then keeps() is true).
  [[nodiscard]] bool is_inside() const noexcept { return inside_; }
  [[nodiscard]] bool keeps() const noexcept { return keeps_; }
  void set_inside(bool inside) noexcept { inside_ = inside; }
  void forget_paths() noexcept { options_.paths = {}; }  ///< their owner does not keep them

  /// Where the work directory is, or will be.
  struct WorkLocation {
    Descriptor root;
    std::string name, path;  // in `root`; `path` is that of `root`, for messages
  };
  [[nodiscard]] WorkLocation work_location() const;
  [[nodiscard]] std::string beside_name() const;

  /// The directory that is replaced, as it was when it was decided that it may be: which one, and all paths in it.
  struct Old {
    struct stat status {};
    std::vector<std::string> tree{};
  };
  /// Judges a directory that is to be replaced. Nothing if there is none.
  [[nodiscard]] std::optional<Old> old() const;

  /// The inodes of the files that are replaced; 0 where there is none.
  struct Judged {
    std::uint64_t file = 0, manifest = 0;
  };
  [[nodiscard]] Judged judge_files() const;
  void judge_replaced(int work) const;
  void judge_as_it_is() const;
  void judge_entries(const std::vector<std::string>& entries) const;
  [[nodiscard]] std::vector<std::string> judge_leaving(int directory, std::span<const std::string> fresh) const;
  void judge_tree(const Old& old, int directory, const std::vector<std::string>& entries,
                  std::span<const std::string> fresh) const;

  [[nodiscard]] std::vector<std::string> entries_of(int directory) const;
  [[nodiscard]] bool has_entry(int at, const std::string& name) const;
  /// Whether entries of this name are replaced at all, in the directory that has the work directory.
  [[nodiscard]] bool may_be_replaced(std::string_view entry) const;

  [[noreturn]] void refuse_existing(const std::string& shown, std::string_view fact, Remedy remedy = {}) const;
  [[noreturn]] void refuse_unfinished() const;
  [[noreturn]] void fail(std::string_view action) const;  ///< errno says why

 private:
  void judge_target();
  void judge_permission(const std::string& name, const std::string& shown, const struct stat& status) const;
  void judge_folders(int directory, const std::vector<std::string>& leaving) const;
  std::uint64_t judge_file(int at, const std::string& name, const std::string& shown, bool (*may_replace)(int)) const;
  [[nodiscard]] std::vector<std::string> judge_old(int directory) const;
  [[nodiscard]] std::vector<std::string> tree_of(int directory, const std::vector<std::string>& entries,
                                                 std::span<const std::string> fresh) const;
  [[nodiscard]] bool must_be_inside(const struct stat& status) const;
  void refuse_interrupted(int root, const std::string& work_name) const;

  Kind kind_;
  Options options_;
  bool inside_ = false;
  bool keeps_ = false;          // inside, because some entries stay
  std::string shown_;           // as the user wrote it
  std::filesystem::path path_;  // the same without slashes at its end
  std::string name_;
  Descriptor parent_;
};

/// Whether a directory with these entries is a model: nibble's own, or weights with their configuration.
[[nodiscard]] bool is_model(const std::vector<std::string>& entries);

}  // namespace nibble
