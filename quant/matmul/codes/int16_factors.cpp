// Products of absmax and x as integers of 16 bits, compiled once per CPU target.
#include "quant/matmul/codes/int16_factors.hpp"

#include "quant/codecs/four_bit/four_bit.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/codes/int16_factors.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::matmul::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t rows = Int16Factors::rows;
// The largest factor of a block becomes 2^(bits - 1) to 2^bits, which has to fit 16 bits, as eight products have to fit
// 32.
constexpr int bits = 14;
static_assert((1 << bits) <= INT16_MAX && std::int64_t{rows} * Int16Codebook::most * (1 << bits) <= INT32_MAX);
// Integers are off by 2^-14 of the largest factor at most. That is 2^-9 of the geometric mean of the factors other than
// 0, which is what bf16 is off by, if their exponents are this much smaller on average.
constexpr int max_distance = bits - 9;
// Below this biased exponent of the largest factor, units could be subnormal. There is a margin.
constexpr int min_exponent = 40;

// Those of as many blocks as a vector has numbers.
template <class D>
HWY_INLINE bool make_factors_of_blocks(D d, const CodeRows& weights, const float* HWY_RESTRICT x, std::size_t block,
                                       Int16Factors& factors) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const auto zero = hn::Zero(di);
  const auto magnitude = [&](hn::Vec<D> factor) HWY_ATTR { return hn::BitCast(di, hn::Abs(factor)); };
  hn::Vec<D> factor[rows];
  auto most = zero;  // the bits of magnitudes are in the order of their values
  for (std::size_t r = 0; r < rows; ++r) {
    const auto absmax = hn::LoadU(d, weights.absmax + r * weights.absmax_stride + block);
    factor[r] = hn::Mul(absmax, hn::Set(d, x[r]));
    most = hn::Max(most, magnitude(factor[r]));
  }
  const auto exponent = hn::ShiftRight<23>(most);  // biased
  const auto limit = hn::Sub(exponent, hn::Set(di, max_distance));
  auto excess = zero;
  for (const auto f : factor) {
    const auto number = magnitude(f);
    const auto below_limit = hn::Sub(limit, hn::ShiftRight<23>(number));
    excess = hn::Add(excess, hn::IfThenZeroElse(hn::Eq(number, zero), below_limit));
  }
  const auto is_bad = hn::Or(hn::Gt(excess, zero),
                             hn::Or(hn::Lt(exponent, hn::Set(di, min_exponent)), hn::Eq(exponent, hn::Set(di, 255))));
  const auto is_zero = hn::Eq(most, zero);
  if (!hn::AllFalse(di, hn::AndNot(is_zero, is_bad))) return false;

  // 2^(bits - 1 - exponent), and its reciprocal. If all factors are 0, these are any finite numbers.
  const auto log2 = hn::Sub(exponent, hn::Set(di, 127 + bits - 1));
  const auto one = hn::Set(di, 127);
  const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Sub(one, log2)));
  const auto reciprocal = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(one, log2)));
  hn::StoreU(hn::Mul(reciprocal, hn::Set(d, weights.tables.int16_codebook.unit)), d, factors.unit.data() + block);
  for (std::size_t pair = 0; pair < Int16Factors::pairs; ++pair) {
    const auto first = hn::BitCast(du, hn::NearestInt(hn::Mul(factor[2 * pair], scale)));
    const auto second = hn::BitCast(du, hn::NearestInt(hn::Mul(factor[2 * pair + 1], scale)));
    hn::StoreU(hn::Or(hn::And(first, hn::Set(du, 0xFFFF)), hn::ShiftLeft<16>(second)), du,
               factors.of_pair[pair].data() + block);
  }
  return true;
}

// Adds to `block` while whole vectors are left.
template <class D>
HWY_INLINE bool make_factors_while_whole(D d, const CodeRows& weights, const float* HWY_RESTRICT x, std::size_t& block,
                                         Int16Factors& factors) {
  const std::size_t blocks = weights.n / weights.blocksize, lanes = hn::Lanes(d);
  for (; block + lanes <= blocks; block += lanes)
    if (!make_factors_of_blocks(d, weights, x, block, factors)) return false;
  return true;
}

bool make_factors(const CodeRows& weights, const float* HWY_RESTRICT x, Int16Factors& factors) {
  std::size_t block = 0;
  return make_factors_while_whole(hn::CappedTag<float, 16>(), weights, x, block, factors) &&
         make_factors_while_whole(hn::CappedTag<float, 4>(), weights, x, block, factors) &&
         make_factors_while_whole(hn::CappedTag<float, 1>(), weights, x, block, factors);
}

}  // namespace
}  // namespace nibble::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::matmul {

HWY_EXPORT(make_factors);

bool make_int16_factors(const CodeRows& weights, const float* x, Int16Factors& factors) {
  return HWY_DYNAMIC_DISPATCH(make_factors)(weights, x, factors);
}

}  // namespace nibble::matmul
#endif
