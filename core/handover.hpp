#pragma once

#include <atomic>

namespace nibble {

/// Makes a guarantee of oneTBB's pipeline visible: a stage sees what the previous stage did with an object. oneTBB
/// gives this guarantee in a way that ThreadSanitizer cannot see, so every hand-over would look like a race. In a
/// pipeline this costs one uncontended atomic per chunk of a megabyte, and real races between chunks are still found.
class Handover {
 public:
  Handover() = default;
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;
  ~Handover() { take(); }  // also where a pipeline ends with an error, between two stages

  void give() noexcept { given_.store(true, std::memory_order_release); }
  void take() const noexcept { static_cast<void>(given_.load(std::memory_order_acquire)); }

 private:
  std::atomic<bool> given_{false};
};

/// Holds an object for the length of a scope.
class Turn {
 public:
  explicit Turn(Handover& handover) noexcept : handover_(handover) { handover_.take(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { handover_.give(); }

 private:
  Handover& handover_;
};

}  // namespace nibble
