// Encoding to the 4-bit formats: the loops over whole blocks. The file that includes them may look at each batch while
// it is in L1. Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_FOUR_BIT_ENCODE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_FOUR_BIT_ENCODE_INL
#undef NIBBLE_QUANT_FOUR_BIT_ENCODE_INL
#else
#define NIBBLE_QUANT_FOUR_BIT_ENCODE_INL
#endif

#include <hwy/highway.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/codecs/four_bit/four_bit_bf16-inl.hpp"
#include "quant/codecs/four_bit/four_bit_buckets-inl.hpp"
#include "quant/codecs/four_bit/four_bit_guess-inl.hpp"
#include "quant/simd/nibbles-inl.hpp"
#include "quant/simd/prefetch.hpp"
#include "quant/simd/source-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A batch of weights and its scratch fit in a small L1 cache together, while the next batch is prefetched into L2.
constexpr std::size_t batch_bytes = 8192;
constexpr std::size_t batch_weights = FourBitTables::max_blocksize;
constexpr std::size_t batch_blocks = batch_weights / 32;

// Finite, as 1e-38 takes the place of smaller magnitudes; 0 for 0.
HWY_INLINE float inverse_of_given(float absmax) {
  return absmax == 0 ? 0.0f : 1.0f / std::copysign(std::max(std::abs(absmax), 1e-38f), absmax);
}

#if HWY_TARGET != HWY_SCALAR

// The two steps from weights to codes, each a loop of its own over a batch: together they would need more registers
// than AVX2 has, and chains too long to overlap (docs/tried-and-lost.md has the figures).
template <class Source, bool splits_zero, bool clamps = false> class BlockEncoder {
  using D = hn::CappedTag<float, 16>;
  using DI = hn::RebindToSigned<D>;
  using D16 = hn::Repartition<std::int16_t, D>;
  using D8 = hn::Repartition<std::uint8_t, D>;
  using V = hn::Vec<D>;
  using VI = hn::Vec<DI>;
  using V16 = hn::Vec<D16>;
  using V8 = hn::Vec<D8>;
  using Packed = std::conditional_t<sizeof(typename Source::Run) == 4, std::uint16_t, std::uint32_t>;
  static constexpr std::size_t quarter = 2 * hn::MaxLanes(D());  // weights in a vector of 16 bits, all of one block

 public:
  static constexpr std::size_t group = 4 * quarter;  // packed into one vector of bytes

  explicit BlockEncoder(const FourBitTables& tables) : tables_(tables), numbers_(tables) {}

  // The positions of n weights on the grid, in Source's order.
  HWY_INLINE void position(const std::byte* HWY_RESTRICT w, std::size_t n, const float* HWY_RESTRICT scale,
                           int block_bits, std::int16_t* HWY_RESTRICT positions) const {
    for (std::size_t i = 0; i < n; i += quarter) {
      const V factor = hn::Set(D(), scale[i >> block_bits]);
      const auto two = Source::load_two(D(), w, i);
      hn::Store(merge(position_of(two.v0, factor), position_of(two.v1, factor)), D16(), positions + i);
    }
  }

  // The codes of a group. Not 0 if one is in doubt, which happens too rarely for a branch here.
  HWY_INLINE std::uint8_t encode(const std::int16_t* HWY_RESTRICT positions, const std::int16_t* HWY_RESTRICT positive,
                                 std::uint8_t* HWY_RESTRICT packed) const {
    auto doubt = hn::MaskFromVec(hn::Zero(D16()));
    const auto half = [&](std::size_t first) HWY_ATTR {
      const V16 xa = hn::Load(D16(), positions + first), xb = hn::Load(D16(), positions + first + quarter);
      auto numbers = numbers_.of(xa, xb);
      doubt = hn::Or(doubt, hn::Or(hn::Eq(xa, numbers.midpoint_a), hn::Eq(xb, numbers.midpoint_b)));
      if constexpr (splits_zero) {
        numbers.a = hn::Sub(numbers.a, hn::Load(D16(), positive + first));
        numbers.b = hn::Sub(numbers.b, hn::Load(D16(), positive + first + quarter));
      }
      return pack_bytes(numbers.a, numbers.b);
    };
    const V8 first = half(0), second = half(2 * quarter);
    store(first, second, packed);
    return hn::AllFalse(D16(), doubt) ? 0 : 1;
  }

  // -1 for the weights of a group for which v > 0, else 0.
  HWY_INLINE void sign(const std::byte* HWY_RESTRICT w, std::size_t n, const float* HWY_RESTRICT inverse,
                       int block_bits, std::int16_t* HWY_RESTRICT positive) const {
    for (std::size_t i = 0; i < n; i += quarter) {
      const V factor = hn::Set(D(), inverse[i >> block_bits]);
      const auto two = Source::load_two(D(), w, i);
      const auto is_positive = [&](V v) HWY_ATTR { return is_greater(hn::Mul(v, factor), hn::Zero(D())); };
      hn::Store(merge(is_positive(two.v0), is_positive(two.v1)), D16(), positive + i);
    }
  }

  // The same in fp32, where there is no doubt.
  HWY_NOINLINE void settle(const std::byte* HWY_RESTRICT w, const float* HWY_RESTRICT inverse, int block_bits,
                           std::uint8_t* HWY_RESTRICT packed) const {
    const auto numbers = [&](std::size_t first) HWY_ATTR {
      const V factor = hn::Set(D(), inverse[first >> block_bits]);
      const auto two = Source::load_two(D(), w, first);
      const auto number = [&](V weight) HWY_ATTR {
        const V v = hn::Mul(weight, factor);
        VI count = hn::Zero(DI());
        for (std::size_t k = 0; k < tables_.midpoints; ++k)
          count = hn::Sub(count, is_greater(v, hn::Set(D(), tables_.midpoint[k])));
        return splits_zero ? hn::Sub(count, is_greater(v, hn::Zero(D()))) : count;
      };
      return merge(number(two.v0), number(two.v1));
    };
    const V8 first = pack_bytes(numbers(0), numbers(quarter));
    const V8 second = pack_bytes(numbers(2 * quarter), numbers(3 * quarter));
    store(first, second, packed);
  }

 private:
  // The lower halves of 32-bit lanes side by side.
  static HWY_INLINE V16 merge(VI even, VI odd) {
    return hn::OddEven(hn::BitCast(D16(), hn::ShiftLeft<16>(odd)), hn::BitCast(D16(), even));
  }

  // round(grid * v) in the lower 16 bits.
  static HWY_INLINE VI position_of(V weight, V scale) {
    if constexpr (clamps) {
      const V grid = hn::Set(D(), FourBitTables::grid);
      const V product = hn::Max(hn::Min(hn::Mul(weight, scale), grid), hn::Neg(grid));
      return hn::BitCast(DI(), hn::Add(product, hn::Set(D(), FourBitTables::rounding)));
    }
    return hn::BitCast(DI(), hn::MulAdd(weight, scale, hn::Set(D(), FourBitTables::rounding)));
  }

  // -1 where a > b, else 0.
  static HWY_INLINE VI is_greater(V a, V b) { return hn::VecFromMask(DI(), hn::RebindMask(DI(), hn::Gt(a, b))); }

  HWY_INLINE void store(V8 first, V8 second, std::uint8_t* HWY_RESTRICT packed) const {
    const auto joined = [&](V8 numbers) HWY_ATTR {
      V8 codes = Source::arrange(numbers);
      if constexpr (splits_zero) codes = hn::TableLookupBytes(hn::LoadDup128(D8(), tables_.code.data()), codes);
      return join_nibbles(codes);
    };
    store_interleaved<Packed>(pack_bytes(joined(first), joined(second)), packed);
  }

  const FourBitTables& tables_;
  NumbersByGuess<D16> numbers_;
};

// The codes of a batch of n weights, given the inverse and the scale of each absmax. If weights may be larger than
// absmax, v is clamped to [-1, 1]. Prefetches one batch ahead.
template <class Source, bool splits_zero, bool clamps = false>
HWY_INLINE void encode_by_guess(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t n,
                                const float* HWY_RESTRICT inverse, const float* HWY_RESTRICT scale, int block_bits,
                                bool settle_all, std::uint8_t* HWY_RESTRICT packed) {
  using Encoder = BlockEncoder<Source, splits_zero, clamps>;
  constexpr std::size_t size = Source::size, group = Encoder::group;
  const Encoder encoder(tables);

  HWY_ALIGN std::int16_t positions[batch_weights];
  HWY_ALIGN std::int16_t positive[splits_zero ? batch_weights : 1];
  HWY_ALIGN std::uint8_t doubt[batch_weights / group];

  const std::size_t whole = n - n % group;
  encoder.position(w, n, scale, block_bits, positions);
  if constexpr (splits_zero) encoder.sign(w, n, inverse, block_bits, positive);
  for (std::size_t i = 0; i < whole; i += group) {
    const std::byte* const ahead = w + (n + i) * size;
    for (std::size_t line = 0; line < group * size; line += 64) prefetch_to_l2(ahead + line);
    doubt[i / group] = encoder.encode(positions + i, positive + (splits_zero ? i : 0), packed + i / 2);
  }
  for (std::size_t i = 0; i < whole; i += group)
    if (doubt[i / group] != 0 || settle_all)
      encoder.settle(w + i * size, inverse + (i >> block_bits), block_bits, packed + i / 2);
  if (whole < n) {
    HWY_ALIGN std::byte last[group * size] = {};
    HWY_ALIGN std::uint8_t last_packed[group / 2];
    std::memcpy(last, w + whole * size, (n - whole) * size);
    encoder.settle(last, inverse + (whole >> block_bits), block_bits, last_packed);
    std::memcpy(packed + whole / 2, last_packed, (n - whole) / 2);
  }
}

// Whole blocks. Calls see(w, blocks, packed, absmax) with a batch as soon as it is encoded, while it is in L1. Where
// absmax is not finite, the codes mean nothing.
template <class Source, bool splits_zero, class See>
HWY_INLINE void encode_blocks_as(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocks,
                                 std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed, float* HWY_RESTRICT absmax,
                                 const See& see) {
  const hn::CappedTag<float, 16> d;
  const int block_bits = std::countr_zero(blocksize);

  // Plain arrays: std::array checks every index here.
  HWY_ALIGN float inverse[batch_blocks] = {};
  HWY_ALIGN float scale[batch_blocks] = {};

  // One batch of blocks at a time: it stays in the cache from step to step while the next one is prefetched.
  while (blocks > 0) {
    const std::size_t count = std::min(blocks, std::max<std::size_t>(1, batch_bytes / Source::size / blocksize)),
                      n = count * blocksize;
    Source::absmax_of_each(w, blocksize, count, absmax);
    std::memcpy(inverse, absmax, count * sizeof(float));
    bool tiny = false;
    for (std::size_t b = 0; b < count; b += hn::Lanes(d)) {
      const auto largest = hn::Load(d, inverse + b), zero = hn::Zero(d);
      const auto one = hn::Div(hn::Set(d, 1.0f), hn::Max(largest, hn::Set(d, 1e-38f)));
      const auto is_finite = hn::Lt(largest, hn::Set(d, std::numeric_limits<float>::infinity()));
      // For a smaller absmax, the scale would overflow.
      const auto is_tiny = hn::Lt(largest, hn::Set(d, 1e-30f));
      tiny = tiny || !hn::AllFalse(d, hn::And(is_tiny, hn::Gt(largest, zero)));
      hn::Store(hn::IfThenElseZero(is_finite, one), d, inverse + b);
      hn::Store(hn::IfThenElse(is_tiny, zero, hn::Mul(hn::Load(d, inverse + b), hn::Set(d, FourBitTables::grid))), d,
                scale + b);
    }
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    if (tables.has_buckets && !tiny)
      encode_by_buckets<Source>(tables, w, n, inverse, scale, block_bits, packed);
    else
#endif
      encode_by_guess<Source, splits_zero>(tables, w, n, inverse, scale, block_bits, tiny, packed);
    see(w, count, packed, absmax);
    w += n * Source::size;
    packed += n / 2;
    absmax += count;
    blocks -= count;
  }
}

// Whole blocks, for an absmax of either sign that is given.
template <class Source, bool splits_zero>
HWY_INLINE void encode_blocks_for(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocks,
                                  std::size_t blocksize, const float* HWY_RESTRICT absmax,
                                  std::uint8_t* HWY_RESTRICT packed) {
  const int block_bits = std::countr_zero(blocksize);
  HWY_ALIGN float inverse[batch_blocks] = {};
  HWY_ALIGN float scale[batch_blocks] = {};
  while (blocks > 0) {
    const std::size_t count = std::min(blocks, std::max<std::size_t>(1, batch_bytes / Source::size / blocksize)),
                      n = count * blocksize;
    bool tiny = false;
    for (std::size_t b = 0; b < count; ++b) {
      inverse[b] = inverse_of_given(absmax[b]);
      const bool is_tiny = std::abs(absmax[b]) < 1e-30f;  // the scale would overflow
      tiny = tiny || (is_tiny && absmax[b] != 0);
      scale[b] = is_tiny ? 0 : inverse[b] * FourBitTables::grid;
    }
    encode_by_guess<Source, splits_zero, true>(tables, w, n, inverse, scale, block_bits, tiny, packed);
    w += n * Source::size;
    packed += n / 2;
    absmax += count;
    blocks -= count;
  }
}

#else

// For the target that has no vectors.
template <class Source, bool splits_zero>
HWY_INLINE void encode_block(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocksize,
                             float inverse, std::uint8_t* HWY_RESTRICT packed) {
  const auto code = [&](std::size_t i) {
    const float v = Source::value(w, i) * inverse;
    std::size_t number = splits_zero && v > 0 ? 1 : 0;
    for (const float midpoint : tables.midpoint) number += v > midpoint ? 1 : 0;
    return tables.code[number];
  };
  for (std::size_t i = 0; i < blocksize; i += 2) packed[i / 2] = static_cast<std::uint8_t>(code(i) << 4 | code(i + 1));
}

template <class Source, bool splits_zero, class See>
HWY_INLINE void encode_blocks_as(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocks,
                                 std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed, float* HWY_RESTRICT absmax,
                                 const See& see) {
  for (; blocks > 0; --blocks, w += blocksize * Source::size, packed += blocksize / 2, ++absmax) {
    *absmax = Source::absmax(w, blocksize);
    const float inverse = *absmax < std::numeric_limits<float>::infinity() ? 1.0f / std::max(*absmax, 1e-38f) : 0;
    encode_block<Source, splits_zero>(tables, w, blocksize, inverse, packed);
    see(w, 1, packed, absmax);
  }
}

template <class Source, bool splits_zero>
HWY_INLINE void encode_blocks_for(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocks,
                                  std::size_t blocksize, const float* HWY_RESTRICT absmax,
                                  std::uint8_t* HWY_RESTRICT packed) {
  for (; blocks > 0; --blocks, w += blocksize * Source::size, packed += blocksize / 2, ++absmax)
    encode_block<Source, splits_zero>(tables, w, blocksize, inverse_of_given(*absmax), packed);
}

#endif

template <class Source, class See>
HWY_INLINE void encode_blocks(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocks,
                              std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed, float* HWY_RESTRICT absmax,
                              const See& see) {
  tables.splits_zero ? encode_blocks_as<Source, true>(tables, w, blocks, blocksize, packed, absmax, see)
                     : encode_blocks_as<Source, false>(tables, w, blocks, blocksize, packed, absmax, see);
}

struct SeeNothing {
  HWY_INLINE void operator()(const std::byte* /*w*/, std::size_t /*blocks*/, const std::uint8_t* /*packed*/,
                             const float* /*absmax*/) const {}
};

template <class Source>
HWY_NOINLINE void encode_tiny(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocks,
                              std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed, float* HWY_RESTRICT absmax) {
  encode_blocks<Source>(tables, w, blocks, blocksize, packed, absmax, SeeNothing());
}

// bf16 weights are encoded by tables.bf16_steps if there are any; all other weights, and all on the scalar target, by
// encode_blocks().
template <class Source, class See>
HWY_INLINE void encode_whole_blocks(const FourBitTables& tables, const std::byte* HWY_RESTRICT w, std::size_t blocks,
                                    std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed,
                                    float* HWY_RESTRICT absmax, const See& see) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<Source, Bf16>)
    if (tables.bf16_steps != nullptr)
      return encode_blocks_by_steps(
          *tables.bf16_steps, w, blocks, blocksize, packed, absmax,
          [&](const std::byte* from, std::size_t count, std::uint8_t* to, float* largest)
              HWY_ATTR { encode_tiny<Source>(tables, from, count, blocksize, to, largest); },
          see);
#endif
  encode_blocks<Source>(tables, w, blocks, blocksize, packed, absmax, see);
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
