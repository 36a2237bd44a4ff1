#pragma once

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <optional>
#include <string>
#include <utility>

namespace nibble {

/// Threads for one job, started before it: oneTBB ends the process if the system refuses it a thread later, which
/// `ulimit -u` and `ulimit -v` can cause.
class Workers {
 public:
  /// As many of `wanted`, which is at least 1, as the system allows. The thread that calls execute() is one of them.
  explicit Workers(unsigned wanted);

  [[nodiscard]] unsigned count() const noexcept { return count_; }
  /// A warning for the user; empty if all threads that were wanted could be started.
  [[nodiscard]] std::string warning() const;

  template <class Work> void execute(Work&& work) { arena_->execute(std::forward<Work>(work)); }

 private:
  void start_all();

  unsigned wanted_;
  unsigned count_;
  std::optional<tbb::global_control> allow_;
  std::optional<tbb::task_arena> arena_;
};

}  // namespace nibble
