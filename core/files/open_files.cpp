#include "core/files/open_files.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace nibble {
namespace {

constexpr rlim_t share = 16;
constexpr rlim_t min_open = 4;
constexpr rlim_t max_open = 64;

}  // namespace

OpenFiles::OpenFiles() : OpenFiles(max_open) {
  struct ::rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) max_open_ = std::clamp(limit.rlim_cur / share, min_open, max_open);
}

OpenFiles::Use::~Use() {
  const std::lock_guard lock(files_.mutex_);
  --files_.files_[file_].users;
}

std::size_t OpenFiles::add(Descriptor file) {
  const std::lock_guard lock(mutex_);
  make_room();
  files_.push_back({std::move(file), 0, ++uses_});
  ++open_;
  return files_.size() - 1;
}

OpenFiles::Use OpenFiles::use(std::size_t file, const std::function<Descriptor()>& open) {
  const std::lock_guard lock(mutex_);
  File& used = files_.at(file);
  if (used.descriptor.get() < 0) {
    make_room();
    used.descriptor = open();
    ++open_;
  }
  used.last_use = ++uses_;
  ++used.users;
  return {*this, file, used.descriptor.get()};
}

// If all are in use, one more is opened. There are never more of these than threads.
void OpenFiles::make_room() {
  while (open_ >= max_open_) {
    File* oldest = nullptr;
    for (File& file : files_)
      if (file.descriptor.get() >= 0 && file.users == 0 && (oldest == nullptr || file.last_use < oldest->last_use))
        oldest = &file;
    if (oldest == nullptr) return;
    oldest->descriptor = Descriptor();
    --open_;
  }
}

}  // namespace nibble
