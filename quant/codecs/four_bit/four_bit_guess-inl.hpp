// FourBitTables::guess() in vectors. Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_FOUR_BIT_GUESS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_FOUR_BIT_GUESS_INL
#undef NIBBLE_QUANT_FOUR_BIT_GUESS_INL
#else
#define NIBBLE_QUANT_FOUR_BIT_GUESS_INL
#endif

#include <hwy/highway.h>
#include <cstdint>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/simd/nibbles-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

// How many midpoints have a position below x, for two vectors of 16-bit x in [-32767, 32767].
template <class D16> class NumbersByGuess {
  using D8 = hn::Repartition<std::uint8_t, D16>;
  using V16 = hn::Vec<D16>;
  using V8 = hn::Vec<D8>;

 public:
  explicit HWY_INLINE NumbersByGuess(const FourBitTables& tables)
      : base_(hn::Set(D16(), tables.base)),
        slope_(hn::Set(D16(), tables.slope)),
        lower_(hn::LoadDup128(D8(), tables.lower.data())),
        upper_(hn::LoadDup128(D8(), tables.upper.data())) {}

  struct Numbers {
    V16 a, b;
    V16 midpoint_a, midpoint_b;  // the position of the midpoint with the number that was guessed
  };

  HWY_INLINE Numbers of(V16 xa, V16 xb) const {
    const V16 ga = guess(xa), gb = guess(xb);
    const V8 g = pack_bytes(ga, gb);
    const V8 low = hn::TableLookupBytes(lower_, g), high = hn::TableLookupBytes(upper_, g);
    const V16 ma = hn::BitCast(D16(), hn::InterleaveLower(D8(), low, high));
    const V16 mb = hn::BitCast(D16(), hn::InterleaveUpper(D8(), low, high));
    // True is -1.
    return {hn::Sub(ga, hn::VecFromMask(D16(), hn::Gt(xa, ma))), hn::Sub(gb, hn::VecFromMask(D16(), hn::Gt(xb, mb))),
            ma, mb};
  }

 private:
  HWY_INLINE V16 guess(V16 x) const {
    const V16 factor = hn::Sub(slope_, hn::ShiftRight<1>(hn::Abs(x)));
    return hn::ShiftRight<10>(hn::Add(base_, hn::MulHigh(x, factor)));
  }

  V16 base_, slope_;
  V8 lower_, upper_;
};

#endif

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
