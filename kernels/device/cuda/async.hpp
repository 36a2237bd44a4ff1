// mbarriers, bulk copies, TMA and wgmma on a GPU. Code for sm_80 has none of them: there these functions trap, and the
// host must not launch what calls them (capability()).
#pragma once
#include <cuda.h>

#include "kernels/device/cuda/launch.hpp"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define NIBBLE_SM90(...) asm volatile(__VA_ARGS__)
#else
#define NIBBLE_SM90(...) __trap()
#endif

namespace nibble::device {

// -- mbarriers

NIBBLE_DEVICE void mbar_init([[maybe_unused]] Shared<u64> mbarrier, [[maybe_unused]] u32 arrivals) {
  NIBBLE_SM90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mbarrier.address()), "r"(arrivals) : "memory");
}
NIBBLE_DEVICE void mbar_init_fence() { NIBBLE_SM90("fence.mbarrier_init.release.cluster;" ::: "memory"); }
NIBBLE_DEVICE void mbar_arrive([[maybe_unused]] Shared<u64> mbarrier) {
  NIBBLE_SM90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mbarrier.address()) : "memory");
}
NIBBLE_DEVICE void mbar_expect_tx_arrive([[maybe_unused]] Shared<u64> mbarrier, [[maybe_unused]] u32 bytes) {
  NIBBLE_SM90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier.address()), "r"(bytes)
              : "memory");
}
NIBBLE_DEVICE void mbar_wait([[maybe_unused]] Shared<u64> mbarrier, [[maybe_unused]] u32 parity) {
  NIBBLE_SM90(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait_%=;\n}" ::"r"(mbarrier.address()),
      "r"(parity)
      : "memory");
}

// -- Copies by the asynchronous proxy

NIBBLE_DEVICE void bulk_g2s([[maybe_unused]] Shared<u8> to, [[maybe_unused]] Global<const u8> from,
                            [[maybe_unused]] u32 bytes, [[maybe_unused]] Shared<u64> mbarrier) {
  NIBBLE_SM90(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to.address()),
      "l"(__cvta_generic_to_global(from.unchecked())), "r"(bytes), "r"(mbarrier.address())
      : "memory");
}

/// A matrix in global memory as TMA sees it; a kernel has it as a member.
using TensorMap = CUtensorMap;

NIBBLE_DEVICE void tma_load_2d([[maybe_unused]] Shared<u8> to, [[maybe_unused]] const TensorMap& map,
                               [[maybe_unused]] i32 x, [[maybe_unused]] i32 y, [[maybe_unused]] Shared<u64> mbarrier) {
  NIBBLE_SM90(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          to.address()),
      "l"(&map), "r"(mbarrier.address()), "r"(x), "r"(y)
      : "memory");
}
NIBBLE_DEVICE void fence_proxy_async() { NIBBLE_SM90("fence.proxy.async.shared::cta;" ::: "memory"); }

/// The driver's function is found at run time, so that the library needs no driver to be loaded.
inline TensorMap make_tensor_map(const void* base, u32 element_bytes, u64 inner, u64 outer, u64 row_bytes,
                                 u32 box_inner, u32 box_outer, Swizzle swizzle) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  detail::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
                "cuTensorMapEncodeTiled");
  if (function == nullptr) throw LaunchError(static_cast<int>(cudaErrorNotSupported), "no cuTensorMapEncodeTiled");
  const CUtensorMapDataType type = element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  const cuuint64_t sizes[] = {inner, outer}, strides[] = {row_bytes};
  const cuuint32_t box[] = {box_inner, box_outer}, steps[] = {1, 1};
  TensorMap map;
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &map, type, 2, const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle == Swizzle::bytes128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw LaunchError(static_cast<int>(result), "cuTensorMapEncodeTiled");
  return map;
}

// -- wgmma. The empty statements keep the compiler from moving accesses to the accumulators across.

template <int R> NIBBLE_DEVICE void wgmma_fence(float (&d)[R]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  NIBBLE_UNROLL for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  __trap();
#endif
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

#define NIBBLE_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIBBLE_D8(d, i) NIBBLE_D4(d, i), NIBBLE_D4(d, i + 4)
#define NIBBLE_WGMMA8(type)                                                                                           \
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32." type "." type " {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;" \
               : NIBBLE_D4(d, 0)                                                                                      \
               : "l"(a), "l"(b))
#define NIBBLE_WGMMA16(type)                                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type \
               " {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 0, 0;" \
               : NIBBLE_D8(d, 0)                                           \
               : "l"(a), "l"(b))
#define NIBBLE_WGMMA32(type)                                                                                       \
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                         \
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;" \
               : NIBBLE_D8(d, 0), NIBBLE_D8(d, 8)                                                                  \
               : "l"(a), "l"(b))
#define NIBBLE_WGMMA64(type)                                                                       \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                         \
               " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
               "%32, %33, 1, 1, 1, 0, 0;"                                                          \
               : NIBBLE_D8(d, 0), NIBBLE_D8(d, 8), NIBBLE_D8(d, 16), NIBBLE_D8(d, 24)              \
               : "l"(a), "l"(b))

/// 64 rows by N columns by 16; N is 8, 16, 32 or 64.
template <int N, int R> NIBBLE_DEVICE void wgmma_bf16(float (&d)[R], [[maybe_unused]] u64 a, [[maybe_unused]] u64 b) {
  static_assert(R == N / 2 && (N == 8 || N == 16 || N == 32 || N == 64));
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (N == 8) NIBBLE_WGMMA8("bf16");
  if constexpr (N == 16) NIBBLE_WGMMA16("bf16");
  if constexpr (N == 32) NIBBLE_WGMMA32("bf16");
  if constexpr (N == 64) NIBBLE_WGMMA64("bf16");
#else
  __trap();
#endif
}
template <int N, int R> NIBBLE_DEVICE void wgmma_f16(float (&d)[R], [[maybe_unused]] u64 a, [[maybe_unused]] u64 b) {
  static_assert(R == N / 2 && (N == 8 || N == 16 || N == 32 || N == 64));
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (N == 8) NIBBLE_WGMMA8("f16");
  if constexpr (N == 16) NIBBLE_WGMMA16("f16");
  if constexpr (N == 32) NIBBLE_WGMMA32("f16");
  if constexpr (N == 64) NIBBLE_WGMMA64("f16");
#else
  __trap();
#endif
}

#undef NIBBLE_WGMMA8
#undef NIBBLE_WGMMA16
#undef NIBBLE_WGMMA32
#undef NIBBLE_WGMMA64
#undef NIBBLE_D8
#undef NIBBLE_D4
#undef NIBBLE_SM90

}  // namespace nibble::device
