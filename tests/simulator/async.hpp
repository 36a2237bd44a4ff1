// mbarriers, bulk copies, TMA and wgmma: what came with sm_90, on the simulator's side.
#pragma once
#include "tests/simulator/pointers.hpp"

namespace nibble::device {

// -- mbarriers

inline void mbar_init(Shared<u64> mbarrier, u32 arrivals, Site site = Site::current()) {
  mbarrier.checked(8, 8, site);
  simulator::current->block->init_mbarrier(*simulator::current, mbarrier.address(), arrivals, site);
}
/// After the init, by the same thread: for copies that report to the mbarrier.
inline void mbar_init_fence(Site site = Site::current()) {
  simulator::current->block->fence_mbarrier_init(*simulator::current, site);
}
inline void mbar_arrive(Shared<u64> mbarrier, Site site = Site::current()) {
  mbarrier.checked(8, 8, site);
  simulator::current->block->arrive(*simulator::current, mbarrier.address(), 0, site);
}
/// Arrives, and makes the phase wait for that many bytes of copies.
inline void mbar_expect_tx_arrive(Shared<u64> mbarrier, u32 bytes, Site site = Site::current()) {
  mbarrier.checked(8, 8, site);
  simulator::current->block->arrive(*simulator::current, mbarrier.address(), bytes, site);
}
/// Until the phase of that parity is complete; the first has parity 0.
inline void mbar_wait(Shared<u64> mbarrier, u32 parity, Site site = Site::current()) {
  mbarrier.checked(8, 8, site);
  simulator::current->block->wait_for_phase(*simulator::current, mbarrier.address(), parity, false, site);
}

/// The same if other blocks of the cluster arrive too, and for what they did before.
inline void mbar_wait_cluster(Shared<u64> mbarrier, u32 parity, Site site = Site::current()) {
  mbarrier.checked(8, 8, site);
  simulator::current->block->wait_for_phase(*simulator::current, mbarrier.address(), parity, true, site);
}

// -- Clusters: a kernel with a member `cluster` runs in groups of so many blocks, in a row along x

/// Of this block in its cluster.
inline u32 cluster_rank() { return simulator::current->block->rank(); }

/// A barrier of all threads of the cluster. Before a block's shared memory is accessed by others, and before a block
/// ends whose shared memory was accessed, there must be one.
inline void cluster_sync(Site site = Site::current()) {
  simulator::current->block->synchronize_cluster(*simulator::current, site);
}
/// Its two halves.
inline void cluster_arrive(Site site = Site::current()) {
  simulator::current->block->arrive_at_cluster(*simulator::current, site);
}
/// For mbarriers that were initialized before an mbar_init_fence. The simulator orders all else too; a GPU does not.
inline void cluster_arrive_relaxed(Site site = Site::current()) { cluster_arrive(site); }
inline void cluster_wait(Site site = Site::current()) {
  simulator::current->block->wait_for_cluster(*simulator::current, site);
}

/// A pointer into the shared memory of a block of the cluster: mapa.
template <class T> class ClusterShared {
 public:
  ClusterShared(Shared<T> at, simulator::Block& block) : at_(at), block_(&block) {}
  ClusterShared operator+(i64 i) const { return {at_ + i, *block_}; }
  template <class U> [[nodiscard]] ClusterShared<U> as() const { return {at_.template as<U>(), *block_}; }

  // For the layer alone.
  [[nodiscard]] simulator::Block& block() const { return *block_; }
  [[nodiscard]] u32 offset() const { return at_.address(); }
  char* checked(const Site& site) const {
    block_->visit(*simulator::current, site);
    return at_.checked(*block_, sizeof(T), sizeof(T), site);
  }

 private:
  Shared<T> at_;
  simulator::Block* block_;
};

/// The same address in the shared memory of another block.
template <class T> ClusterShared<T> mapa(Shared<T> at, u32 rank, Site site = Site::current()) {
  simulator::Block& own = *simulator::current->block;
  simulator::Block& other = own.block_of_cluster(rank, site);
  return {at.moved(own.same_array(at.begin(), other, site)), other};
}
/// 4, 8 or 16 bytes.
template <class T> std::remove_const_t<T> ld_cluster(ClusterShared<T> at, Site site = Site::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  const char* from = at.checked(site);
  const simulator::Thread& thread = *simulator::current;
  at.block().shared.read(thread.who, thread.clock, at.offset(), sizeof(T), site);
  std::remove_const_t<T> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T> void st_cluster(ClusterShared<T> at, std::type_identity_t<T> value, Site site = Site::current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  char* to = at.checked(site);
  const simulator::Thread& thread = *simulator::current;
  at.block().shared.write(thread.who, thread.clock, at.offset(), sizeof(T), site);
  std::memcpy(to, &value, sizeof value);
}
/// An arrival at an mbarrier of another block, which waits by mbar_wait_cluster.
inline void mbar_arrive_cluster(ClusterShared<u64> mbarrier, Site site = Site::current()) {
  mbarrier.checked(site);
  mbarrier.block().arrive(*simulator::current, mbarrier.offset(), 0, site);
}
/// For what the thread has read. The simulator does not tell it from the other.
inline void mbar_arrive_cluster_after_reads(ClusterShared<u64> mbarrier, Site site = Site::current()) {
  mbar_arrive_cluster(mbarrier, site);
}

// -- Copies by the asynchronous proxy

/// `bytes` consecutive bytes, a multiple of 16.
inline void bulk_g2s(Shared<u8> to, Global<const u8> from, u32 bytes, Shared<u64> mbarrier,
                     Site site = Site::current()) {
  if (bytes == 0 || bytes % 16 != 0)
    simulator::fail(simulator::Fault::misuse, site, "a bulk copy has 16, 32, ... bytes");
  to.checked(bytes, 16, site);
  mbarrier.checked(8, 8, site);
  simulator::check_global(from.unchecked(), bytes, 16, from.region(), simulator::Use::read, site);
  simulator::current->block->issue_bulk_copy(*simulator::current, {to.address(),
                                                                   bytes,
                                                                   mbarrier.address(),
                                                                   reinterpret_cast<const char*>(from.unchecked()),
                                                                   nullptr,
                                                                   0,
                                                                   0,
                                                                   {},
                                                                   site});
}
/// The box whose first element is column x of row y; what lies outside of the matrix becomes zero.
inline void tma_load_2d(Shared<u8> to, const TensorMap& map, i32 x, i32 y, Shared<u64> mbarrier,
                        Site site = Site::current()) {
  to.checked(map.box_bytes(), map.swizzle == Swizzle::none ? 128 : 1024, site);
  mbarrier.checked(8, 8, site);
  simulator::check_box(map, x, y, site);
  simulator::current->block->issue_bulk_copy(
      *simulator::current, {to.address(), map.box_bytes(), mbarrier.address(), nullptr, &map, x, y, {}, site});
}
/// Makes what this thread wrote to shared memory visible to the asynchronous proxy: wgmma and bulk copies.
inline void fence_proxy_async(Site site = Site::current()) {
  simulator::current->block->fence_proxy(*simulator::current, site);
}

// -- wgmma, 64 rows by N columns by 16; d of one thread has N / 2 accumulators

template <int R> void wgmma_fence(float (&d)[R], Site site = Site::current()) {
  simulator::current->block->fence_accumulators(*simulator::current, d, R, site);
}
/// The same, and for registers of A that have been written since the last fence.
template <int R, int Tiles> void wgmma_fence(float (&d)[R], u32 (&a)[Tiles][4], Site site = Site::current()) {
  simulator::current->block->fence_registers(*simulator::current, &a[0][0], 4 * Tiles, site);
  wgmma_fence(d, site);
}

namespace simulator {

template <int N, int R>
constexpr bool is_wgmma = R == N / 2 &&
                          (N == 8 || N == 16 || N == 32 || N == 64 || N == 96 || N == 128 || N == 192 || N == 256);

}  // namespace simulator

/// d += A * B, or d = A * B if scale_d is 0. A and B by descriptors: tile_descriptor.
template <int N, Major A = Major::k, Major B = Major::k, int R>
void wgmma_bf16(float (&d)[R], u64 a, u64 b, u32 scale_d = 1, Site site = Site::current()) {
  static_assert(simulator::is_wgmma<N, R>);
  simulator::current->block->multiply_tiles(*simulator::current,
                                            {d, N, a, b, nullptr, A, B, false, scale_d != 0, site});
}
template <int N, Major A = Major::k, Major B = Major::k, int R>
void wgmma_f16(float (&d)[R], u64 a, u64 b, u32 scale_d = 1, Site site = Site::current()) {
  static_assert(simulator::is_wgmma<N, R>);
  simulator::current->block->multiply_tiles(*simulator::current, {d, N, a, b, nullptr, A, B, true, scale_d != 0, site});
}
/// With a warp's 16 rows of A in registers, as for mma_bf16_16816. They must not change until the wait.
template <int N, Major B = Major::k, int R>
void wgmma_bf16(float (&d)[R], u32 (&a)[4], u64 b, u32 scale_d = 1, Site site = Site::current()) {
  static_assert(simulator::is_wgmma<N, R>);
  simulator::current->block->multiply_tiles(*simulator::current,
                                            {d, N, 0, b, a, Major::k, B, false, scale_d != 0, site});
}
template <int N, Major B = Major::k, int R>
void wgmma_f16(float (&d)[R], u32 (&a)[4], u64 b, u32 scale_d = 1, Site site = Site::current()) {
  static_assert(simulator::is_wgmma<N, R>);
  simulator::current->block->multiply_tiles(*simulator::current,
                                            {d, N, 0, b, a, Major::k, B, true, scale_d != 0, site});
}
inline void wgmma_commit(Site site = Site::current()) {
  simulator::current->block->commit_multiplies(*simulator::current, site);
}
/// All but the last `Left` committed groups have ended, and d has its values if none of it is in flight.
template <int Left, int R> void wgmma_wait(float (&)[R], Site site = Site::current()) {
  simulator::current->block->wait_for_multiplies(*simulator::current, Left, site);
}
/// The same for registers of A, which may be written again.
template <int Left, int R, int Tiles> void wgmma_wait(float (&d)[R], u32 (&)[Tiles][4], Site site = Site::current()) {
  wgmma_wait<Left>(d, site);
}

/// Each thread of the warpgroup has N registers from now on. Launch bounds decide how many it begins with
/// (max_registers); _inc waits until others of the block have given up enough.
template <u32 N> void setmaxnreg_inc(Site site = Site::current()) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  simulator::current->block->set_registers(*simulator::current, N, true, site);
}
template <u32 N> void setmaxnreg_dec(Site site = Site::current()) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  simulator::current->block->set_registers(*simulator::current, N, false, site);
}

}  // namespace nibble::device
