// Threads of the simulated device: each has a stack of its own and hands the processor over by name.
//
// x86-64 and aarch64 switch by 15 to 20 instructions of ours; other machines use ucontext, which asks the kernel to
// save the signal mask at each switch and is 3 to 4 times slower.
#pragma once
#include <cstddef>
#if !defined(__x86_64__) && !defined(__aarch64__)
#define NIBBLE_FIBER_UCONTEXT
#include <ucontext.h>
#endif

namespace nibble::device::simulator {

/// What execution can switch to: a fiber, or the thread of the machine that runs them. A fiber stays on one
/// thread of the machine and must not switch inside a catch block.
class Fiber {
 public:
  static constexpr std::size_t stack_bytes = std::size_t{64} << 10;

  /// Makes this a fiber that begins at `entry`, which never returns. `colour` bytes at the top stay unused: stacks
  /// that begin at equal distances would compete for the same sets of the cache.
  void start(char* stack, std::size_t colour, void (*entry)());

  /// Leaves `from`, the one that runs, and goes on with `to`. `from` never runs again if `last`.
  static void change(Fiber& from, Fiber& to, bool last = false);

  /// The first call of an entry function.
  static void entered();

 private:
#if defined(NIBBLE_FIBER_UCONTEXT)
  ucontext_t context_{};
#else
  void* stack_pointer_ = nullptr;
#endif
  const void* bottom_ = nullptr;  // AddressSanitizer wants to know the stack that is switched to
  std::size_t size_ = 0;
};

/// Stacks with a guard page below each.
class Stacks {
 public:
  Stacks() = default;
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  void reserve(std::size_t count);
  [[nodiscard]] char* operator[](std::size_t i) const;

 private:
  void release() noexcept;

  char* memory_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace nibble::device::simulator
