#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace nibble {

/// Byte buffers that are lent and come back, so that a chunk costs no allocation and memory is touched once.
/// Thread-safe. Loans must not outlive the pool.
class Buffers {
 public:
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

    [[nodiscard]] std::span<std::byte> bytes() const { return std::span(buffer_.data.get(), size_); }

   private:
    friend class Buffers;
    void swap(Loan& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(buffer_, other.buffer_);
      std::swap(size_, other.size_);
    }

    struct Buffer {
      std::unique_ptr<std::byte[]> data;
      std::size_t capacity = 0;
    };
    Buffers* pool_ = nullptr;
    Buffer buffer_;
    std::size_t size_ = 0;
  };

  /// `size` bytes of unspecified content. Takes the smallest buffer that fits, or makes one.
  [[nodiscard]] Loan lend(std::size_t size) {
    Loan loan;
    loan.pool_ = this;
    loan.size_ = size;
    {
      const std::scoped_lock lock(mutex_);
      auto best = free_.end();
      for (auto it = free_.begin(); it != free_.end(); ++it)
        if (it->capacity >= size && (best == free_.end() || it->capacity < best->capacity)) best = it;
      if (best != free_.end()) {
        loan.buffer_ = std::move(*best);
        free_.erase(best);
        return loan;
      }
      if (!free_.empty()) free_.pop_back();  // too small: let it go rather than hoard every size
    }
    loan.buffer_ = {std::make_unique_for_overwrite<std::byte[]>(size), size};
    return loan;
  }

 private:
  void take_back(Loan::Buffer buffer) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(std::move(buffer));
  }

  std::mutex mutex_;
  std::vector<Loan::Buffer> free_;
};

}  // namespace nibble
