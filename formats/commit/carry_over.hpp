#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files/file.hpp"

namespace nibble {

/// Copies what a model directory holds beside weights: tokenizer, generation configuration, chat template, remote code.
/// Links become what they point to. Files keep their modes. Left out are folders that held only weights; names that
/// begin with a dot; config.json and nibble.json at the top, which are written anew; an adapter of peft at the top, of
/// which transformers would load the base instead of this model; and weights of any container with their indexes, which
/// the converted ones replace. In folders, weights of modules and their indexes are carried over.
class CarryOver {
 public:
  /// `input` and `output` are what errors call the directories. `converted` names the weight files at the top that the
  /// output has in another form, `replaced` the other files there that belong to them, such as their index. Both must
  /// outlive this. `is_written` says which names at the top of the output are those of new files; no folder may have
  /// one.
  CarryOver(std::string input, std::string output, std::span<const std::string> converted,
            std::span<const std::string> replaced = {}, std::function<bool(const std::string&)> is_written = {})
      : input_(std::move(input)),
        output_(std::move(output)),
        converted_(converted),
        replaced_(replaced),
        is_written_(std::move(is_written)) {}

  /// How many bytes copy() will write. Throws Error(bad_input) if there are more or deeper folders than a model has, or
  /// if a folder has a name that a new file needs; Error(io) for what cannot be read.
  [[nodiscard]] std::uint64_t measure(const Directory& from);

  /// Copies and flushes. `to` is an open directory. Throws Error(input_changed) if a file is not what measure() found,
  /// by device, inode, size and modification time, or is new or gone: the weights may be those of another model.
  void copy(const Directory& from, int to);

  /// The paths of what the latest call carries over, files and folders.
  [[nodiscard]] const std::vector<std::string>& paths() const noexcept { return paths_; }

  /// Files of the latest call that were not copied although the user may expect them in the output, by path.
  struct LeftOut {
    std::vector<std::string> links{};    ///< that lead nowhere
    std::vector<std::string> special{};  ///< pipes, sockets and devices, which are not even opened
    std::vector<std::string> weights{};  ///< that were not converted
    std::vector<std::string> adapter{};  ///< of peft, at the top
  };
  [[nodiscard]] const LeftOut& left_out() const noexcept { return left_out_; }

  /// Links that the latest call met, to files and to folders, by path: also those that lead to weights, but none that
  /// begin with a dot.
  [[nodiscard]] const std::vector<std::string>& links() const noexcept { return links_; }

 private:
  using FolderId = std::pair<dev_t, ino_t>;
  struct Seen {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    time_t seconds = 0;
    long nanoseconds = 0;
    bool operator==(const Seen&) const = default;
  };

  void walk(const Directory& from, int to);
  [[nodiscard]] bool is_carried_over(const std::string& name, const std::string& path);
  void walk_directory(int from, int to, const std::string& path);
  void walk_subdirectory(int from, int to, const std::string& name, const std::string& path);
  void take_file(int from, int to, const std::string& name, const std::string& path);
  [[nodiscard]] std::string label_in(const std::string& path) const;
  [[noreturn]] void fail_in(const std::string& path, std::string_view action) const;
  [[noreturn]] void fail_out(const std::string& path, std::string_view action) const;

  std::string input_, output_;
  std::span<const std::string> converted_, replaced_;
  std::function<bool(const std::string&)> is_written_;
  std::vector<FolderId> above_;  // the folders from the top to the one that is looked at
  std::size_t folders_ = 0;
  std::uint64_t bytes_ = 0;
  LeftOut left_out_;
  std::vector<std::string> links_, paths_;
  std::map<std::string, Seen> seen_;  // by measure(), by path
  bool is_measured_ = false;
};

}  // namespace nibble
