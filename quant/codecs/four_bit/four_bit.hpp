#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "nibble/codec.hpp"
#include "quant/codecs/absmax_choice.hpp"
#include "quant/codecs/four_bit/int16_codebook.hpp"

/// What the 4-bit formats share: blocks and packing. A format adds its FourBitTables.
namespace nibble {

[[nodiscard]] constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0); }

struct Bf16Steps;  // quant/codecs/four_bit/four_bit_bf16.hpp

/// How to find the code of v in [-1, 1]. The codes are numbered by the number of midpoints below v. The search runs on
/// a grid of 16-bit integers, where twice as many weights fit a register as in fp32:
///
///   x = round(grid * v),  g = floor(base + x * (slope - 4 * |x|)) in fixed point,  number = g + (x > position[g])
///
/// with position[k] that of midpoint k on the grid. make_tables() proves that g is right or one too small. Rounding
/// keeps the order, so the number is in doubt only if x equals such a position. About 2 of 100 groups of 64 weights
/// have such an x; they are encoded again in fp32. (docs/tried-and-lost.md compares other ways.)
///
/// On targets that look up 32 words at once (AVX-512), buckets of 2^11 positions are enough, because each has at most
/// one midpoint:
///
///   the upper 4 of 16 bits of x + bucket[x >> 11 & 31] are the number; the lower 12 are 0 where it is in doubt
struct FourBitTables {
  alignas(64) std::array<float, 16> midpoint;  ///< ascending, between neighbours of the codebook; rest infinite
  std::size_t midpoints;                       ///< how many of them are finite
  alignas(16) std::array<std::uint8_t, 16> lower, upper;  ///< lower and upper bytes of the midpoints' positions
  alignas(16) std::array<std::uint8_t, 16> code;          ///< by number
  alignas(64) std::array<float, 16> codebook;             ///< by code
  Int16Codebook int16_codebook;
  std::int16_t base, slope;  ///< in units of 2^-10 and 2^-11
  alignas(64) std::array<std::int16_t, 32> bucket;
  bool has_buckets;  ///< whether each bucket has at most one midpoint (make_tables()); not where splits_zero holds
  bool splits_zero;  ///< two codes have the value 0, and their midpoint 0 is not in the table: it adds (v > 0)
  const Bf16Steps* bf16_steps;  ///< for bf16 weights, or null

  static constexpr float grid = 32737;         ///< below 2^15, and such that rounding never decides (make_tables())
  static constexpr float rounding = 12582912;  ///< 1.5 * 2^23 has an ulp of 1: adding it rounds to integers
  static constexpr int bucket_bits = 11;
  static constexpr std::size_t max_blocksize = 4096;

  /// g as the inner loops compute it.
  [[nodiscard]] constexpr int guess(int x) const { return (base + (x * (slope - (x < 0 ? -x : x) / 2) >> 16)) >> 10; }
  /// x and what its bucket adds, as 16 bits.
  [[nodiscard]] constexpr int sum(int x) const {
    return (x + bucket[static_cast<std::size_t>(x >> bucket_bits & 31)]) & 0xFFFF;
  }
  [[nodiscard]] constexpr int position(int k) const {
    const auto i = static_cast<std::size_t>(k);
    return static_cast<std::int16_t>(upper[i] << 8 | lower[i]);
  }
};

/// Does not compile as a constant if the code of any v could be wrong.
constexpr FourBitTables make_tables(const float (&codebook)[16], const std::array<std::uint8_t, 16>& ascending,
                                    double base, double slope) {
  FourBitTables tables{};
  tables.code = ascending;
  tables.base = static_cast<std::int16_t>(base * (1 << 10));
  tables.slope = static_cast<std::int16_t>(slope * (1 << 11));
  for (std::size_t i = 0; i < 16; ++i) tables.codebook[i] = codebook[i];
  tables.int16_codebook = make_int16_codebook(tables.codebook);
  for (std::size_t i = 0; i < 15; ++i) {
    const float midpoint = (codebook[ascending[i]] + codebook[ascending[i + 1]]) / 2;
    if (midpoint == 0)
      tables.splits_zero = true;
    else
      tables.midpoint[tables.midpoints++] = midpoint;
  }
  for (std::size_t i = tables.midpoints; i < 16; ++i) {
    tables.midpoint[i] = std::numeric_limits<float>::infinity();
    tables.lower[i] = 0xFF;  // 32767: never below an x nor equal to it
    tables.upper[i] = 0x7F;
  }

  // grid * v is computed with an error below 0.01: so a midpoint must not be that close to a rounding boundary.
  bool right = true;
  for (std::size_t k = 0; k < tables.midpoints; ++k) {
    const double exact = static_cast<double>(tables.midpoint[k]) * FourBitTables::grid;
    const int position = static_cast<int>(exact + (exact < 0 ? -0.5 : 0.5));
    tables.lower[k] = static_cast<std::uint8_t>(position & 0xFF);
    tables.upper[k] = static_cast<std::uint8_t>(position >> 8 & 0xFF);
    right = right && exact - position < 0.49 && exact - position > -0.49;
  }
  tables.has_buckets = !tables.splits_zero;
  for (int first = -(1 << 15), k = 0; first < 1 << 15; first += 1 << FourBitTables::bucket_bits) {
    const int end = first + (1 << FourBitTables::bucket_bits), midpoints = static_cast<int>(tables.midpoints);
    const bool has_midpoint = k < midpoints && tables.position(k) < end;
    // Without a midpoint the lower bits are from 1024 to 3071.
    const int turn = 4096 * k + (has_midpoint ? 4096 - tables.position(k) : 1024 - first);
    tables.bucket[static_cast<std::size_t>(first >> FourBitTables::bucket_bits & 31)] = static_cast<std::int16_t>(turn);
    // Within a bucket the sums rise by one, so checking its ends and both sides of the midpoint is enough.
    const int position = has_midpoint ? tables.position(k) : end;
    const auto is = [&](int x, int number) { return tables.sum(x) >> 12 == number && (tables.sum(x) & 4095) != 0; };
    const bool below = position == first || (is(first, k) && is(position - 1, k));
    const bool above = position >= end - 1 || (is(position + 1, k + 1) && is(end - 1, k + 1));
    const bool at_midpoint = !has_midpoint || (tables.sum(position) & 4095) == 0;
    k += has_midpoint ? 1 : 0;
    const bool is_last = k == midpoints || tables.position(k) >= end;
    tables.has_buckets = tables.has_buckets && below && above && at_midpoint && is_last;
  }

  int last = -32767;
  for (int k = 0; k <= static_cast<int>(tables.midpoints); ++k) {
    const bool is_last = k == static_cast<int>(tables.midpoints);
    const int position = is_last ? 32768 : tables.position(k);
    // Between two midpoints the guess is one of two numbers.
    for (int x = last; x < position; ++x) right = right && tables.guess(x) <= k && tables.guess(x) >= k - 1;
    // At the position of midpoint k it must be k; otherwise the doubt would go unnoticed.
    right = right && (is_last || tables.guess(position) == k) && tables.guess(last) >= 0;
    last = position + 1;
  }
  // The loops look codes up only for formats that split zero; otherwise the number is the code.
  for (std::size_t i = 0; i < 16; ++i) right = right && (tables.splits_zero || ascending[i] == i);
  if (!right) throw "the guess misses the code by more than one";
  return tables;
}

/// Throws Error(usage) if a blocksize is not one of 32, 64, ..., 4096 or a size disagrees.
void check_four_bit_sizes(std::size_t weights, std::size_t blocksize, std::size_t packed, std::size_t absmax);

/// nf4::encode() and nf4::decode() for any tables.
std::size_t encode_four_bit(const FourBitTables& tables, std::span<const float> weights, std::size_t blocksize,
                            std::span<std::uint8_t> packed, std::span<float> absmax);
void decode_four_bit(const FourBitTables& tables, std::span<const std::uint8_t> packed, std::span<const float> absmax,
                     std::size_t blocksize, std::span<float> weights);

/// decode_four_bit() to BF16 or F16: the products of codebook and absmax, rounded to nearest even.
void decode_four_bit(const FourBitTables& tables, std::span<const std::uint8_t> packed, std::span<const float> absmax,
                     std::size_t blocksize, DType to, std::span<std::uint16_t> weights);

/// encode_four_bit() of F32, BF16 or F16 weights as a checkpoint stores them, converted in registers.
std::size_t encode_four_bit(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                            std::size_t blocksize, std::span<std::uint8_t> packed, std::span<float> absmax);

/// The codes for an absmax of either sign that is given: the number of midpoints below w * (1 / absmax), in fp32, with
/// 1e-38 in place of a smaller |absmax|; the code of 0 where absmax is 0, and after an odd end. F64 is rounded to fp32.
void encode_four_bit_for(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                         std::size_t blocksize, std::span<const float> absmax, std::span<std::uint8_t> packed);

/// A block with NaN as 0 and infinities as its largest finite magnitude, padded with zeros.
[[nodiscard]] std::array<float, FourBitTables::max_blocksize> repaired(std::span<const float> block);

/// Encodes the blocks that the loops of four_bit_encode-inl.hpp cannot: a short last one, and those whose absmax came
/// out as not finite. Returns how many of those there are.
std::size_t repair_blocks(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                          std::size_t blocksize, std::span<std::uint8_t> packed, std::span<float> absmax);

inline constexpr std::size_t min_blocksize = 32;
inline constexpr std::string_view blocksize_option = "block-size", double_quant_option = "double-quant";
inline constexpr std::array<std::string_view, 8> blocksizes{"32", "64", "128", "256", "512", "1024", "2048", "4096"};
inline constexpr std::array<std::string_view, 2> yes_or_no{"yes", "no"};

/// The options of all 4-bit codecs.
inline constexpr std::array<CodecOption, 3> four_bit_options{
    {{blocksize_option, "number of weights that share an absmax", blocksizes, 1},
     {double_quant_option, "store absmax in 8 bits, with a nested absmax for every 256 of them", yes_or_no, 0},
     absmax_option}};

/// Codec::normal_sqnr_db() for each AbsmaxChoice and block sizes 32, 64, ..., 4096, computed from the codebook, not by
/// this code: of 2^22 normal weights by numpy, and for searches of 2^21, trying all multiples of 1/64 of the largest
/// magnitude (tests/quant/codecs/published_error_test.cpp). Double quantization costs 0.03 dB at most.
using NormalSqnr = std::array<std::array<double, blocksizes.size()>, absmax_choices.size()>;

/// A 4-bit codec with the options that a file states. Throws Error(usage) if it has no such blocksize.
[[nodiscard]] CodecSpec four_bit_spec(std::string_view name, std::uint64_t blocksize, bool double_quant);

/// Two codes to a byte, the first in the upper half, and an absmax for each block, in fp32 or quantized once more
/// (docs/nf4.md). The tables have to outlive it.
class FourBitCodec final : public Codec {
 public:
  FourBitCodec(const CodecSpec& spec, const FourBitTables& tables, const NormalSqnr& normal_sqnr)
      : Codec(spec),
        tables_(tables),
        normal_sqnr_(normal_sqnr),
        blocksize_(min_blocksize << spec.index(blocksize_option)),
        double_quant_(spec.index(double_quant_option) == 0),
        absmax_choice_(absmax_choice_of(spec)) {}

  [[nodiscard]] const FourBitTables& tables() const noexcept { return tables_; }
  [[nodiscard]] std::size_t blocksize() const noexcept { return blocksize_; }
  [[nodiscard]] bool double_quant() const noexcept { return double_quant_; }
  [[nodiscard]] AbsmaxChoice absmax_choice() const noexcept { return absmax_choice_; }

  Granularity granularity() const noexcept override { return Granularity::block; }
  std::span<const float> codebook() const noexcept override { return tables_.codebook; }
  std::vector<Plane> planes(const TensorInfo& tensor) const override;
  std::uint64_t code_bytes(const TensorInfo& tensor, std::uint64_t n) const override;
  std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                   std::span<const std::span<const std::byte>> rest) const override;
  double normal_sqnr_db(const TensorInfo& tensor) const override;

 private:
  const FourBitTables& tables_;
  const NormalSqnr& normal_sqnr_;
  std::size_t blocksize_;
  bool double_quant_;
  AbsmaxChoice absmax_choice_;
};

}  // namespace nibble
