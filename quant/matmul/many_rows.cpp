// Products for any number of rows: a tile of the weight is decoded into the layout that the kernel of tile.hpp needs,
// and multiplied by all rows of a tile of x.
#include "quant/matmul/many_rows.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/lines.hpp"
#include "quant/matmul/words/row_kernel.hpp"
#include "quant/matmul/words/tile.hpp"
#include "quant/simd/widen.hpp"

namespace nibble::matmul {
namespace {

// A tile of sums has 512 KiB, one of x 256 KiB, one of the weight 128 KiB: an L2 cache of 1 MiB holds them. Up to 512
// rows, each weight is decoded once. Fewer rows have wider tiles, so that more of a row of the weight is read at a
// time. The bytes of a result depend on two of these numbers: at most tile_words words are summed up one after the
// other, and tile_rows decides whether the last tile has so few rows that tile.cpp sums up fewer.
constexpr std::size_t tile_rows = 512, max_columns = max_rounded_columns, tile_words = 128;
[[nodiscard]] std::size_t columns_for(std::size_t m) { return m <= tile_rows / 2 ? max_columns : max_columns / 2; }
// The codes so many rows of the weight later are asked for: what a tile has of a row is too short for the processor's
// own prefetching.
constexpr std::size_t rows_ahead = 16;
static_assert(max_columns <= Weight::max_part);
// Enough groups of tile_rows rows of x are copied at once that there are at least so many tasks. More threads are not
// all busy.
constexpr std::size_t enough_tasks = 64;
constexpr std::size_t max_depth = 2 * tile_words;

[[nodiscard]] Range tile_of(std::size_t number, std::size_t size, std::size_t all) {
  return {number * size, std::min(size, all - number * size)};
}

// Up to tile_rows rows of x, tile by tile along the depth. In fp32 they are copied, so that the rows of a tile follow
// each other: rows that are far apart compete for the same lines of the caches. In bf16 they are read where they are,
// if they have an even number of columns.
class RowsOfX {
 public:
  RowsOfX(const Operands& operands, const TileKernel& kernel, std::size_t depth, Range rows)
      : operands_(operands),
        kernel_(kernel),
        depth_(depth),
        rows_(rows),
        bytes_(traits(operands.dtype).bits / 8),
        is_direct_(is_direct(kernel, depth)),
        words_(is_direct_ ? 0 : rows.size * ceil_div(depth, kernel.per_word)) {}

  [[nodiscard]] static bool is_direct(const TileKernel& kernel, std::size_t depth) {
    return kernel.per_word == 2 && depth % 2 == 0;
  }
  [[nodiscard]] static std::size_t tiles(const TileKernel& kernel, std::size_t depth) {
    return ceil_div(depth, tile_words * kernel.per_word);
  }

  [[nodiscard]] Range rows() const { return rows_; }
  [[nodiscard]] std::size_t tiles() const { return tiles(kernel_, depth_); }
  [[nodiscard]] Range depth_of(std::size_t tile) const { return tile_of(tile, tile_words * kernel_.per_word, depth_); }
  [[nodiscard]] std::size_t words_of(std::size_t tile) const { return ceil_div(depth_of(tile).size, kernel_.per_word); }

  // Has to be called for each tile before it is read, unless x is read where it is.
  void copy(std::size_t tile) {
    const std::size_t numbers = depth_of(tile).size;
    for (std::size_t row = 0; row < rows_.size; ++row) {
      const auto from = operands_.x.subspan(at(row, tile), numbers * bytes_);
      std::uint32_t* const to = words_of_row(row, tile);
      if (kernel_.per_word == 2) {  // x is in bf16
        to[words_of(tile) - 1] = 0;
        std::memcpy(to, from.data(), from.size());
      } else {
        const std::span<float> room(reinterpret_cast<float*>(to), numbers);
        const std::span<const float> wide = widen(operands_.dtype, from, room);
        if (wide.data() != room.data()) std::copy(wide.begin(), wide.end(), room.begin());
      }
    }
  }

  // The first row of a tile, and bytes from row to row.
  [[nodiscard]] const std::byte* of(std::size_t tile) const {
    return is_direct_ ? operands_.x.data() + at(0, tile) : reinterpret_cast<const std::byte*>(words_of_row(0, tile));
  }
  [[nodiscard]] std::size_t stride(std::size_t tile) const {
    return is_direct_ ? depth_ * bytes_ : words_of(tile) * sizeof(std::uint32_t);
  }

  // All of a tile if its rows follow each other.
  [[nodiscard]] CacheLines lines_of(std::size_t tile) const {
    return {of(tile), is_direct_ ? 0 : ceil_div(rows_.size * stride(tile), line_bytes)};
  }

 private:
  [[nodiscard]] std::size_t at(std::size_t row, std::size_t tile) const {
    return ((rows_.first + row) * depth_ + depth_of(tile).first) * bytes_;
  }
  [[nodiscard]] std::uint32_t* words_of_row(std::size_t row, std::size_t tile) const {
    return words_.data() + tile * tile_words * rows_.size + row * words_of(tile);
  }

  const Operands& operands_;
  const TileKernel& kernel_;
  std::size_t depth_;
  Range rows_;
  std::size_t bytes_;
  bool is_direct_;
  Lines<std::uint32_t> words_;
};

// The tiles of some columns of the result at a time.
class Tiles {
 public:
  Tiles(const Weight& weight, bool transposed, const TileKernel& kernel, const Operands& operands)
      : weight_(weight),
        transposed_(transposed),
        kernel_(kernel),
        bf16_(kernel.per_word == 2 ? row_kernel_bf16() : std::nullopt),
        operands_(operands),
        depth_(transposed ? weight.k() : weight.n()),
        columns_(transposed ? weight.n() : weight.k()),
        tile_columns_(columns_for(operands.m)),
        panel_(tile_words * tile_columns_),
        sums_(std::min(tile_rows, operands.m) * tile_columns_) {}

  // `next` has the rows of x that will be multiplied next.
  void multiply(const RowsOfX& x, Range columns, const RowsOfX& next) {
    const std::size_t rows = x.rows().size;
    std::fill_n(sums_.data(), rows * tile_columns_, 0.0f);
    for (std::size_t tile = 0; tile < x.tiles(); ++tile) {
      words_ = x.words_of(tile);
      transposed_ ? fill_panel(columns, x.depth_of(tile)) : fill_panel_dx(columns, x.depth_of(tile));
      // The next tile is read from memory meanwhile.
      const CacheLines ahead = tile + 1 < x.tiles() ? x.lines_of(tile + 1) : next.lines_of(0);
      const std::size_t groups = ceil_div(columns.size, kernel_.width);
      for (std::size_t group = 0; group < groups; ++group) {
        const std::size_t column = group * kernel_.width;
        kernel_.multiply(x.of(tile), x.stride(tile), rows, words_, panel_.data() + column * words_,
                         sums_.data() + column, tile_columns_, ahead.parts(group, group + 1, groups));
      }
    }
    round(operands_, x.rows(), columns, columns_, sums_.data(), tile_columns_);
  }

 private:
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
                   !weight_.decode_words(bf16_->decoder, row, depth.first, depth.size, rows_ahead * depth_, to)) {
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
      if (count == 2 && kernel_.decoder &&
          weight_.decode_pairs(*kernel_.decoder, row, columns, rows_ahead * columns_, panel_.data() + p * width,
                               words_ * width))
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
  std::size_t depth_, columns_, words_ = 0;  // words_ of a row of the tile
  std::size_t tile_columns_;
  Lines<std::uint32_t> panel_;
  Lines<float> sums_;
};

}  // namespace

void multiply_tiles(const Weight& weight, bool transposed, const Operands& operands, const Executor& executor) {
  const std::optional<TileKernel> bf16 = operands.dtype == DType::bf16 && prefers_bf16() ? tile_bf16() : std::nullopt;
  const TileKernel kernel = bf16 ? *bf16 : tile_f32();
  const std::size_t columns = transposed ? weight.n() : weight.k(), depth = transposed ? weight.k() : weight.n();
  if (columns == 0) return;
  const std::size_t tile_columns = columns_for(operands.m), across = ceil_div(columns, tile_columns),
                    down = ceil_div(operands.m, tile_rows), tiles = RowsOfX::tiles(kernel, depth);
  const bool is_direct = RowsOfX::is_direct(kernel, depth);
  const std::size_t at_once = is_direct ? down : std::min(down, ceil_div(enough_tasks, across));
  for (std::size_t done = 0; done < down; done += at_once) {
    const std::size_t count = std::min(at_once, down - done);
    std::vector<RowsOfX> x;
    x.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
      x.emplace_back(operands, kernel, depth, tile_of(done + i, tile_rows, operands.m));
    if (!is_direct)
      executor(count * tiles, [&](std::size_t first, std::size_t end) {
        for (std::size_t i = first; i < end; ++i) x[i / tiles].copy(i % tiles);
      });
    executor(across * count, [&](std::size_t first, std::size_t end) {
      Tiles of_thread(weight, transposed, kernel, operands);
      // The tiles below each other come first: they have the same weights.
      for (std::size_t i = first; i < end; ++i)
        of_thread.multiply(x[i % count], tile_of(i / count, tile_columns, columns), x[(i + 1) % count]);
    });
  }
}

}  // namespace nibble::matmul
