// Products in AMX tiles. y is computed as weight * transposed(x), so that rows of the weight are decoded in the order
// in which they are stored; dx as dy * weight, of which pairs of rows are decoded side by side.
#include "quant/matmul/amx_rows.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "nibble/bf16.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/amx/amx_kernel.hpp"
#include "quant/matmul/amx/amx_weight.hpp"
#include "quant/matmul/amx/packed_rows.hpp"
#include "quant/matmul/lines.hpp"
#include "quant/simd/transpose.hpp"

namespace nibble::matmul {
namespace {

// Up to so many rows of x are multiplied at a time. Each weight is decoded once for them.
constexpr std::size_t rows_at_once = 512;
// Enough groups of rows_at_once rows of x are copied at once that there are at least so many tasks.
constexpr std::size_t enough_amx_tasks = 64;
// Strides that are a multiple of 4 KiB would let all rows or groups compete for the same lines of L1.
constexpr std::size_t stride_padding = line_bytes / sizeof(float);

// A task has some columns of the result, and takes the depth part by part. Of a part, it decodes the weights of a strip
// of its columns, and multiplies them before those of the next strip.
struct AmxSizes {
  std::size_t columns, strip, part;
};
constexpr std::size_t max_amx_strip = 128;

// With 512 rows, 256 columns and parts of 256, the numbers of x take 256 KiB and the sums 512 KiB: they fit L2, and x
// is read from there once for every strip. A strip of y has 32 KiB, and fits L1. A strip of dx has whole cache lines of
// the rows of the weight. With few rows, sums are small. Their tasks are narrow for y, so that rows of the weight are
// read one after the other. For dx they are wide, so that long parts of each row are read.
AmxSizes amx_sizes_for(std::size_t m, bool transposed) {
  const bool are_few = m <= 32;
  if (transposed) return {are_few ? 64u : 256u, 64, 256};
  return {are_few ? 512u : 256u, max_amx_strip, are_few ? 128u : 256u};
}

// Some columns of the result at a time.
template <class Decoder> class AmxColumns {
 public:
  AmxColumns(const Weight& weight, bool transposed, const AmxKernel& kernel, const Operands& operands, Decoder decoder)
      : weight_(weight),
        transposed_(transposed),
        kernel_(kernel),
        operands_(operands),
        decoder_(std::move(decoder)),
        sizes_(amx_sizes_for(operands.m, transposed)),
        depth_(transposed ? weight.k() : weight.n(), sizes_.part),
        columns_(transposed ? weight.n() : weight.k()),
        max_down_(rounded_up(std::min(operands.m, rows_at_once), amx_rows)),
        sums_stride_((transposed ? max_down_ : sizes_.columns) + stride_padding),
        panel_(sizes_.strip / amx_words * (DepthParts::max_words * amx_words + stride_padding)),
        sums_((transposed ? sizes_.columns : max_down_) * sums_stride_),
        turned_(transposed ? sizes_.columns * amx_rows : 0) {
    kernel_.begin();
  }
  ~AmxColumns() { kernel_.end(); }
  AmxColumns(const AmxColumns&) = delete;
  AmxColumns& operator=(const AmxColumns&) = delete;

  void multiply(const PackedRows& x, Range columns) {
    task_ = columns;
    if (transposed_) decoder_.start_rows(columns);
    for (std::size_t part = 0; part < depth_.count(); ++part)
      for (std::size_t first = 0; first < columns.size; first += sizes_.strip) {
        const Range strip{columns.first + first, std::min(sizes_.strip, columns.size - first)};
        transposed_ ? multiply_left(x, strip, first, part) : multiply_right(x, strip, first, part);
      }
    if (!transposed_) return round(operands_, x.rows(), columns, columns_, sums_.data(), sums_stride_);
    for (std::size_t row = 0; row < x.rows().size; row += amx_rows) {
      transpose(reinterpret_cast<const std::byte*>(sums_.data() + row), sums_stride_, columns.size, amx_rows,
                sizeof(float), reinterpret_cast<std::byte*>(turned_.data()), sizes_.columns);
      round(operands_, {x.rows().first + row, std::min(amx_rows, x.rows().size - row)}, columns, columns_,
            turned_.data(), sizes_.columns);
    }
  }

 private:
  // A strip of columns of y, which are rows of the weight.
  void multiply_left(const PackedRows& x, Range strip, std::size_t first, std::size_t part) {
    const std::size_t words = depth_.words_of(part), rows = rounded_up(strip.size, amx_rows);
    const Range depth = depth_.of(part);
    LinesAhead ahead = after_left(first, strip.size, part);
    const std::size_t lines_of_row = ceil_div(ahead.left(), 2 * rows);
    const std::size_t decoded = decoder_.rows(strip, depth, ahead, lines_of_row, panel_.data(), words) ? strip.size : 0;
    for (std::size_t r = decoded; r < rows; ++r) {
      std::array<std::uint16_t, DepthParts::max_part> numbers{};
      if (r < strip.size) decode(strip.first + r, depth, numbers);
      write_words(numbers, words, decoder_.arrange(), panel_.data() + r * words);
    }
    kernel_.multiply({.left = panel_.data(),
                      .left_rows = rows,
                      .left_stride = words,
                      .right = x.of(part),
                      .right_groups = x.padded_rows() / amx_words,
                      .right_stride = words * amx_words,
                      .words = words},
                     part == 0, sums_.data() + first * sums_stride_, sums_stride_, ahead);
  }

  // What is asked for while some rows of the weight are multiplied: if the task has one strip, as many codes of the
  // next task, in the order of memory, and otherwise the next part of these rows.
  [[nodiscard]] LinesAhead after_left(std::size_t first, std::size_t rows, std::size_t part) const {
    const std::size_t k = weight_.k(), next_task = task_.first + sizes_.columns, bytes = decoder_.bytes(sizes_.part);
    if (sizes_.columns == sizes_.strip)
      return {decoder_.codes(next_task * k + depth_.of(part).first * rows), rows, bytes, bytes};
    const std::size_t next =
        part + 1 < depth_.count() ? (task_.first + first) * k + depth_.of(part + 1).first : (next_task + first) * k;
    return {decoder_.codes(next), rows, bytes, decoder_.bytes(k)};
  }
  // The same while some columns of the weight are multiplied: some rows of the next part, in all columns of the task.
  [[nodiscard]] LinesAhead after_right(std::size_t first, std::size_t columns, std::size_t part) const {
    if (part + 1 == depth_.count()) return {};
    const Range next = depth_.of(part + 1);
    const std::size_t begin = next.size * first / task_.size;
    const std::size_t end = next.size * (first + columns) / task_.size;
    return {decoder_.codes((next.first + begin) * weight_.k() + task_.first), end - begin, decoder_.bytes(task_.size),
            decoder_.bytes(weight_.k())};
  }

  // A strip of columns of dx, which are columns of the weight.
  void multiply_right(const PackedRows& x, Range strip, std::size_t first, std::size_t part) {
    const std::size_t words = depth_.words_of(part), group_stride = words * amx_words + stride_padding;
    const Range depth = depth_.of(part);
    LinesAhead ahead = after_right(first, strip.size, part);
    if (depth.size != 2 * words || !decoder_.pairs(depth, strip, ahead, panel_.data(), group_stride))
      for (std::size_t p = 0; p < words; ++p) {
        std::array<std::uint16_t, max_amx_strip> numbers[2] = {};
        for (std::size_t i = 0; i < 2; ++i)
          if (2 * p + i < depth.size) decode(depth.first + 2 * p + i, strip, numbers[i]);
        for (std::size_t c = 0; c < rounded_up(strip.size, amx_words); ++c)
          panel_.data()[c / amx_words * group_stride + p * amx_words + c % amx_words] =
              numbers[0][c] | static_cast<std::uint32_t>(numbers[1][c]) << 16;
      }
    kernel_.multiply({.left = x.of(part),
                      .left_rows = x.padded_rows(),
                      .left_stride = words,
                      .right = panel_.data(),
                      .right_groups = ceil_div(strip.size, amx_words),
                      .right_stride = group_stride,
                      .words = words},
                     part == 0, sums_.data() + first, sums_stride_, ahead);
  }

  void decode(std::size_t row, Range columns, std::span<std::uint16_t> numbers) const {
    std::array<float, std::max(DepthParts::max_part, max_amx_strip)> wide;
    weight_.decode(row, columns.first, columns.size, wide.data());
    (void)bf16::encode(std::span<const float>(wide).first(columns.size), numbers.first(columns.size));
  }

  const Weight& weight_;
  bool transposed_;
  const AmxKernel& kernel_;
  const Operands& operands_;
  Decoder decoder_;
  AmxSizes sizes_;
  DepthParts depth_;
  Range task_{};
  std::size_t columns_, max_down_, sums_stride_;
  Lines<std::uint32_t> panel_;
  Lines<float> sums_, turned_;
};

template <class Decoder, class Rows>
void multiply(const Rows& weight, bool transposed, const Operands& operands, const Executor& executor) {
  const AmxKernel kernel = *amx_kernel();
  const Decoder decoder(weight, kernel);
  const AmxSizes sizes = amx_sizes_for(operands.m, transposed);
  const DepthParts depth(transposed ? weight.k() : weight.n(), sizes.part);
  const std::size_t columns = transposed ? weight.n() : weight.k(), parts = depth.count();
  const std::size_t across = ceil_div(columns, sizes.columns), down = ceil_div(operands.m, rows_at_once);
  const auto side = transposed ? PackedRows::Side::right : PackedRows::Side::left;
  const Arrange arrange = transposed ? decoder.arrange() : nullptr;
  const auto range_of = [](std::size_t number, std::size_t size, std::size_t all) {
    return Range{number * size, std::min(size, all - number * size)};
  };
  const std::size_t at_once = std::min(down, ceil_div(enough_amx_tasks, across));
  for (std::size_t done = 0; done < down; done += at_once) {
    const std::size_t count = std::min(at_once, down - done);
    std::vector<PackedRows> x;
    x.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
      x.emplace_back(operands, side, arrange, depth, range_of(done + i, rows_at_once, operands.m));
    executor(count * parts, [&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end; ++i) x[i / parts].pack(i % parts);
    });
    executor(across * count, [&](std::size_t first, std::size_t end) {
      AmxColumns<Decoder> of_thread(weight, transposed, kernel, operands, decoder);
      // Those below each other come first: they have the same weights.
      for (std::size_t i = first; i < end; ++i)
        of_thread.multiply(x[i % count], range_of(i / count, sizes.columns, columns));
    });
  }
}

// Fewer rows take less time in registers: on Granite Rapids, 4096 x 4096 and one thread, 4-bit weights times 4 rows
// take 0.86 of the time (dx: 0.73), times 6 rows 1.07 (1.29); int8 weights times 6 rows 0.84 (0.87), times 8 rows 0.98
// (1.03).
constexpr std::size_t min_m_of_four_bit = 5, min_m_of_int8 = 8;

bool are_amx_rows(const Weight& weight, const Operands& operands, std::size_t min_m) {
  return operands.dtype == DType::bf16 && operands.m >= min_m && weight.n() != 0 && weight.k() != 0 &&
         amx_kernel().has_value();
}

}  // namespace

bool are_amx_rows(const FourBitRows& weight, const Operands& operands) {
  const bool has_room =
      !weight.has_nested_absmax() || weight.k() / weight.blocksize() <= AmxFourBit::max_nested_blocks_of_row;
  return has_room && are_amx_rows(weight, operands, min_m_of_four_bit);
}

bool are_amx_rows(const Int8Rows& weight, const Operands& operands) {
  return are_amx_rows(weight, operands, min_m_of_int8);
}

void multiply_amx(const FourBitRows& weight, bool transposed, const Operands& operands, const Executor& executor) {
  multiply<AmxFourBit>(weight, transposed, operands, executor);
}

void multiply_amx(const Int8Rows& weight, bool transposed, const Operands& operands, const Executor& executor) {
  multiply<AmxInt8>(weight, transposed, operands, executor);
}

}  // namespace nibble::matmul
