#include "tests/simulator/fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace nibble::device::simulator {
namespace {

constexpr std::size_t guard_bytes = std::size_t{64} << 10;  // a page of any machine
constexpr std::size_t stride = Fiber::stack_bytes + guard_bytes;

#if defined(__SANITIZE_ADDRESS__)
thread_local Fiber* left = nullptr;  // the fiber that was left last, for the one that begins
#endif

}  // namespace

// Saves the registers a function must preserve on the stack, changes the stack, restores them and returns there.
#if defined(__x86_64__)
extern "C" void nibble_switch_stack(void** save, void* to);
asm(R"(.text
.globl nibble_switch_stack
.hidden nibble_switch_stack
.type nibble_switch_stack,@function
nibble_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size nibble_switch_stack,.-nibble_switch_stack
)");
constexpr std::size_t frame_words = 16, return_word = 6;
#elif defined(__aarch64__)
extern "C" void nibble_switch_stack(void** save, void* to);
asm(R"(.text
.globl nibble_switch_stack
.hidden nibble_switch_stack
.type nibble_switch_stack,%function
nibble_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size nibble_switch_stack,.-nibble_switch_stack
)");
constexpr std::size_t frame_words = 24, return_word = 11;
#endif

void Fiber::start(char* stack, std::size_t colour, void (*entry)()) {
  bottom_ = stack;
  size_ = stack_bytes;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack, stack_bytes);  // a launch that failed leaves its frames behind
#endif
#if defined(NIBBLE_FIBER_UCONTEXT)
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = stack_bytes - colour;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
#else
  // Above the saved registers lies what the entry function would see as its caller: zeros, which end a backtrace.
  void** frame = reinterpret_cast<void**>(stack + stack_bytes - colour) - frame_words;
  std::memset(static_cast<void*>(frame), 0, frame_words * sizeof(void*));
  frame[return_word] = reinterpret_cast<void*>(entry);
  stack_pointer_ = frame;
#endif
}

void Fiber::change(Fiber& from, Fiber& to, [[maybe_unused]] bool last) {
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  left = &from;
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack, to.bottom_, to.size_);
#endif
#if defined(NIBBLE_FIBER_UCONTEXT)
  swapcontext(&from.context_, &to.context_);
#else
  nibble_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void Fiber::entered() {
#if defined(__SANITIZE_ADDRESS__)
  // The first fiber of a block learns here where the stack of the thread of the machine lies.
  __sanitizer_finish_switch_fiber(nullptr, &left->bottom_, &left->size_);
#endif
}

Stacks::~Stacks() { release(); }

void Stacks::release() noexcept {
  if (memory_ == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory_, count_ * stride);  // whatever is mapped there next has no frames
#endif
  munmap(memory_, count_ * stride);
  memory_ = nullptr;
  count_ = 0;
}

void Stacks::reserve(std::size_t count) {
  if (count <= count_) return;
  release();
  void* memory =
      mmap(nullptr, count * stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  memory_ = memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
  if (memory_ == nullptr) throw std::bad_alloc();
  count_ = count;
  for (std::size_t i = 0; i < count; ++i) mprotect(memory_ + i * stride, guard_bytes, PROT_NONE);
}

char* Stacks::operator[](std::size_t i) const { return memory_ + i * stride + guard_bytes; }

}  // namespace nibble::device::simulator
