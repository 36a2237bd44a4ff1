// The GPU's side of the device layer: each function is an intrinsic or a line of PTX.
// tests/simulator/backend/device.hpp has the same functions.
#pragma once
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/device/cuda/launch.hpp"
#include "kernels/device/types.hpp"

namespace nibble::device {

// -- Global memory. Pairs and quadruples go through CUDA's own vector types and intrinsics, or a line of PTX where
// there is none: so that each is one instruction; the compiler would sometimes split it.

namespace detail {

template <class T> struct machine { using type = T; };
template <> struct machine<u32x2> { using type = uint2; };
template <> struct machine<u32x4> { using type = uint4; };
template <> struct machine<f32x2> { using type = float2; };
template <> struct machine<f32x4> { using type = float4; };
template <> struct machine<bf16> { using type = u16; };
template <> struct machine<f16> { using type = u16; };
template <class T> using machine_t = typename machine<std::remove_const_t<T>>::type;

template <class To, class From> NIBBLE_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
template <class T> NIBBLE_DEVICE auto* machine_pointer(T* pointer) {
  using Machine = std::conditional_t<std::is_const_v<T>, const machine_t<T>, machine_t<T>>;
  return reinterpret_cast<Machine*>(pointer);
}

template <class T> NIBBLE_DEVICE void store_words(T* to, const T& value) {
  if constexpr (sizeof(T) == 16) {
    const auto words = bits_as<u32x4>(value);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
                 : "memory");
  } else {
    const auto words = bits_as<u32x2>(value);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(words.x), "r"(words.y) : "memory");
  }
}
template <std::size_t Bytes> NIBBLE_DEVICE auto load_words(const void* from) {
  if constexpr (Bytes == 16) {
    u32x4 words;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from)
                 : "memory");
    return words;
  } else {
    u32x2 words;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "l"(from) : "memory");
    return words;
  }
}

}  // namespace detail

template <class T> NIBBLE_DEVICE std::remove_const_t<T> ld(Global<T> at) {
  if constexpr (std::is_class_v<detail::machine_t<T>>)
    return detail::bits_as<std::remove_const_t<T>>(detail::load_words<sizeof(T)>(at.unchecked()));
  else
    return detail::bits_as<std::remove_const_t<T>>(*detail::machine_pointer(at.unchecked()));
}
template <class T> NIBBLE_DEVICE std::remove_const_t<T> ldg(Global<T> at) {
  return detail::bits_as<std::remove_const_t<T>>(__ldg(detail::machine_pointer(at.unchecked())));
}
// CUDA's intrinsic has no "memory" clobber and may move across stores: use it only for memory that no kernel writes.
template <class T> NIBBLE_DEVICE std::remove_const_t<T> ldcs(Global<T> at) {
  return detail::bits_as<std::remove_const_t<T>>(__ldcs(detail::machine_pointer(at.unchecked())));
}
template <class T> NIBBLE_DEVICE void st(Global<T> at, std::type_identity_t<T> value) {
  if constexpr (std::is_class_v<detail::machine_t<T>>)
    detail::store_words(at.unchecked(), value);
  else
    *detail::machine_pointer(at.unchecked()) = detail::bits_as<detail::machine_t<T>>(value);
}
template <class T> NIBBLE_DEVICE void stcs(Global<T> at, std::type_identity_t<T> value) {
  __stcs(detail::machine_pointer(at.unchecked()), detail::bits_as<detail::machine_t<T>>(value));
}
template <class T> NIBBLE_DEVICE T atomic_add(Global<T> at, std::type_identity_t<T> value) {
  if constexpr (std::is_same_v<T, u64>)
    return atomicAdd(reinterpret_cast<unsigned long long*>(at.unchecked()), static_cast<unsigned long long>(value));
  else
    return atomicAdd(at.unchecked(), value);
}
template <class T> NIBBLE_DEVICE T atomic_max(Global<T> at, std::type_identity_t<T> value) {
  if constexpr (std::is_same_v<T, u64>)
    return atomicMax(reinterpret_cast<unsigned long long*>(at.unchecked()), static_cast<unsigned long long>(value));
  else
    return atomicMax(at.unchecked(), value);
}
NIBBLE_DEVICE void threadfence() { __threadfence(); }
template <class T> NIBBLE_DEVICE void prefetch_l2(Global<T> at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at.unchecked())));
}
template <class T> NIBBLE_DEVICE void prefetch_l2(Global<T> at, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(at.unchecked())),
               "r"(bytes));
#else
  constexpr u32 line = 128;
  for (u32 i = 0; i < bytes; i += line) prefetch_l2(at.template as<const u8>() + i);
#endif
}

// -- Programmatic dependent launch: nothing in code for sm_80, whose launches do not overlap

NIBBLE_DEVICE void dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
NIBBLE_DEVICE void dependency_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// -- Shared memory: plain accesses, which the compiler may move as it likes

template <class T> NIBBLE_DEVICE std::remove_const_t<T> lds(Shared<T> at) {
  return detail::bits_as<std::remove_const_t<T>>(*detail::machine_pointer(at.unchecked()));
}
template <class T> NIBBLE_DEVICE void sts(Shared<T> at, std::type_identity_t<T> value) {
  *detail::machine_pointer(at.unchecked()) = detail::bits_as<detail::machine_t<T>>(value);
}

// -- Synchronization

NIBBLE_DEVICE void sync_threads() { __syncthreads(); }
NIBBLE_DEVICE void sync_warp(u32 mask = ~0u) { __syncwarp(mask); }
NIBBLE_DEVICE void bar_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
NIBBLE_DEVICE void bar_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// -- What the lanes of a warp exchange

template <class T> NIBBLE_DEVICE T shfl_idx(u32 mask, T value, u32 source) {
  return __shfl_sync(mask, value, static_cast<int>(source));
}
template <class T> NIBBLE_DEVICE T shfl_xor(u32 mask, T value, u32 bits) {
  return __shfl_xor_sync(mask, value, static_cast<int>(bits));
}
template <class T> NIBBLE_DEVICE T shfl_down(u32 mask, T value, u32 delta) {
  return __shfl_down_sync(mask, value, delta);
}
NIBBLE_DEVICE u32 ballot(u32 mask, bool predicate) { return __ballot_sync(mask, predicate); }
NIBBLE_DEVICE bool any(u32 mask, bool predicate) { return __any_sync(mask, predicate) != 0; }
NIBBLE_DEVICE bool all(u32 mask, bool predicate) { return __all_sync(mask, predicate) != 0; }

// -- Warp-wide matrices

NIBBLE_DEVICE u32x4 ldsm_x4(Shared<u8> row) {
  u32x4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(row.address())
               : "memory");
  return r;
}
NIBBLE_DEVICE u32x4 ldsm_x4_t(Shared<u8> row) {
  u32x4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(row.address())
               : "memory");
  return r;
}
NIBBLE_DEVICE u32x2 ldsm_x2(Shared<u8> row) {
  u32x2 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r.x), "=r"(r.y)
               : "r"(row.address())
               : "memory");
  return r;
}
NIBBLE_DEVICE u32x2 ldsm_x2_t(Shared<u8> row) {
  u32x2 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r.x), "=r"(r.y)
               : "r"(row.address())
               : "memory");
  return r;
}
NIBBLE_DEVICE void mma_bf16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
NIBBLE_DEVICE void mma_f16_16816(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// -- Asynchronous copies of 4 and of 16 bytes

NIBBLE_DEVICE void cp_async4(Shared<u8> to, Global<const u8> from, u32 bytes = 4) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to.address()),
               "l"(__cvta_generic_to_global(from.unchecked())), "r"(bytes)
               : "memory");
}
NIBBLE_DEVICE void cp_async16(Shared<u8> to, Global<const u8> from, u32 bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to.address()),
               "l"(__cvta_generic_to_global(from.unchecked())), "r"(bytes)
               : "memory");
}
NIBBLE_DEVICE void cp_async16_evict_first(Shared<u8> to, Global<const u8> from, u32 bytes = 16) {
  asm volatile(
      "{\n.reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, policy;\n}" ::"r"(to.address()),
      "l"(__cvta_generic_to_global(from.unchecked())), "r"(bytes)
      : "memory");
}
NIBBLE_DEVICE void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> NIBBLE_DEVICE void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// -- Arithmetic whose rounding does not depend on what the compiler contracts

NIBBLE_DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
NIBBLE_DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
NIBBLE_DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
NIBBLE_DEVICE float sub_rn(float a, float b) { return __fsub_rn(a, b); }
NIBBLE_DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
NIBBLE_DEVICE float rcp_rn(float a) { return __frcp_rn(a); }
// NaN if either is NaN; fmaxf gives the other one.
NIBBLE_DEVICE float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
NIBBLE_DEVICE double fma_rn(double a, double b, double c) { return __fma_rn(a, b, c); }
NIBBLE_DEVICE double mul_rn(double a, double b) { return __dmul_rn(a, b); }
NIBBLE_DEVICE double add_rn(double a, double b) { return __dadd_rn(a, b); }
NIBBLE_DEVICE double sub_rn(double a, double b) { return __dsub_rn(a, b); }
NIBBLE_DEVICE double div_rn(double a, double b) { return __ddiv_rn(a, b); }

NIBBLE_DEVICE u32 bits_of(float value) { return __float_as_uint(value); }
NIBBLE_DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }

NIBBLE_DEVICE bf16 to_bf16(float value) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return {bits};
}
NIBBLE_DEVICE f16 to_f16(float value) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return {bits};
}
NIBBLE_DEVICE float to_float(bf16 value) { return __uint_as_float(u32{value.bits} << 16); }
NIBBLE_DEVICE float to_float(f16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
NIBBLE_DEVICE u32 pack_bf16(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
NIBBLE_DEVICE u32 pack_f16(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// Of two pairs. bf16 has no packed subtraction before sm_90; a - b * 1 is rounded once, too.
NIBBLE_DEVICE u32 sub_bf16x2(u32 a, u32 b) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(b), "r"(0xbf80bf80u), "r"(a));
  return r;
}
NIBBLE_DEVICE u32 sub_f16x2(u32 a, u32 b) {
  u32 r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
/// The same value, of which the compiler knows nothing: it keeps it in a register rather than calculate it again.
NIBBLE_DEVICE u32 opaque(u32 value) {
  asm("" : "+r"(value));
  return value;
}
// Not __byte_perm, which ignores the selector's sign bits.
NIBBLE_DEVICE u32 prmt(u32 a, u32 b, u32 selector) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}
template <u32 Table> NIBBLE_DEVICE u32 lop3(u32 a, u32 b, u32 c) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(b), "r"(c), "n"(Table));
  return r;
}

}  // namespace nibble::device

#include "kernels/device/cuda/async.hpp"
#include "kernels/device/cuda/wgmma.hpp"
