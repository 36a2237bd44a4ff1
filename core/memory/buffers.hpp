#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/memory/huge_pages.hpp"

namespace nibble {

/// Byte buffers that are lent and returned, so that a chunk needs no allocation and memory is first touched once.
/// Thread-safe. Loans must not outlive the pool.
///
/// A buffer's address depends on the file offset of its bytes: the kernel copies with `rep movsb`, which on AMD
/// processors is 4 times slower if the target is up to 63 bytes after the source, modulo 4096 (measured on Zen 3 with
/// pread() of 1 MiB: 2.2 GB/s instead of 9). So address and offset differ by half a page; for direct I/O they are equal
/// modulo a page.
class Buffers {
  static constexpr std::size_t cache_line = 64;

 public:
  static constexpr std::size_t page = 4096;

  /// How the bytes are transferred from the file or to it.
  enum class Way { copied, direct };

  class Loan {
   public:
    Loan() = default;
    Loan(Loan&& other) noexcept { swap(other); }
    Loan& operator=(Loan&& other) noexcept {
      Loan(std::move(other)).swap(*this);
      return *this;
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() {
      if (pool_ != nullptr) pool_->take_back(std::move(buffer_));
    }

    [[nodiscard]] std::span<std::byte> bytes() const { return std::span(buffer_.get() + shift_, size_); }

    /// The part of the page before bytes(): for a buffer with Way::direct, `position` modulo the page size.
    [[nodiscard]] std::span<std::byte> before() const { return std::span(buffer_.get(), shift_); }

   private:
    friend class Buffers;
    void swap(Loan& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(buffer_, other.buffer_);
      std::swap(size_, other.size_);
      std::swap(shift_, other.shift_);
    }

    struct Free {
      std::pmr::memory_resource* memory;
      std::size_t capacity;
      void operator()(std::byte* data) const noexcept { memory->deallocate(data, capacity, page); }
    };
    using Buffer = std::unique_ptr<std::byte[], Free>;
    Buffers* pool_ = nullptr;
    Buffer buffer_;
    std::size_t size_ = 0;
    std::size_t shift_ = 0;
  };

  /// The memory must outlive the pool. If null, `new` allocates, and large buffers are made of huge pages.
  explicit Buffers(std::pmr::memory_resource* memory = nullptr)
      : memory_(memory == nullptr ? huge_new_delete_resource() : memory) {}
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() { const std::scoped_lock lock(mutex_); }  // sees what other threads gave back

  /// `size` bytes of unspecified content, to be read from or written to `position` in a file; aligned to a cache line
  /// if they are copied. Lends the smallest buffer that fits (of several, the one returned last, which may be in
  /// cache), or a new one.
  [[nodiscard]] Loan lend(std::size_t size, std::uint64_t position, Way way = Way::copied) {
    Loan loan;
    loan.size_ = size;
    loan.shift_ = way == Way::direct ? position % page : (position + page / 2) % page / cache_line * cache_line;
    size += page;
    Loan::Buffer too_small;  // freed after the lock is released, because that may take long
    {
      const std::scoped_lock lock(mutex_);
      auto best = free_.end();
      for (auto it = free_.begin(); it != free_.end(); ++it)
        if (capacity(*it) >= size && (best == free_.end() || capacity(*it) <= capacity(*best))) best = it;
      if (best != free_.end()) {
        loan.pool_ = this;
        loan.buffer_ = std::move(*best);
        free_.erase(best);
        return loan;
      }
      if (!free_.empty()) {
        too_small = std::move(free_.back());  // free it instead of collecting buffers of every size
        free_.pop_back();
      } else {
        free_.reserve(++made_);  // so that taking a buffer back cannot fail
      }
    }
    too_small = {};
    loan.buffer_ = {static_cast<std::byte*>(memory_->allocate(size, page)), {memory_, size}};
    loan.pool_ = this;
    return loan;
  }

 private:
  static std::size_t capacity(const Loan::Buffer& buffer) { return buffer.get_deleter().capacity; }

  void take_back(Loan::Buffer buffer) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(std::move(buffer));
  }

  std::pmr::memory_resource* memory_;
  std::mutex mutex_;
  std::vector<Loan::Buffer> free_;
  std::size_t made_ = 0;  // at most, at a time
};

}  // namespace nibble
