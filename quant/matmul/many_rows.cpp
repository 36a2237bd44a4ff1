// Products for any number of rows: a tile of the weight is decoded into the layout that the kernel of tile.hpp needs,
// and multiplied by all rows of a tile of x.
#include "quant/matmul/many_rows.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/lines.hpp"
#include "quant/matmul/row_kernel.hpp"
#include "quant/matmul/tile.hpp"
#include "quant/simd/widen.hpp"

namespace nibble::matmul {
namespace {

// A tile of sums has 512 KiB, one of x 256 KiB, one of the weight 128 KiB: an L2 cache of 1 MiB holds them. Up to 512
// rows, each weight is decoded once. Fewer rows have wider tiles, so that more of a row of the weight is read at a
// time. The bytes of a result depend on tile_words and on nothing else here: the sums of so many words at most are
// added up one after the other (tile.cpp takes fewer).
constexpr std::size_t tile_rows = 512, max_columns = max_rounded_columns, tile_words = 128;
[[nodiscard]] std::size_t columns_for(std::size_t m) { return m <= tile_rows / 2 ? max_columns : max_columns / 2; }
// The codes so many rows of the weight later are asked for: what a tile has of a row is too short for the processor's
// own prefetching.
constexpr std::size_t rows_ahead = 16;
static_assert(max_columns <= Weight::max_part);
constexpr std::size_t max_depth = 2 * tile_words;

[[nodiscard]] Range tile_of(std::size_t number, std::size_t size, std::size_t all) {
  return {number * size, std::min(size, all - number * size)};
}

// The tiles of one result at a time.
class Tiles {
 public:
  Tiles(const Weight& weight, bool transposed, const TileKernel& kernel, const Operands& operands)
      : weight_(weight),
        transposed_(transposed),
        kernel_(kernel),
        bf16_(kernel.per_word == 2 ? row_kernel_bf16() : std::nullopt),
        operands_(operands),
        bytes_(traits(operands.dtype).bits / 8),
        depth_(transposed ? weight.k() : weight.n()),
        columns_(transposed ? weight.n() : weight.k()),
        is_direct_(kernel.per_word == 2 && depth_ % 2 == 0),
        tile_columns_(columns_for(operands.m)),
        x_(is_direct_ ? 0 : std::min(tile_rows, operands.m) * tile_words),
        panel_(tile_words * tile_columns_),
        sums_(std::min(tile_rows, operands.m) * tile_columns_) {}

  void multiply(Range rows, Range columns) {
    std::fill_n(sums_.data(), rows.size * tile_columns_, 0.0f);
    const std::size_t tile_depth = tile_words * kernel_.per_word;
    for (std::size_t tile = 0; tile * tile_depth < depth_; ++tile) {
      const Range depth = tile_of(tile, tile_depth, depth_);
      words_ = ceil_div(depth.size, kernel_.per_word);
      transposed_ ? fill_panel(columns, depth) : fill_panel_dx(columns, depth);
      const std::byte* x = operands_.x.data() + (rows.first * depth_ + depth.first) * bytes_;
      std::size_t stride = depth_ * bytes_;
      if (!is_direct_) {
        fill_x(rows, depth);
        x = reinterpret_cast<const std::byte*>(x_.data());
        stride = words_ * sizeof(std::uint32_t);
      }
      for (std::size_t column = 0; column < columns.size; column += kernel_.width)
        kernel_.multiply(x, stride, rows.size, words_, panel_.data() + column * words_, sums_.data() + column,
                         tile_columns_);
    }
    round(operands_, rows, columns, columns_, sums_.data(), tile_columns_);
  }

 private:
  // Copies a tile of x to words that follow each other, because rows that are far apart compete for the same lines of
  // the caches. bf16 is read in place if its rows have an even number of columns.
  void fill_x(Range rows, Range depth) {
    for (std::size_t row = 0; row < rows.size; ++row) {
      const std::size_t at = (rows.first + row) * depth_ + depth.first;
      const auto from = operands_.x.subspan(at * bytes_, depth.size * bytes_);
      std::uint32_t* const to = x_.data() + row * words_;
      if (kernel_.per_word == 2) {  // x is in bf16
        to[words_ - 1] = 0;
        std::memcpy(to, from.data(), from.size());
      } else {
        const std::span<float> numbers(reinterpret_cast<float*>(to), depth.size);
        const std::span<const float> wide = widen(operands_.dtype, from, numbers);
        if (wide.data() != numbers.data()) std::copy(wide.begin(), wide.end(), numbers.begin());
      }
    }
  }

  // Columns of the result are rows of the weight.
  void fill_panel(Range columns, Range depth) {
    std::array<float, max_depth> numbers;
    alignas(64) std::array<std::uint32_t, 4 * tile_words> words;
    for (std::size_t column = 0; column < columns.size; column += 4) {
      for (std::size_t c = 0; c < 4; ++c) {
        std::uint32_t* const to = words.data() + c * words_;
        const std::size_t row = columns.first + column + c;
        if (column + c >= columns.size) {
          std::fill_n(to, words_, 0);
        } else if (!bf16_ || words_ % 16 != 0 ||
                   !weight_.decode_words(*bf16_, row, depth.first, depth.size, rows_ahead * depth_, to)) {
          weight_.prefetch(row + rows_ahead, depth.first, depth.size);
          weight_.decode(row, depth.first, depth.size, numbers.data());
          kernel_.to_words(numbers.data(), depth.size, to);
        }
      }
      const std::size_t in_group = column % kernel_.width;
      transpose_four(words.data(), words_, panel_.data() + (column - in_group) * words_ + in_group, kernel_.width);
    }
  }

  void fill_panel_dx(Range columns, Range depth) {
    std::array<float, max_columns> numbers[2];
    std::array<std::uint32_t, max_columns> words{};
    const std::size_t width = kernel_.width;
    for (std::size_t p = 0; p < words_; ++p) {
      const std::size_t row = depth.first + p * kernel_.per_word;
      const std::size_t count = std::min(kernel_.per_word, depth.first + depth.size - row);
      if (count == 2 &&
          weight_.decode_pairs(kernel_, row, columns, rows_ahead * columns_, panel_.data() + p * width, words_ * width))
        continue;
      for (std::size_t i = 0; i < count; ++i) {
        weight_.prefetch(row + i + rows_ahead, columns.first, columns.size);
        weight_.decode(row + i, columns.first, columns.size, numbers[i].data());
      }
      kernel_.side_by_side(numbers[0].data(), count == 2 ? numbers[1].data() : nullptr, columns.size, words.data());
      for (std::size_t column = 0; column < columns.size; column += width)
        std::copy_n(words.data() + column, width, panel_.data() + column * words_ + p * width);
    }
  }

  const Weight& weight_;
  bool transposed_;
  const TileKernel& kernel_;
  std::optional<RowKernel> bf16_;  // decodes weights into the words of the kernel
  const Operands& operands_;
  std::size_t bytes_, depth_, columns_, words_ = 0;
  bool is_direct_;  // whether the kernel reads x where it is: see fill_x()
  std::size_t tile_columns_;
  Lines<std::uint32_t> x_, panel_;
  Lines<float> sums_;
};

}  // namespace

void multiply_tiles(const Weight& weight, bool transposed, const Operands& operands, const Executor& executor) {
  const std::optional<TileKernel> bf16 = operands.dtype == DType::bf16 && prefers_bf16() ? tile_bf16() : std::nullopt;
  const TileKernel kernel = bf16 ? *bf16 : tile_f32();
  const std::size_t columns = transposed ? weight.n() : weight.k();
  const std::size_t tile_columns = columns_for(operands.m), across = ceil_div(columns, tile_columns),
                    down = ceil_div(operands.m, tile_rows);
  executor(across * down, [&](std::size_t first, std::size_t end) {
    Tiles tiles(weight, transposed, kernel, operands);
    // The tiles below each other come first: they have the same weights.
    for (std::size_t i = first; i < end; ++i)
      tiles.multiply(tile_of(i % down, tile_rows, operands.m), tile_of(i / down, tile_columns, columns));
  });
}

}  // namespace nibble::matmul
