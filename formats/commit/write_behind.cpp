#include "formats/commit/write_behind.hpp"

#include <fcntl.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "formats/commit/writer.hpp"

namespace nibble {
namespace {

constexpr std::size_t page = Buffers::page;

std::uint64_t floor(std::uint64_t offset) { return offset / page * page; }
std::uint64_t ceil(std::uint64_t offset) { return floor(offset + page - 1); }

}  // namespace

WriteBehind::WriteBehind(OutputFile& file, int directory, const std::string& name, std::size_t max_tasks)
    : file_(file), direct_(file.open_direct(directory, name)), max_tasks_(max_tasks) {}

WriteBehind::~WriteBehind() {
  {
    const std::scoped_lock lock(mutex_);
    tasks_.clear();
    stopping_ = true;
  }
  to_do_.notify_all();
}

void WriteBehind::write(std::uint64_t offset, Buffers::Loan loan) {
  const std::span<const std::byte> bytes = loan.bytes();
  if (tail_end_ != offset) write_tail();
  const bool follows = tail_end_ == offset;
  const std::uint64_t begin = offset - (follows ? tail_bytes_ : 0);
  const std::uint64_t end = offset + bytes.size();
  const std::uint64_t first = ceil(begin), last = floor(end);
  const bool is_aligned = loan.before().size() == offset % page;
  if (direct_.get() < 0 || !is_aligned || last < first + Writer::min_behind_bytes) {
    write_tail();
    file_.write_at(offset, bytes);
    return;
  }
  // Before this buffer, there is room for the beginning of its page.
  if (follows) std::copy_n(tail_.begin(), tail_bytes_, loan.before().end() - static_cast<std::ptrdiff_t>(tail_bytes_));
  const std::span<const std::byte> whole(bytes.data() - (offset - begin), end - begin);
  if (first > begin) file_.write_at(begin, whole.first(first - begin));
  tail_bytes_ = end - last;
  tail_end_ = end;
  std::copy_n(whole.end() - static_cast<std::ptrdiff_t>(tail_bytes_), tail_bytes_, tail_.begin());
  enqueue({first, whole.subspan(first - begin, last - first), std::move(loan)});
}

void WriteBehind::write_tail() {
  if (tail_bytes_ > 0) file_.write_at(tail_end_ - tail_bytes_, std::span(tail_).first(tail_bytes_));
  tail_bytes_ = 0;
}

void WriteBehind::enqueue(Task task) {
  std::unique_lock lock(mutex_);
  if (tasks_.size() + in_work_ >= max_tasks_) to_do_.notify_all();
  done_.wait(lock, [&] { return tasks_.size() + in_work_ < max_tasks_ || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  tasks_.push_back(std::move(task));
  if (threads_.size() < std::min(max_tasks_, tasks_.size() + in_work_) && !add_thread() && threads_.empty()) {
    task = std::move(tasks_.back());
    tasks_.pop_back();
    lock.unlock();
    return file_.write_direct(direct_.get(), task.offset, task.bytes);
  }
  ++to_wake_;
}

void WriteBehind::wake() {
  std::unique_lock lock(mutex_);
  std::size_t count = std::exchange(to_wake_, 0);
  lock.unlock();
  for (; count > 0; --count) to_do_.notify_one();
}

// If the system allows no more threads, the existing ones do the work, if necessary the calling thread.
bool WriteBehind::add_thread() {
  try {
    threads_.emplace_back([this] { work(); });
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

void WriteBehind::drain() {
  write_tail();
  wake();
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return (tasks_.empty() && in_work_ == 0) || failure_; });
  if (failure_) std::rethrow_exception(failure_);
}

void WriteBehind::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    to_do_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    ++in_work_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      file_.write_direct(direct_.get(), task.offset, task.bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    task = {};  // free the buffer before anybody waits for it
    lock.lock();
    --in_work_;
    if (failure && !failure_) failure_ = failure;
    done_.notify_all();
  }
}

}  // namespace nibble
