// wgmma and setmaxnreg on a GPU: sm_90a's alone. Elsewhere these functions trap. So a kernel that calls them says
// needs_sm90a, and the host launches it where is_loaded() is true.
#pragma once
#include "kernels/device/cuda/launch.hpp"
#include "kernels/device/types.hpp"

namespace nibble::device {

// -- Fences and waits. The empty statements keep the compiler from moving accesses to the registers across.

template <int R> NIBBLE_DEVICE void wgmma_fence(float (&d)[R]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  NIBBLE_UNROLL for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}
template <int R, int Tiles> NIBBLE_DEVICE void wgmma_fence(float (&d)[R], [[maybe_unused]] u32 (&a)[Tiles][4]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  NIBBLE_UNROLL for (int i = 0; i < 4 * Tiles; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
#endif
  wgmma_fence(d);
}
NIBBLE_DEVICE void wgmma_commit() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
}
template <int Left, int R> NIBBLE_DEVICE void wgmma_wait(float (&d)[R]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
  NIBBLE_UNROLL for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
#else
  __trap();
#endif
}
template <int Left, int R, int Tiles>
NIBBLE_DEVICE void wgmma_wait(float (&d)[R], [[maybe_unused]] u32 (&a)[Tiles][4]) {
  wgmma_wait<Left>(d);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  NIBBLE_UNROLL for (int i = 0; i < 4 * Tiles; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
#endif
}

// -- Registers of a warpgroup

template <u32 N> NIBBLE_DEVICE void setmaxnreg_inc() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#else
  __trap();
#endif
}
template <u32 N> NIBBLE_DEVICE void setmaxnreg_dec() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#else
  __trap();
#endif
}

// -- Multiplications. An asm statement names its operands by number, so each N has a line with its numbers.

// clang-format off
#define NIBBLE_TEXT4 "%0, %1, %2, %3"
#define NIBBLE_TEXT8 NIBBLE_TEXT4 \
  ", %4, %5, %6, %7"
#define NIBBLE_TEXT16 NIBBLE_TEXT8 \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NIBBLE_TEXT32 NIBBLE_TEXT16 \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLE_TEXT48 NIBBLE_TEXT32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NIBBLE_TEXT64 NIBBLE_TEXT32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NIBBLE_TEXT96 NIBBLE_TEXT64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NIBBLE_TEXT128 NIBBLE_TEXT64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define NIBBLE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIBBLE_D8(i) NIBBLE_D4(i), NIBBLE_D4(i + 4)
#define NIBBLE_D16(i) NIBBLE_D8(i), NIBBLE_D8(i + 8)
#define NIBBLE_D32(i) NIBBLE_D16(i), NIBBLE_D16(i + 16)
#define NIBBLE_D48(i) NIBBLE_D32(i), NIBBLE_D16(i + 32)
#define NIBBLE_D64(i) NIBBLE_D32(i), NIBBLE_D32(i + 32)
#define NIBBLE_D96(i) NIBBLE_D64(i), NIBBLE_D32(i + 64)
#define NIBBLE_D128(i) NIBBLE_D64(i), NIBBLE_D64(i + 64)
// clang-format on
// A and B by their descriptors; the operands a, b, sum, major_a and major_b have the numbers at and after `first`.
#define NIBBLE_WGMMA_SHARED(type, n, count, a_at, b_at, sum_at, major_a_at, major_b_at)                            \
  asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %" sum_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" n         \
               "k16.f32." type "." type " {" NIBBLE_TEXT##count "}, %" a_at ", %" b_at ", sum, 1, 1, %" major_a_at \
                                                                ", %" major_b_at ";\n}"                            \
               : NIBBLE_D##count(0)                                                                                \
               : "l"(a), "l"(b), "r"(scale_d), "n"(static_cast<int>(A)), "n"(static_cast<int>(B)))
// A in four registers.
#define NIBBLE_WGMMA_REGISTERS(type, n, count, a0, a1, a2, a3, b_at, sum_at, major_b_at)                          \
  asm volatile("{\n.reg .pred sum;\nsetp.ne.b32 sum, %" sum_at ", 0;\nwgmma.mma_async.sync.aligned.m64n" n        \
               "k16.f32." type "." type " {" NIBBLE_TEXT##count "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b_at \
                                                                ", sum, 1, 1, %" major_b_at ";\n}"                \
               : NIBBLE_D##count(0)                                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d), "n"(static_cast<int>(B)))

namespace detail {

template <int N, int R>
constexpr bool is_wgmma = R == N / 2 &&
                          (N == 8 || N == 16 || N == 32 || N == 64 || N == 96 || N == 128 || N == 192 || N == 256);

}  // namespace detail

template <int N, Major A = Major::k, Major B = Major::k, int R>
NIBBLE_DEVICE void wgmma_bf16(float (&d)[R], [[maybe_unused]] u64 a, [[maybe_unused]] u64 b,
                              [[maybe_unused]] u32 scale_d = 1) {
  static_assert(detail::is_wgmma<N, R>);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (N == 8) NIBBLE_WGMMA_SHARED("bf16", "8", 4, "4", "5", "6", "7", "8");
  if constexpr (N == 16) NIBBLE_WGMMA_SHARED("bf16", "16", 8, "8", "9", "10", "11", "12");
  if constexpr (N == 32) NIBBLE_WGMMA_SHARED("bf16", "32", 16, "16", "17", "18", "19", "20");
  if constexpr (N == 64) NIBBLE_WGMMA_SHARED("bf16", "64", 32, "32", "33", "34", "35", "36");
  if constexpr (N == 96) NIBBLE_WGMMA_SHARED("bf16", "96", 48, "48", "49", "50", "51", "52");
  if constexpr (N == 128) NIBBLE_WGMMA_SHARED("bf16", "128", 64, "64", "65", "66", "67", "68");
  if constexpr (N == 192) NIBBLE_WGMMA_SHARED("bf16", "192", 96, "96", "97", "98", "99", "100");
  if constexpr (N == 256) NIBBLE_WGMMA_SHARED("bf16", "256", 128, "128", "129", "130", "131", "132");
#else
  __trap();
#endif
}
template <int N, Major B = Major::k, int R>
NIBBLE_DEVICE void wgmma_bf16(float (&d)[R], [[maybe_unused]] u32 (&a)[4], [[maybe_unused]] u64 b,
                              [[maybe_unused]] u32 scale_d = 1) {
  static_assert(detail::is_wgmma<N, R>);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (N == 8) NIBBLE_WGMMA_REGISTERS("bf16", "8", 4, "4", "5", "6", "7", "8", "9", "10");
  if constexpr (N == 16) NIBBLE_WGMMA_REGISTERS("bf16", "16", 8, "8", "9", "10", "11", "12", "13", "14");
  if constexpr (N == 32) NIBBLE_WGMMA_REGISTERS("bf16", "32", 16, "16", "17", "18", "19", "20", "21", "22");
  if constexpr (N == 64) NIBBLE_WGMMA_REGISTERS("bf16", "64", 32, "32", "33", "34", "35", "36", "37", "38");
  if constexpr (N == 96) NIBBLE_WGMMA_REGISTERS("bf16", "96", 48, "48", "49", "50", "51", "52", "53", "54");
  if constexpr (N == 128) NIBBLE_WGMMA_REGISTERS("bf16", "128", 64, "64", "65", "66", "67", "68", "69", "70");
  if constexpr (N == 192) NIBBLE_WGMMA_REGISTERS("bf16", "192", 96, "96", "97", "98", "99", "100", "101", "102");
  if constexpr (N == 256) NIBBLE_WGMMA_REGISTERS("bf16", "256", 128, "128", "129", "130", "131", "132", "133", "134");
#else
  __trap();
#endif
}
template <int N, Major A = Major::k, Major B = Major::k, int R>
NIBBLE_DEVICE void wgmma_f16(float (&d)[R], [[maybe_unused]] u64 a, [[maybe_unused]] u64 b,
                             [[maybe_unused]] u32 scale_d = 1) {
  static_assert(detail::is_wgmma<N, R>);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (N == 8) NIBBLE_WGMMA_SHARED("f16", "8", 4, "4", "5", "6", "7", "8");
  if constexpr (N == 16) NIBBLE_WGMMA_SHARED("f16", "16", 8, "8", "9", "10", "11", "12");
  if constexpr (N == 32) NIBBLE_WGMMA_SHARED("f16", "32", 16, "16", "17", "18", "19", "20");
  if constexpr (N == 64) NIBBLE_WGMMA_SHARED("f16", "64", 32, "32", "33", "34", "35", "36");
  if constexpr (N == 96) NIBBLE_WGMMA_SHARED("f16", "96", 48, "48", "49", "50", "51", "52");
  if constexpr (N == 128) NIBBLE_WGMMA_SHARED("f16", "128", 64, "64", "65", "66", "67", "68");
  if constexpr (N == 192) NIBBLE_WGMMA_SHARED("f16", "192", 96, "96", "97", "98", "99", "100");
  if constexpr (N == 256) NIBBLE_WGMMA_SHARED("f16", "256", 128, "128", "129", "130", "131", "132");
#else
  __trap();
#endif
}
template <int N, Major B = Major::k, int R>
NIBBLE_DEVICE void wgmma_f16(float (&d)[R], [[maybe_unused]] u32 (&a)[4], [[maybe_unused]] u64 b,
                             [[maybe_unused]] u32 scale_d = 1) {
  static_assert(detail::is_wgmma<N, R>);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (N == 8) NIBBLE_WGMMA_REGISTERS("f16", "8", 4, "4", "5", "6", "7", "8", "9", "10");
  if constexpr (N == 16) NIBBLE_WGMMA_REGISTERS("f16", "16", 8, "8", "9", "10", "11", "12", "13", "14");
  if constexpr (N == 32) NIBBLE_WGMMA_REGISTERS("f16", "32", 16, "16", "17", "18", "19", "20", "21", "22");
  if constexpr (N == 64) NIBBLE_WGMMA_REGISTERS("f16", "64", 32, "32", "33", "34", "35", "36", "37", "38");
  if constexpr (N == 96) NIBBLE_WGMMA_REGISTERS("f16", "96", 48, "48", "49", "50", "51", "52", "53", "54");
  if constexpr (N == 128) NIBBLE_WGMMA_REGISTERS("f16", "128", 64, "64", "65", "66", "67", "68", "69", "70");
  if constexpr (N == 192) NIBBLE_WGMMA_REGISTERS("f16", "192", 96, "96", "97", "98", "99", "100", "101", "102");
  if constexpr (N == 256) NIBBLE_WGMMA_REGISTERS("f16", "256", 128, "128", "129", "130", "131", "132", "133", "134");
#else
  __trap();
#endif
}

#undef NIBBLE_WGMMA_REGISTERS
#undef NIBBLE_WGMMA_SHARED
#undef NIBBLE_TEXT4
#undef NIBBLE_D4
#undef NIBBLE_TEXT8
#undef NIBBLE_D8
#undef NIBBLE_TEXT16
#undef NIBBLE_D16
#undef NIBBLE_TEXT32
#undef NIBBLE_D32
#undef NIBBLE_TEXT48
#undef NIBBLE_D48
#undef NIBBLE_TEXT64
#undef NIBBLE_D64
#undef NIBBLE_TEXT96
#undef NIBBLE_D96
#undef NIBBLE_TEXT128
#undef NIBBLE_D128

}  // namespace nibble::device
