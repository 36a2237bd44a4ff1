// Sums in 16 lanes, however many a vector has, so that every CPU target rounds the same way. Included once per Highway
// target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_LANES_INL
#undef NIBBLE_QUANT_LANES_INL
#else
#define NIBBLE_QUANT_LANES_INL
#endif

#include <hwy/highway.h>
#include <cmath>
#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<D>;
using V = hn::Vec<D>;
constexpr std::size_t vector_lanes = hn::MaxLanes(D());  // 1 on HWY_SCALAR: what follows is plain code there
constexpr std::size_t vector_parts = 16 / vector_lanes;  // vectors that make up the 16 lanes

// a b + c, rounded once. It halves the work of a sum of products; on a target that lacks the instruction, the C library
// computes the same slowly, but processors without it are older than the models.
template <class DF> HWY_INLINE hn::Vec<DF> fused(DF d, hn::Vec<DF> a, hn::Vec<DF> b, hn::Vec<DF> c) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::MulAdd(a, b, c);
#else
  using T = hn::TFromD<DF>;
  HWY_ALIGN T x[hn::MaxLanes(DF())];
  HWY_ALIGN T y[hn::MaxLanes(DF())];
  HWY_ALIGN T z[hn::MaxLanes(DF())];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (std::size_t i = 0; i < hn::MaxLanes(DF()); ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(d, z);
#endif
}

// Sums in 16 lanes; a template so that only one of the folds is compiled.
template <class DF> struct Sums16 {
  hn::Vec<DF> part[vector_parts];
  HWY_INLINE Sums16() {
    for (auto& v : part) v = hn::Zero(DF());
  }
  HWY_INLINE void add(std::size_t k, hn::Vec<DF> v) { part[k] = hn::Add(part[k], v); }
  HWY_INLINE void add_product(std::size_t k, hn::Vec<DF> a, hn::Vec<DF> b) { part[k] = fused(DF(), a, b, part[k]); }

#if HWY_TARGET == HWY_SCALAR
  // For loops that have numbers instead of vectors there.
  HWY_INLINE void add_product(std::size_t k, float a, float b) { add_product(k, hn::Set(DF(), a), hn::Set(DF(), b)); }
#endif

  // Lane j of the result: (j + (j + 8)) + ((j + 4) + (j + 12)).
  HWY_INLINE void fold(float* HWY_RESTRICT to) const {
#if HWY_TARGET == HWY_SCALAR
    for (std::size_t j = 0; j < 4; ++j)
      hn::StoreU(hn::Add(hn::Add(part[j], part[j + 8]), hn::Add(part[j + 4], part[j + 12])), DF(), to + j);
#else
    const hn::Full128<float> d4;
    if constexpr (vector_lanes == 16) {
      const hn::Half<DF> d8;
      const auto sum = hn::Add(hn::LowerHalf(d8, part[0]), hn::UpperHalf(d8, part[0]));
      hn::StoreU(hn::Add(hn::LowerHalf(d4, sum), hn::UpperHalf(d4, sum)), d4, to);
    } else if constexpr (vector_lanes == 8) {
      const auto sum = hn::Add(part[0], part[1]);
      hn::StoreU(hn::Add(hn::LowerHalf(d4, sum), hn::UpperHalf(d4, sum)), d4, to);
    } else {
      hn::StoreU(hn::Add(hn::Add(part[0], part[2]), hn::Add(part[1], part[3])), d4, to);
    }
#endif
  }
};
using Lanes16 = Sums16<D>;

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
