// The simulator's side of the device layer: the functions that CUDA's backend has too, each with its checks.
#pragma once
#include <bit>
#include <cmath>

#include "tests/simulator/arithmetic.hpp"
#include "tests/simulator/pointers.hpp"

namespace nibble::device {

// -- Global memory

template <class T> std::remove_const_t<T> ld(Global<T> at, Site site = Site::current()) {
  simulator::check_global(at.unchecked(), sizeof(T), sizeof(T), at.region(), simulator::Use::read, site);
  std::remove_const_t<T> value;
  std::memcpy(&value, at.unchecked(), sizeof value);
  return value;
}
template <class T> std::remove_const_t<T> ldg(Global<T> at, Site site = Site::current()) {
  simulator::check_constant(at.region(), site);
  return ld(at, site);
}
template <class T> std::remove_const_t<T> ldcs(Global<T> at, Site site = Site::current()) {
  simulator::check_early(at.region(), site);
  return ld(at, site);
}
template <class T> void st(Global<T> at, std::type_identity_t<T> value, Site site = Site::current()) {
  simulator::check_global(at.unchecked(), sizeof(T), sizeof(T), at.region(), simulator::Use::write, site);
  std::memcpy(static_cast<void*>(at.unchecked()), &value, sizeof value);
}
template <class T> void stcs(Global<T> at, std::type_identity_t<T> value, Site site = Site::current()) {
  st(at, value, site);
}
/// Asks for the line that holds the element, to be in the L2 cache when it is read. The element must exist.
template <class T> void prefetch_l2(Global<T> at, Site site = Site::current()) {
  simulator::check_prefetch(at.unchecked(), sizeof(T), at.region(), site);
}
/// For `bytes` consecutive bytes, a multiple of 16 from a multiple of 16 on. One thread asks for all of them.
template <class T> void prefetch_l2(Global<T> at, u32 bytes, Site site = Site::current()) {
  if (bytes == 0 || bytes % 16 != 0)
    simulator::fail(simulator::Fault::misuse, site, "a bulk prefetch has 16, 32, ... bytes");
  if (reinterpret_cast<std::uintptr_t>(at.unchecked()) % 16 != 0)
    simulator::fail(simulator::Fault::misaligned, site, "a bulk prefetch from an address that is no multiple of 16");
  simulator::check_prefetch(at.unchecked(), bytes, at.region(), site);
}

// -- Programmatic dependent launch

/// Until all that the kernels before this one wrote is there. Of a launch with Overlap::yes, every block calls it, and
/// before that (ordered by a barrier, if another thread of the block waits) it may read constants only, and must not
/// write global memory. In other launches it does nothing.
inline void dependency_wait(Site site = Site::current()) {
  simulator::current->block->wait_for_dependency(*simulator::current, site);
}
/// The next kernel on the stream may begin, if it is launched with Overlap::yes, as soon as every block has called this
/// or has ended. What this kernel writes is there for it after its dependency_wait, wherever it was written.
inline void dependency_launch() { simulator::current->block->launch_dependents(); }

namespace simulator {

// Replaces the value by combine(value) and returns the old one.
template <class T, class Combine> T atomic_update(Global<T> at, Combine combine, const Site& site) {
  const auto lock = current->block->lock_if_several();  // around the operation and what is noted of it
  check_global(at.unchecked(), sizeof(T), sizeof(T), at.region(), Use::atomic, site);
  current->block->atomic_operation(*current, reinterpret_cast<std::uintptr_t>(at.unchecked()));
  std::atomic_ref<T> value(*at.unchecked());
  T old = value.load();
  while (!value.compare_exchange_weak(old, combine(old))) {
  }
  return old;
}

}  // namespace simulator

template <class T> T atomic_add(Global<T> at, std::type_identity_t<T> value, Site site = Site::current()) {
  static_assert(std::is_same_v<T, u32> || std::is_same_v<T, u64> || std::is_same_v<T, i32> || std::is_same_v<T, float>);
  return simulator::atomic_update(
      at, [value](T old) { return static_cast<T>(old + value); }, site);
}
template <class T> T atomic_max(Global<T> at, std::type_identity_t<T> value, Site site = Site::current()) {
  static_assert(std::is_same_v<T, u32> || std::is_same_v<T, u64> || std::is_same_v<T, i32>);
  return simulator::atomic_update(
      at, [value](T old) { return old < value ? value : old; }, site);
}
inline void threadfence(Site site = Site::current()) { simulator::current->block->fence(*simulator::current, site); }

// -- Shared memory

template <class T> std::remove_const_t<T> lds(Shared<T> at, Site site = Site::current()) {
  const char* from = at.checked(sizeof(T), sizeof(T), site);
  simulator::Thread& thread = *simulator::current;
  thread.block->shared.read(thread.who, thread.clock, at.address(), sizeof(T), site);
  std::remove_const_t<T> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T> void sts(Shared<T> at, std::type_identity_t<T> value, Site site = Site::current()) {
  char* to = at.checked(sizeof(T), sizeof(T), site);
  simulator::Thread& thread = *simulator::current;
  thread.block->shared.write(thread.who, thread.clock, at.address(), sizeof(T), site);
  std::memcpy(to, &value, sizeof value);
}

// -- Synchronization

inline void sync_threads(Site site = Site::current()) {
  simulator::Block& block = *simulator::current->block;
  block.barrier(*simulator::current, 0, block.threads, true, site);
}
inline void bar_sync(u32 id, u32 threads, Site site = Site::current()) {
  simulator::current->block->barrier(*simulator::current, id, threads, true, site);
}
inline void bar_arrive(u32 id, u32 threads, Site site = Site::current()) {
  simulator::current->block->barrier(*simulator::current, id, threads, false, site);
}
inline void sync_warp(u32 mask = ~0u, Site site = Site::current()) {
  simulator::current->block->synchronize_warp(*simulator::current, mask, site);
}

// -- What the lanes of a warp exchange

namespace simulator {

struct Shuffle {
  u64 value;
  u32 source;
  u64 result;
};
void complete_shuffle(Block&, u32 mask, void** operands, const Site& site);

template <class T> T shuffle(u32 mask, T value, u32 source, const Site& site) {
  static_assert(sizeof(T) <= sizeof(u64) && std::is_trivially_copyable_v<T>);
  Shuffle operands{0, source, 0};
  std::memcpy(&operands.value, &value, sizeof value);
  current->block->together(*current, mask, Together::shuffle, false, &operands, complete_shuffle, site);
  std::memcpy(&value, &operands.result, sizeof value);
  return value;
}

struct Vote {
  bool predicate;
  u32 result;
};
void complete_vote(Block&, u32 mask, void** operands, const Site& site);

}  // namespace simulator

template <class T> T shfl_idx(u32 mask, T value, u32 source, Site site = Site::current()) {
  return simulator::shuffle(mask, value, source & 31, site);
}
template <class T> T shfl_xor(u32 mask, T value, u32 bits, Site site = Site::current()) {
  return simulator::shuffle(mask, value, (lane_id() ^ bits) & 31, site);
}
/// Of the lane `delta` above; the last lanes get their own.
template <class T> T shfl_down(u32 mask, T value, u32 delta, Site site = Site::current()) {
  const u32 source = lane_id() + delta;
  return simulator::shuffle(mask, value, source < 32 ? source : lane_id(), site);
}
inline u32 ballot(u32 mask, bool predicate, Site site = Site::current()) {
  simulator::Vote operands{predicate, 0};
  simulator::current->block->together(*simulator::current, mask, simulator::Together::vote, false, &operands,
                                      simulator::complete_vote, site);
  return operands.result;
}
inline bool any(u32 mask, bool predicate, Site site = Site::current()) { return ballot(mask, predicate, site) != 0; }
inline bool all(u32 mask, bool predicate, Site site = Site::current()) { return ballot(mask, predicate, site) == mask; }

// -- Warp-wide matrices

namespace simulator {

struct MatrixRow {
  Shared<u8> row;
  u32 result[4];
};
template <int Matrices, bool Transposed> void complete_load_matrix(Block&, u32 mask, void** operands, const Site& site);

struct Multiply {
  float* d;
  const u32 *a, *b;
};
void complete_multiply_bf16(Block&, u32 mask, void** operands, const Site& site);
void complete_multiply_f16(Block&, u32 mask, void** operands, const Site& site);

}  // namespace simulator

inline u32x4 ldsm_x4(Shared<u8> row, Site site = Site::current()) {
  simulator::MatrixRow operands{row, {}};
  simulator::current->block->together(*simulator::current, ~0u, simulator::Together::load_matrix, true, &operands,
                                      simulator::complete_load_matrix<4, false>, site);
  return {operands.result[0], operands.result[1], operands.result[2], operands.result[3]};
}
inline u32x4 ldsm_x4_t(Shared<u8> row, Site site = Site::current()) {
  simulator::MatrixRow operands{row, {}};
  simulator::current->block->together(*simulator::current, ~0u, simulator::Together::load_matrix, true, &operands,
                                      simulator::complete_load_matrix<4, true>, site);
  return {operands.result[0], operands.result[1], operands.result[2], operands.result[3]};
}
inline u32x2 ldsm_x2(Shared<u8> row, Site site = Site::current()) {
  simulator::MatrixRow operands{row, {}};
  simulator::current->block->together(*simulator::current, ~0u, simulator::Together::load_matrix, true, &operands,
                                      simulator::complete_load_matrix<2, false>, site);
  return {operands.result[0], operands.result[1]};
}
inline u32x2 ldsm_x2_t(Shared<u8> row, Site site = Site::current()) {
  simulator::MatrixRow operands{row, {}};
  simulator::current->block->together(*simulator::current, ~0u, simulator::Together::load_matrix, true, &operands,
                                      simulator::complete_load_matrix<2, true>, site);
  return {operands.result[0], operands.result[1]};
}
inline void mma_bf16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], Site site = Site::current()) {
  simulator::Multiply operands{d, a, b};
  simulator::current->block->together(*simulator::current, ~0u, simulator::Together::multiply, true, &operands,
                                      simulator::complete_multiply_bf16, site);
}
inline void mma_f16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], Site site = Site::current()) {
  simulator::Multiply operands{d, a, b};
  simulator::current->block->together(*simulator::current, ~0u, simulator::Together::multiply, true, &operands,
                                      simulator::complete_multiply_f16, site);
}

// -- Asynchronous copies of 4 and of 16 bytes; zeros after the first `bytes`

namespace simulator {
inline void copy_to_shared(Shared<u8> to, Global<const u8> from, u32 size, u32 bytes, const Site& site) {
  to.checked(size, size, site);
  if (bytes > size) fail(Fault::misuse, site, "cp.async of more bytes than its size");
  if (bytes > 0) check_global(from.unchecked(), bytes, size, from.region(), Use::read, site);
  current->block->copy_to_shared(*current, {to.address(), size, from.unchecked(), bytes, site});
}
}  // namespace simulator

inline void cp_async4(Shared<u8> to, Global<const u8> from, u32 bytes = 4, Site site = Site::current()) {
  simulator::copy_to_shared(to, from, 4, bytes, site);
}
inline void cp_async16(Shared<u8> to, Global<const u8> from, u32 bytes = 16, Site site = Site::current()) {
  simulator::copy_to_shared(to, from, 16, bytes, site);
}
/// The same; the L2 cache is told to drop these bytes first.
inline void cp_async16_evict_first(Shared<u8> to, Global<const u8> from, u32 bytes = 16, Site site = Site::current()) {
  cp_async16(to, from, bytes, site);
}
inline void cp_commit() { simulator::current->block->commit_copies(*simulator::current); }
/// All but the last N committed groups of this thread have landed; others see them after a barrier.
template <int N> void cp_wait(Site site = Site::current()) {
  simulator::current->block->wait_for_copies(*simulator::current, N, site);
}

}  // namespace nibble::device

#include "tests/simulator/async.hpp"
