#include "core/workers.hpp"

#include <fmt/format.h>
#include <oneapi/tbb/info.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/handover.hpp"

namespace nibble {
namespace {

// All workers meet here. Each waits for the others, but not beyond the deadline.
class Meeting {
 public:
  explicit Meeting(unsigned expected) : expected_(expected) { begun_.give(); }

  void arrive() {
    begun_.take();
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait_until(lock, deadline_, [&] { return arrived_ >= expected_; });
  }

 private:
  Handover begun_;  // to the threads of oneTBB
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned expected_;
  unsigned arrived_ = 0;
  // On a busy machine, go on with threads that come late.
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
};

// How many threads can run beside this one, up to `wanted`. All exist at the same time, with stacks that are at least
// as large as those of oneTBB.
unsigned startable(unsigned wanted) {
  if (wanted == 0) return 0;
  constexpr unsigned to_spare = 2;  // other libraries and other processes start threads, too
  std::mutex mutex;
  std::condition_variable ended;
  bool end = false;
  std::vector<std::jthread> threads;
  try {
    while (threads.size() < wanted + to_spare)
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        ended.wait(lock, [&] { return end; });
      });
  } catch (const std::exception&) {  // no thread, or no memory for one: use those that started
  }
  const auto count = static_cast<unsigned>(threads.size());
  const unsigned free = count == wanted + to_spare ? wanted : (count > to_spare ? count - to_spare : 0) / 2;
  {
    const std::lock_guard lock(mutex);
    end = true;
  }
  ended.notify_all();
  return free;
}

}  // namespace

Workers::Workers(unsigned wanted) : wanted_(wanted), count_(1 + startable(wanted - 1)) {
  // Without this, oneTBB starts no more threads than there are processors, whatever the arena asks for. The limit holds
  // for the whole process: a lower one leaves fewer threads to the arena.
  if (count_ != wanted_ || static_cast<int>(count_) > tbb::info::default_concurrency())
    allow_.emplace(tbb::global_control::max_allowed_parallelism, count_);
  arena_.emplace(static_cast<int>(count_));
  if (count_ == 1) return;
  try {
    start_all();
  } catch (const std::runtime_error&) {  // another process took the threads first
    count_ = 1;
    arena_.emplace(1);
  }
}

// By default oneTBB starts a thread when there is a task for it, and by then the system may have none left. Nobody
// waits for these tasks through oneTBB, because it throws when it is refused a thread, and then never wakes those who
// wait.
void Workers::start_all() {
  const auto meeting = std::make_shared<Meeting>(count_);
  for (unsigned worker = 1; worker < count_; ++worker) arena_->enqueue([meeting] { meeting->arrive(); });
  meeting->arrive();
}

std::string Workers::warning() const {
  if (count_ == wanted_) return {};
  return fmt::format("the system allows only {} of {} threads", count_, wanted_);
}

}  // namespace nibble
