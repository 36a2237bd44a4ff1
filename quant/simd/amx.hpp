#pragma once

#include <cstddef>

/// AMX tiles of 16 rows of 64 bytes, by number from 0 to 7. A number has to be a constant in the instruction, and the
/// intrinsics of g++ 12 take literals alone, and do not say that they read and write memory.
namespace nibble::amx {

inline constexpr std::size_t rows = 16, row_bytes = 64;

/// Whether the processor multiplies bf16 in AMX tiles and has the AVX-512 instructions of avx512.hpp, the system lets
/// this process use tiles, and the CPU target is AVX-512. The first call asks the system. Once it has agreed, the frame
/// of every signal in this process has 8 KiB more for tiles; where the alternate signal stack of a thread is too small
/// for that, Linux refuses.
[[nodiscard]] bool has_bf16();

#ifdef __x86_64__

/// Gives all tiles their size, on this thread, and sets them to 0.
void configure();
/// Has to be called after the last product, so that the system need not save tiles any more.
inline void release() { __asm__ volatile("tilerelease"); }

template <int tile> __attribute__((always_inline)) inline void zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(tile));
}

/// Makes what was written to memory before visible to load(), and what store() writes to what follows.
inline void order_memory() { __asm__ volatile("" ::: "memory"); }

/// Rows are `stride` bytes apart. These do not tell the compiler which memory they use: it would keep addresses in
/// memory, too, and products would take 1.1 times as long.
template <int tile> __attribute__((always_inline)) inline void load(const void* from, std::size_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile));
}
template <int tile> __attribute__((always_inline)) inline void store(void* to, std::size_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile));
}

/// Adds to 16 x 16 numbers in fp32 the products of 16 x 32 and 32 x 16 in bf16, of which the second has two numbers of
/// a column side by side.
template <int sum, int left, int right> __attribute__((always_inline)) inline void add_products() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(left), "i"(right));
}

#endif

}  // namespace nibble::amx
