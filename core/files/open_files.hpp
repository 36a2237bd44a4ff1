#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "core/files/file.hpp"

namespace nibble {

/// Files of which only some are open at a time, so that a model may have more shards than a process may have open
/// files. The one that was used least recently is closed first. Thread-safe.
class OpenFiles {
 public:
  /// Few enough to leave room for everything else: a sixteenth of what the process may have open, at most 64. Files are
  /// read in turn, so even a few are enough.
  OpenFiles();
  explicit OpenFiles(std::size_t max_open) : max_open_(max_open) {}

  /// A file in use stays open.
  class Use {
   public:
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use();
    [[nodiscard]] int fd() const noexcept { return fd_; }

   private:
    friend class OpenFiles;
    Use(OpenFiles& files, std::size_t file, int fd) : files_(files), file_(file), fd_(fd) {}

    OpenFiles& files_;
    std::size_t file_;
    int fd_;
  };

  /// Takes a file over. Returns its number.
  [[nodiscard]] std::size_t add(Descriptor file);

  /// `open` reopens a closed file; its exceptions propagate.
  [[nodiscard]] Use use(std::size_t file, const std::function<Descriptor()>& open);

 private:
  struct File {
    Descriptor descriptor;
    unsigned users = 0;
    std::uint64_t last_use = 0;
  };
  void make_room();

  std::mutex mutex_;
  std::size_t max_open_;
  std::size_t open_ = 0;
  std::uint64_t uses_ = 0;
  std::vector<File> files_;
};

}  // namespace nibble
