// Weights as a checkpoint stores them, read straight into registers. Included once per Highway target, hence the guard
// that toggles.
#if defined(NIBBLE_QUANT_SOURCE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_SOURCE_INL
#undef NIBBLE_QUANT_SOURCE_INL
#else
#define NIBBLE_QUANT_SOURCE_INL
#endif

#include <hwy/highway.h>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "quant/simd/magnitude-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The bits of fp16 numbers, in the lower half of 32-bit lanes, as those of the fp32 numbers that are equal to them:
// fp16::to_float(), computing every case and then choosing. PromoteTo of Highway 1.0.3 does not know infinity and NaN
// where it has no instruction for it.
template <class DI, class VI = hn::Vec<DI>> HWY_INLINE VI fp32_of_fp16(DI di, VI bits) {
  const hn::RebindToFloat<DI> d;
  const VI infinity = hn::Set(di, 0x7C00 << 13);
  const VI magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(di, 0x7FFF)));
  const VI sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(di, 0x8000)));
  const VI normal = hn::Add(magnitude, hn::Set(di, 112 << 23));
  const auto one = hn::BitCast(d, hn::Or(magnitude, hn::Set(di, 113 << 23)));
  const VI tiny = hn::BitCast(di, hn::Sub(one, hn::Set(d, fp16::smallest_normal)));
  const VI quiet = hn::And(hn::VecFromMask(di, hn::Gt(magnitude, infinity)), hn::Set(di, 0x400000));
  const VI special = hn::Or(hn::Or(magnitude, hn::Set(di, 0x7F800000)), quiet);
  const VI finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x400 << 13)), tiny, normal);
  return hn::Or(hn::IfThenElse(hn::Lt(magnitude, infinity), finite, special), sign);
}

// A source has
//
//   load(d, w, i)      one vector of fp32: weights [i, i + Lanes(d)) in order
//   load_two(d, w, i)  two vectors of fp32 that hold weights [i, i + 2 * Lanes(d)) in an order of its own
//   arrange(bytes)     puts the bytes of 4 * Lanes(d) weights in order, if the first vector of each load_two() gave the
//                      even ones: within blocks of 128 bits, where each is made of runs of sizeof(Run) bytes
//   absmax(w, n)       the largest magnitude, n a multiple of 32; NaN or infinity if there is one
//   absmax_of_each(w, n, blocks, out)   the same of blocks of n weights behind each other
//   value(w, i)        one weight
//
// The bytes at w need no alignment.
template <class V> struct Two { V v0, v1; };

struct F32 {
  static constexpr std::size_t size = 4;
  using Run = std::uint32_t;

  static HWY_INLINE const float* at(const std::byte* w, std::size_t i) {
    return reinterpret_cast<const float*>(w + i * size);
  }
  static HWY_INLINE float value(const std::byte* w, std::size_t i) {
    float value = 0;
    std::memcpy(&value, w + i * size, size);
    return value;
  }
  static HWY_INLINE float absmax(const std::byte* HWY_RESTRICT w, std::size_t n) {
    return std::bit_cast<float>(largest_magnitude(hn::CappedTag<float, 16>(), at(w, 0), n));
  }
  static HWY_INLINE void absmax_of_each(const std::byte* HWY_RESTRICT w, std::size_t n, std::size_t blocks,
                                        float* HWY_RESTRICT out) {
    std::size_t b = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::Full128<std::int32_t> d32;
    for (; blocks - b >= 4; b += 4)
      hn::StoreU(four_largest_magnitudes(hn::CappedTag<float, 16>(), at(w, b * n), n), d32,
                 reinterpret_cast<std::int32_t*>(out + b));
#endif
    for (; b < blocks; ++b) out[b] = absmax(w + b * n * size, n);
  }
  template <class D> static HWY_INLINE hn::Vec<D> load(D d, const std::byte* HWY_RESTRICT w, std::size_t i) {
    return hn::LoadU(d, at(w, i));
  }
#if HWY_TARGET != HWY_SCALAR
  template <class D> static HWY_INLINE Two<hn::Vec<D>> load_two(D d, const std::byte* HWY_RESTRICT w, std::size_t i) {
    return {load(d, w, i), load(d, w, i + hn::Lanes(d))};
  }
  template <class V8> static HWY_INLINE V8 arrange(V8 bytes) {
    alignas(16) static constexpr std::uint8_t order[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    return hn::TableLookupBytes(bytes, hn::LoadDup128(hn::DFromV<V8>(), order));
  }
#endif
};

// What the 16-bit types share: magnitudes are ordered as integers, and a register holds twice as many.
template <float (*to_float)(std::uint16_t)> struct Half16 {
  static constexpr std::size_t size = 2;

  static HWY_INLINE const std::uint16_t* at(const std::byte* w, std::size_t i) {
    return reinterpret_cast<const std::uint16_t*>(w + i * size);
  }
  static HWY_INLINE float value(const std::byte* w, std::size_t i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, w + i * size, size);
    return to_float(bits);
  }
  static HWY_INLINE float absmax(const std::byte* HWY_RESTRICT w, std::size_t n) {
    return to_float(static_cast<std::uint16_t>(largest_magnitude(hn::CappedTag<std::int16_t, 32>(), at(w, 0), n)));
  }
  static HWY_INLINE void absmax_of_each(const std::byte* HWY_RESTRICT w, std::size_t n, std::size_t blocks,
                                        float* HWY_RESTRICT out) {
    for (std::size_t b = 0; b < blocks; ++b) out[b] = absmax(w + b * n * size, n);
  }
};

struct Bf16 : Half16<bf16::to_float> {
  using Run = std::uint64_t;

  template <class D> static HWY_INLINE hn::Vec<D> load(D d, const std::byte* HWY_RESTRICT w, std::size_t i) {
    const hn::RebindToUnsigned<D> d32;
    const hn::Rebind<std::uint16_t, D> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, at(w, i)))));
  }
#if HWY_TARGET != HWY_SCALAR
  // Even weights, then odd ones: an fp32 number whose upper half is the weight.
  template <class D> static HWY_INLINE Two<hn::Vec<D>> load_two(D d, const std::byte* HWY_RESTRICT w, std::size_t i) {
    const hn::Repartition<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto pairs = hn::BitCast(d32, hn::LoadU(d16, at(w, i)));
    return {hn::BitCast(d, hn::ShiftLeft<16>(pairs)), hn::BitCast(d, hn::And(pairs, hn::Set(d32, 0xFFFF0000u)))};
  }
  template <class V8> static HWY_INLINE V8 arrange(V8 bytes) { return bytes; }
#endif
};

struct F16 : Half16<fp16::to_float> {
  using Run = F32::Run;

  template <class D> static HWY_INLINE hn::Vec<D> load(D d, const std::byte* HWY_RESTRICT w, std::size_t i) {
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)) || HWY_TARGET == HWY_NEON
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(at(w, i))));
#else
    const hn::RebindToSigned<D> di;
    const hn::Rebind<std::uint16_t, D> d16;
    return hn::BitCast(d, fp32_of_fp16(di, hn::PromoteTo(di, hn::LoadU(d16, at(w, i)))));
#endif
  }
#if HWY_TARGET != HWY_SCALAR
  template <class D> static HWY_INLINE Two<hn::Vec<D>> load_two(D d, const std::byte* HWY_RESTRICT w, std::size_t i) {
    return {load(d, w, i), load(d, w, i + hn::Lanes(d))};
  }
  template <class V8> static HWY_INLINE V8 arrange(V8 bytes) { return F32::arrange(bytes); }
#endif
};

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
