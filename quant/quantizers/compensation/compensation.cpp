// Rows are quantized in slabs that share what they read of the factor. Block by block, the corrections by all columns
// before are subtracted from the weights at once, which is nearly all of the work; then the columns of the block are
// quantized one after the other.
#include "quant/quantizers/compensation/compensation.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>

#include "nibble/error.hpp"
#include "quant/quantizers/search/search_ratios.hpp"

namespace nibble {
namespace {

using row_group::OfRows;
constexpr std::size_t group_rows = row_group::rows, slab_groups = 8, slab_rows = group_rows * slab_groups;
constexpr std::size_t tile_columns = InputFactor::tile_columns;
constexpr std::size_t depth_step = 256;  // 16 KiB of differences, and 64 KiB of a tile of the factor, stay in L1 and L2

// Coding has, for 16 rows from `row` on, of which `rows` exist, and a block of columns:
//   chooses_scales: whether choose() needs the weights
//   OfRows choose(row, rows, block, weights, importance): the scales
//   first_row: of the weight, which row 0 is
//   void quantize(scales, columns): row_group::quantize()
//   void store(row, rows, order, codes): takes the codes, of the columns in `order`
template <class Coding> class Slab {
 public:
  Slab(const InputFactor& factor, std::size_t blocksize, const Coding& coding)
      : factor_(factor),
        coding_(coding),
        k_(factor.columns()),
        blocksize_(blocksize),
        differences_(slab_rows * k_),
        original_(slab_rows * blocksize),
        weights_(slab_rows * blocksize),
        expected_(group_rows * blocksize),
        codes_(group_rows * blocksize) {}

  void encode(std::size_t first_row, std::span<const float> weights) {
    first_row_ = first_row;
    rows_ = weights.size() / k_;
    groups_ = (rows_ + group_rows - 1) / group_rows;
    for (std::size_t first = 0; first < k_; first += blocksize_) {
      const std::size_t columns = std::min(blocksize_, k_ - first);
      for (std::size_t g = 0; g < groups_; ++g) gather(weights, g, first, columns);
      correct(first, columns);
      for (std::size_t g = 0; g < groups_; ++g) quantize(g, first, columns);
    }
  }

 private:
  [[nodiscard]] float* differences(std::size_t group, std::size_t column) const {
    return differences_.data() + (group * k_ + column) * group_rows;
  }
  [[nodiscard]] float* of_block(const matmul::Lines<float>& numbers, std::size_t group) const {
    return numbers.data() + group * blocksize_ * group_rows;
  }

  // Rows beyond the last are zeros.
  void gather(std::span<const float> weights, std::size_t group, std::size_t first, std::size_t columns) const {
    float* const original = of_block(original_, group);
    const auto order = factor_.order().subspan(first, columns);
    for (std::size_t r = 0; r < group_rows; ++r) {
      const std::size_t row = group * group_rows + r;
      for (std::size_t c = 0; c < columns; ++c)
        original[c * group_rows + r] = row < rows_ ? weights[row * k_ + order[c]] : 0.0f;
    }
    std::copy_n(original, columns * group_rows, of_block(weights_, group));
  }

  // Subtracts from columns [first, first + columns) what columns [begin, end) add. `weights` begins with column
  // `first`.
  void subtract(std::size_t group, float* weights, std::size_t first, std::size_t columns, std::size_t begin,
                std::size_t end) const {
    for (std::size_t c = first; c < first + columns;) {
      const std::size_t n = std::min(first + columns - c, tile_columns - c % tile_columns);
      const float* const factor = factor_.tile(c / tile_columns) + begin * tile_columns + c % tile_columns;
      subtract_products({factor, 1, tile_columns}, n, end - begin, differences(group, begin),
                        weights + (c - first) * group_rows, group_rows);
      c += n;
    }
  }

  void correct(std::size_t first, std::size_t columns) const {
    for (std::size_t p = 0; p < first; p += depth_step)
      for (std::size_t g = 0; g < groups_; ++g)
        subtract(g, of_block(weights_, g), first, columns, p, std::min(first, p + depth_step));
  }

  // Calls quantize_tile(columns) for the columns of a block, in parts that lie in one tile of the factor.
  template <class F>
  void for_each_tile(std::size_t group, std::size_t block, std::size_t columns, float* weights,
                     const F& quantize_tile) {
    for (std::size_t c = block; c < block + columns;) {
      const std::size_t n = std::min(block + columns - c, tile_columns - c % tile_columns);
      const std::size_t at = (c - block) * group_rows;
      subtract(group, weights + at, c, n, block, c);
      quantize_tile(row_group::Columns{n, of_block(original_, group) + at,
                                       factor_.tile(c / tile_columns) + c * tile_columns + c % tile_columns,
                                       weights + at, differences(group, c), codes_.data() + at});
      c += n;
    }
  }

  void quantize(std::size_t group, std::size_t block, std::size_t columns) {
    const std::size_t row = first_row_ + group * group_rows, rows = std::min(group_rows, rows_ - group * group_rows);
    float* const weights = of_block(weights_, group);
    if constexpr (Coding::chooses_scales) {
      // The scale is that of the best weights for what is quantized so far, as if those of the block were not rounded.
      std::copy_n(weights, columns * group_rows, expected_.data());
      for_each_tile(group, block, columns, expected_.data(), row_group::pass_on);
    }
    const OfRows scales = coding_.choose(row, rows, factor_.order()[block] / blocksize_, expected_.data(),
                                         factor_.importance().subspan(block, columns));
    for_each_tile(group, block, columns, weights,
                  [&](const row_group::Columns& tile) { coding_.quantize(scales, tile); });
    // An infinity or NaN, of a scale too, has reached the weights of the columns after it.
    const OfRows largest = row_group::largest_magnitudes(weights, columns);
    for (std::size_t r = 0; r < rows; ++r)
      if (!std::isfinite(largest[r]))
        throw Error(Errc::bad_input, "the corrections of row " + std::to_string(coding_.first_row + row + r) +
                                         " are beyond the range of fp32");
    coding_.store(row, rows, factor_.order().subspan(block, columns), codes_.data());
  }

  const InputFactor& factor_;
  const Coding& coding_;
  std::size_t k_, blocksize_, first_row_ = 0, rows_ = 0, groups_ = 0;
  matmul::Lines<float> differences_;         // [groups, k, group_rows]
  matmul::Lines<float> original_, weights_;  // [groups, blocksize, group_rows]
  matmul::Lines<float> expected_;            // [blocksize, group_rows]
  matmul::Lines<std::uint8_t> codes_;        // the same
};

template <class Coding>
void encode_slabs(const InputFactor& factor, std::size_t blocksize, std::span<const float> weights,
                  const Coding& coding) {
  const std::size_t k = factor.columns(), rows = weights.size() / k;
  if (rows * k != weights.size() || rows == 0)
    throw Error(Errc::usage, std::to_string(weights.size()) + " weights are not rows of " + std::to_string(k));
  const auto found = std::ranges::find_if_not(weights, [](float w) { return std::isfinite(w); });
  if (found != weights.end()) {
    const auto at = static_cast<std::size_t>(found - weights.begin());
    throw Error(Errc::bad_input, "weight [" + std::to_string(coding.first_row + at / k) + ", " +
                                     std::to_string(at % k) +
                                     "] is not finite, so no other weight can make up for its error");
  }
  Slab<Coding> slab(factor, blocksize, coding);
  for (std::size_t row = 0; row < rows; row += slab_rows)
    slab.encode(row, weights.subspan(row * k, std::min(slab_rows, rows - row) * k));
}

struct FourBitCoding {
  static constexpr bool chooses_scales = true;
  const FourBitCodec& codec;
  const row_group::FourBitGrid& grid;
  std::span<const float> ratios;
  std::size_t blocks;  // of a row
  std::uint64_t first_row;
  const NestedRange* range;
  const FourBitCompensation::Blocks& to;

  OfRows choose(std::size_t row, std::size_t rows, std::size_t block, const float* weights,
                std::span<const float> importance) const {
    const OfRows largest = row_group::largest_magnitudes(weights, importance.size());
    OfRows absmax =
        codec.absmax_choice() == AbsmaxChoice::max
            ? largest
            : row_group::search_absmax(grid, weights, importance.size(), importance.data(), largest, ratios);
    if (range != nullptr) nest(row, rows, block, weights, importance, largest, absmax);
    for (std::size_t r = 0; r < rows; ++r) to.absmax[(row + r) * blocks + block] = absmax[r];
    return absmax;
  }

  void nest(std::size_t row, std::size_t rows, std::size_t block, const float* weights,
            std::span<const float> importance, const OfRows& largest, OfRows& absmax) const {
    std::array<CodesAround, group_rows> codes{};
    OfRows nearest{}, other{};
    for (std::size_t r = 0; r < rows; ++r) {
      const std::uint64_t of_weight = (first_row + row + r) * blocks + block;
      codes[r] = range->around(absmax[r], of_weight);
      nearest[r] = range->value_of(codes[r].nearest, of_weight);
      other[r] = range->value_of(codes[r].other, of_weight);
    }
    const OfRows gain = row_group::gains(grid, weights, importance.size(), importance.data(), largest, nearest);
    const OfRows other_gain = row_group::gains(grid, weights, importance.size(), importance.data(), largest, other);
    for (std::size_t r = 0; r < rows; ++r) {
      const bool takes_other = other_gain[r] > gain[r];
      absmax[r] = takes_other ? other[r] : nearest[r];
      to.absmax_codes[(row + r) * blocks + block] = takes_other ? codes[r].other : codes[r].nearest;
    }
    std::fill(absmax.begin() + static_cast<std::ptrdiff_t>(rows), absmax.end(), 0.0f);
  }

  void quantize(const OfRows& absmax, const row_group::Columns& columns) const {
    row_group::quantize(grid, absmax, columns);
  }

  void store(std::size_t row, std::size_t rows, std::span<const std::uint32_t> order, const std::uint8_t* codes) const {
    const std::size_t k = blocks * codec.blocksize(), first = order.front() / codec.blocksize() * codec.blocksize();
    for (std::size_t r = 0; r < rows; ++r) {
      const auto packed = to.packed.subspan(((row + r) * k + first) / 2, codec.blocksize() / 2);
      std::ranges::fill(packed, std::uint8_t{0});
      for (std::size_t c = 0; c < order.size(); ++c) {
        const std::size_t at = order[c] - first;
        packed[at / 2] = static_cast<std::uint8_t>(packed[at / 2] | codes[c * group_rows + r] << (at % 2 == 0 ? 4 : 0));
      }
    }
  }
};

struct Int8Coding {
  static constexpr bool chooses_scales = false;
  std::size_t k;
  std::uint64_t first_row;
  std::span<const float> absmax;
  std::span<std::int8_t> codes_of_rows;

  OfRows choose(std::size_t row, std::size_t rows, std::size_t, const float*, std::span<const float>) const {
    OfRows scales{};
    std::copy_n(absmax.begin() + static_cast<std::ptrdiff_t>(row), rows, scales.begin());
    return scales;
  }
  void quantize(const OfRows& scales, const row_group::Columns& columns) const {
    row_group::quantize_int8(scales, columns);
  }
  void store(std::size_t row, std::size_t rows, std::span<const std::uint32_t> order, const std::uint8_t* codes) const {
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < order.size(); ++c)
        codes_of_rows[(row + r) * k + order[c]] = static_cast<std::int8_t>(codes[c * group_rows + r]);
  }
};

}  // namespace

// The differences of a slab; weights, originals and, of one group, codes and weights that are not rounded.
std::uint64_t compensation_bytes(std::uint64_t k, std::uint64_t blocksize) {
  const std::uint64_t columns = std::max<std::uint64_t>(blocksize, tile_columns);
  return sizeof(float) * slab_rows * k + columns * (2 * sizeof(float) * slab_rows + (sizeof(float) + 1) * group_rows);
}

FourBitCompensation::FourBitCompensation(const FourBitCodec& codec, const InputFactor& factor)
    : codec_(codec),
      factor_(factor),
      grid_(codec.tables()),
      ratios_(search_ratios(codec.blocksize(), codec.absmax_choice())) {
  assert(factor.blocksize() == codec.blocksize());
}

void FourBitCompensation::encode(std::uint64_t first_row, std::span<const float> weights, const NestedRange* range,
                                 const Blocks& to) const {
  check_four_bit_sizes(weights.size(), codec_.blocksize(), to.packed.size(), to.absmax.size());
  assert(codec_.double_quant() == (range != nullptr));
  assert(range == nullptr || to.absmax_codes.size() == to.absmax.size());
  encode_slabs(factor_, codec_.blocksize(), weights,
               FourBitCoding{codec_, grid_, ratios_, factor_.columns() / codec_.blocksize(), first_row, range, to});
}

void compensate_int8(const InputFactor& factor, std::uint64_t first_row, std::span<const float> weights,
                     std::span<const float> absmax, std::span<std::int8_t> codes) {
  assert(codes.size() == weights.size() && absmax.size() * factor.columns() == weights.size());
  encode_slabs(factor, tile_columns, weights, Int8Coding{factor.columns(), first_row, absmax, codes});
}

}  // namespace nibble
