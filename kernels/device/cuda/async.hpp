// mbarriers, bulk copies and TMA on a GPU. They trap in code for sm_80, which devices newer than 9.0 run too: a kernel
// that calls them says needs_sm90a, and the host launches it where is_loaded() is true.
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
NIBBLE_DEVICE void mbar_wait_cluster([[maybe_unused]] Shared<u64> mbarrier, [[maybe_unused]] u32 parity) {
  NIBBLE_SM90(
      "{\n.reg .pred done;\nwait_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait_%=;\n}" ::"r"(mbarrier.address()),
      "r"(parity)
      : "memory");
}

// -- Clusters

NIBBLE_DEVICE u32 cluster_rank() {
  u32 rank = 0;
  NIBBLE_SM90("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
NIBBLE_DEVICE void cluster_arrive() { NIBBLE_SM90("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
/// Orders nothing but the initialization of mbarriers before an mbar_init_fence, and so need not wait for loads. The
/// lanes of a warp have to execute an aligned barrier together, and one of them may have made the mbarriers.
NIBBLE_DEVICE void cluster_arrive_relaxed() {
  __syncwarp();
  NIBBLE_SM90("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
NIBBLE_DEVICE void cluster_wait() { NIBBLE_SM90("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
NIBBLE_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// An address in the shared memory of a block of the cluster.
template <class T> class ClusterShared {
 public:
  NIBBLE_DEVICE explicit ClusterShared(u32 address) : address_(address) {}
  NIBBLE_DEVICE ClusterShared operator+(i64 i) const {
    return ClusterShared(address_ + static_cast<u32>(i) * u32{sizeof(T)});
  }
  template <class U> NIBBLE_DEVICE ClusterShared<U> as() const { return ClusterShared<U>(address_); }
  NIBBLE_DEVICE u32 address() const { return address_; }

 private:
  u32 address_;
};

template <class T> NIBBLE_DEVICE ClusterShared<T> mapa(Shared<T> at, [[maybe_unused]] u32 rank) {
  u32 address = at.address();
  NIBBLE_SM90("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
  return ClusterShared<T>(address);
}
template <class T> NIBBLE_DEVICE std::remove_const_t<T> ld_cluster([[maybe_unused]] ClusterShared<T> at) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  if constexpr (sizeof(T) == 16) {
    u32x4 words{};
    NIBBLE_SM90("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
                : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                : "r"(at.address())
                : "memory");
    return detail::bits_as<std::remove_const_t<T>>(words);
  } else if constexpr (sizeof(T) == 8) {
    u32x2 words{};
    NIBBLE_SM90("ld.shared::cluster.v2.b32 {%0, %1}, [%2];"
                : "=r"(words.x), "=r"(words.y)
                : "r"(at.address())
                : "memory");
    return detail::bits_as<std::remove_const_t<T>>(words);
  } else {
    u32 word = 0;
    NIBBLE_SM90("ld.shared::cluster.b32 %0, [%1];" : "=r"(word) : "r"(at.address()) : "memory");
    return detail::bits_as<std::remove_const_t<T>>(word);
  }
}
template <class T>
NIBBLE_DEVICE void st_cluster([[maybe_unused]] ClusterShared<T> at, [[maybe_unused]] std::type_identity_t<T> value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  if constexpr (sizeof(T) == 16) {
    [[maybe_unused]] const auto words = detail::bits_as<u32x4>(value);
    NIBBLE_SM90("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at.address()), "r"(words.x), "r"(words.y),
                "r"(words.z), "r"(words.w)
                : "memory");
  } else if constexpr (sizeof(T) == 8) {
    [[maybe_unused]] const auto words = detail::bits_as<u32x2>(value);
    NIBBLE_SM90("st.shared::cluster.v2.b32 [%0], {%1, %2};" ::"r"(at.address()), "r"(words.x), "r"(words.y) : "memory");
  } else {
    NIBBLE_SM90("st.shared::cluster.b32 [%0], %1;" ::"r"(at.address()), "r"(detail::bits_as<u32>(value)) : "memory");
  }
}
NIBBLE_DEVICE void mbar_arrive_cluster([[maybe_unused]] ClusterShared<u64> mbarrier) {
  NIBBLE_SM90("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(mbarrier.address()) : "memory");
}
/// The same after what this thread has read, but not for what it wrote: others may write there once they have waited.
/// The thread has to have used the values that it read from other blocks, so that they have arrived: this releases them
/// to its own block alone.
NIBBLE_DEVICE void mbar_arrive_cluster_after_reads([[maybe_unused]] ClusterShared<u64> mbarrier) {
  NIBBLE_SM90("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(mbarrier.address()) : "memory");
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

namespace detail {

/// The driver's function is found at run time, so that the library needs no driver to be loaded; once, because a launch
/// makes several maps.
inline auto tensor_map_encoder() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
          "cuTensorMapEncodeTiled");
    if (found == nullptr) throw LaunchError(static_cast<int>(cudaErrorNotSupported), "no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return function;
}

}  // namespace detail

inline TensorMap make_tensor_map(const void* base, u32 element_bytes, u64 inner, u64 outer, u64 row_bytes,
                                 u32 box_inner, u32 box_outer, Swizzle swizzle) {
  const CUtensorMapDataType type = element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  const cuuint64_t sizes[] = {inner, outer}, strides[] = {row_bytes};
  const cuuint32_t box[] = {box_inner, box_outer}, steps[] = {1, 1};
  TensorMap map;
  const CUresult result = detail::tensor_map_encoder()(
      &map, type, 2, const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle == Swizzle::bytes128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw LaunchError(static_cast<int>(result), "cuTensorMapEncodeTiled");
  return map;
}

#undef NIBBLE_SM90

}  // namespace nibble::device
