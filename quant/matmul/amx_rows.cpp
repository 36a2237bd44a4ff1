// Products in AMX tiles. y is computed as weight * transposed(x), so that rows of the weight are decoded in the order
// in which they are stored; dx as dy * weight, of which pairs of rows are decoded side by side.
#include "quant/matmul/amx_rows.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/amx/amx_kernel.hpp"
#include "quant/matmul/amx/amx_weight.hpp"
#include "quant/matmul/amx/packed_rows.hpp"
#include "quant/matmul/lines.hpp"
#include "quant/simd/magnitude.hpp"
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

// With 512 rows, 256 columns and parts of 256, each term of x takes 256 KiB and the sums 512 KiB: they fit L2, and x is
// read from there once for every strip. A strip of y has 32 KiB, and fits L1. A strip of dx has whole cache lines of
// the rows of the weight. With few rows, sums are small. Their tasks are narrow for y, so that rows of the weight are
// read one after the other. For dx they are wide, so that long parts of each row are read.
constexpr std::size_t max_few_amx_rows = 32;
AmxSizes amx_sizes_for(std::size_t m, bool transposed) {
  const bool are_few = m <= max_few_amx_rows;
  if (transposed) return {.columns = are_few ? 64u : 256u, .strip = 64, .part = 256};
  return {.columns = are_few ? 512u : 256u, .strip = max_amx_strip, .part = are_few ? 128u : 256u};
}

// A product of a number in bf16 and a factor has two terms if there are few rows or few weights. That takes little
// time, and among few roundings there is little that evens out: the error of a result might be 1.2 times that of
// rounding the weights.
std::size_t terms_of_x(const Weight& weight, const Operands& operands, bool has_factors) {
  constexpr std::size_t few_weights = 65536;
  const bool are_few = operands.m <= max_few_amx_rows || weight.n() * weight.k() <= few_weights;
  return operands.dtype == DType::bf16 && has_factors && are_few ? 2 : terms_of(operands.dtype);
}

// What is multiplied, and in which pieces.
struct AmxProduct {
  const Weight& weight;
  bool transposed;
  const Operands& operands;
  AmxSizes sizes;
  PackedRows::Layout x;
  std::size_t columns, weight_terms;
  std::span<const float> factors;  // of rows of the weight; none if they are in its terms
  // Whether sums that are not finite have to be computed in another way. A number that is infinite has the terms
  // infinity and NaN, and infinity as a factor of a sum is not the sum of infinite products.
  bool has_to_be_finite;
};

// Some columns of the result at a time.
template <class Decoder> class AmxColumns {
 public:
  AmxColumns(const AmxProduct& product, const AmxKernel& kernel, Decoder decoder)
      : product_(product),
        kernel_(kernel),
        decoder_(std::move(decoder)),
        max_down_(rounded_up(std::min(product.operands.m, rows_at_once), amx_rows)),
        sums_stride_((product.transposed ? max_down_ : product.sizes.columns) + stride_padding),
        panel_(product.sizes.strip / amx_words * (DepthParts::max_words * amx_words + stride_padding)),
        sums_((product.transposed ? product.sizes.columns : max_down_) * sums_stride_),
        turned_(product.transposed ? product.sizes.columns * amx_rows : 0) {
    kernel_.begin();
  }
  ~AmxColumns() { kernel_.end(); }
  AmxColumns(const AmxColumns&) = delete;
  AmxColumns& operator=(const AmxColumns&) = delete;

  // False, and nothing is written, if it has to be finite and is not.
  [[nodiscard]] bool multiply(const PackedRows& x, Range columns) {
    task_ = columns;
    if (product_.transposed) decoder_.start_rows(columns);
    for (std::size_t part = 0; part < product_.x.depth.count(); ++part)
      for (std::size_t first = 0; first < columns.size; first += product_.sizes.strip) {
        const Range strip{columns.first + first, std::min(product_.sizes.strip, columns.size - first)};
        for (std::size_t term = 0; term < product_.weight_terms; ++term)
          product_.transposed ? multiply_left(x, strip, part, term) : multiply_right(x, strip, part, term);
      }
    return product_.transposed ? finish_left(x.rows()) : finish_right(x.rows());
  }

 private:
  // A term of a strip of columns of y, which are rows of the weight.
  void multiply_left(const PackedRows& x, Range strip, std::size_t part, std::size_t term) {
    const Range depth = product_.x.depth.of(part);
    const std::size_t words = product_.x.depth.words_of(part), rows = rounded_up(strip.size, amx_rows);
    LinesAhead ahead = term == 0 ? after_left(strip, part) : LinesAhead();
    const std::size_t lines_of_row = ceil_div(ahead.left_of_rows(), 2 * rows);
    if (term == 0) ahead.append(next_x(x, strip, part));
    const bool is_decoded = decoder_.rows(strip, depth, term, ahead, lines_of_row, panel_.data(), words);
    for (std::size_t r = is_decoded ? strip.size : 0; r < rows; ++r) {
      std::array<std::uint16_t, DepthParts::max_part> numbers{};
      if (r < strip.size) decoder_.numbers(strip.first + r, depth, term, numbers);
      write_words(numbers, words, product_.x.arrange, panel_.data() + r * words);
    }
    for (std::size_t x_term = 0; x_term + term < product_.x.terms; ++x_term)
      kernel_.multiply({.left = panel_.data(),
                        .left_rows = rows,
                        .left_stride = words,
                        .right = x.of(part, x_term),
                        .right_groups = x.padded_rows() / amx_words,
                        .right_stride = words * amx_words,
                        .words = words},
                       part + term + x_term == 0, sums_.data() + (strip.first - task_.first) * sums_stride_,
                       sums_stride_, ahead);
  }

  // What is asked for while some rows of the weight are multiplied: if the task has one strip, as many codes of the
  // next task, in the order of memory, and otherwise the next part of these rows.
  [[nodiscard]] LinesAhead after_left(Range strip, std::size_t part) const {
    const std::size_t k = product_.weight.k(), next_task = strip.first + product_.sizes.columns;
    const std::size_t bytes = decoder_.bytes(product_.sizes.part);
    if (product_.sizes.columns == product_.sizes.strip)
      return {decoder_.codes(next_task * k + product_.x.depth.of(part).first * strip.size), strip.size, bytes, bytes};
    const std::size_t next =
        part + 1 < product_.x.depth.count() ? strip.first * k + product_.x.depth.of(part + 1).first : next_task * k;
    return {decoder_.codes(next), strip.size, bytes, decoder_.bytes(k)};
  }
  // The same while some columns of the weight are multiplied: some rows of the next part, in all columns of the task.
  [[nodiscard]] LinesAhead after_right(Range strip, std::size_t part) const {
    if (part + 1 == product_.x.depth.count()) return {};
    const Range next = product_.x.depth.of(part + 1);
    const std::size_t first = strip.first - task_.first, begin = next.size * first / task_.size;
    const std::size_t end = next.size * (first + strip.size) / task_.size;
    return {decoder_.codes((next.first + begin) * product_.weight.k() + task_.first), end - begin,
            decoder_.bytes(task_.size), decoder_.bytes(product_.weight.k())};
  }

  // The strip's share of x in the next part. Few rows are in the second cache already.
  [[nodiscard]] CacheLines next_x(const PackedRows& x, Range strip, std::size_t part) const {
    if (part + 1 == product_.x.depth.count() || x.rows().size <= max_few_amx_rows) return {};
    const std::size_t first = strip.first - task_.first;
    return x.lines_of(part + 1).parts(first, first + strip.size, task_.size);
  }

  // A term of a strip of columns of dx, which are columns of the weight.
  void multiply_right(const PackedRows& x, Range strip, std::size_t part, std::size_t term) {
    const Range depth = product_.x.depth.of(part);
    const std::size_t words = product_.x.depth.words_of(part), group_stride = words * amx_words + stride_padding;
    LinesAhead ahead = term == 0 ? after_right(strip, part) : LinesAhead();
    if (term == 0) ahead.append(next_x(x, strip, part));
    if (depth.size != 2 * words || !decoder_.pairs(depth, strip, term, ahead, panel_.data(), group_stride))
      for (std::size_t p = 0; p < words; ++p) {
        std::array<std::uint16_t, max_amx_strip> numbers[2] = {};
        for (std::size_t i = 0; i < 2; ++i)
          if (2 * p + i < depth.size) decoder_.numbers(depth.first + 2 * p + i, strip, term, numbers[i]);
        for (std::size_t c = 0; c < rounded_up(strip.size, amx_words); ++c)
          panel_.data()[c / amx_words * group_stride + p * amx_words + c % amx_words] =
              numbers[0][c] | static_cast<std::uint32_t>(numbers[1][c]) << 16;
      }
    for (std::size_t x_term = 0; x_term + term < product_.x.terms; ++x_term)
      kernel_.multiply({.left = x.of(part, x_term),
                        .left_rows = x.padded_rows(),
                        .left_stride = words,
                        .right = panel_.data(),
                        .right_groups = ceil_div(strip.size, amx_words),
                        .right_stride = group_stride,
                        .words = words},
                       part + term + x_term == 0, sums_.data() + strip.first - task_.first, sums_stride_, ahead);
  }

  [[nodiscard]] bool finish_left(Range rows) {
    for (std::size_t c = 0; c < task_.size; ++c) {
      const std::span<float> sums(sums_.data() + c * sums_stride_, rows.size);
      if (!product_.factors.empty())
        for (float& sum : sums) sum *= product_.factors[task_.first + c];
      if (!may_be_written(sums)) return false;
    }
    for (std::size_t row = 0; row < rows.size; row += amx_rows) {
      transpose(reinterpret_cast<const std::byte*>(sums_.data() + row), sums_stride_, task_.size, amx_rows,
                sizeof(float), reinterpret_cast<std::byte*>(turned_.data()), product_.sizes.columns);
      round(product_.operands, {rows.first + row, std::min(amx_rows, rows.size - row)}, task_, product_.columns,
            turned_.data(), product_.sizes.columns);
    }
    return true;
  }

  // The factors are part of dy.
  [[nodiscard]] bool finish_right(Range rows) {
    for (std::size_t row = 0; row < rows.size; ++row)
      if (!may_be_written({sums_.data() + row * sums_stride_, task_.size})) return false;
    round(product_.operands, rows, task_, product_.columns, sums_.data(), sums_stride_);
    return true;
  }

  [[nodiscard]] bool may_be_written(std::span<const float> sums) const {
    return !product_.has_to_be_finite || std::isfinite(largest_magnitude(DType::f32, std::as_bytes(sums)));
  }

  const AmxProduct& product_;
  const AmxKernel& kernel_;
  Decoder decoder_;
  Range task_{};
  std::size_t max_down_, sums_stride_;
  Lines<std::uint32_t> panel_;
  Lines<float> sums_, turned_;
};

template <class Decoder, class Rows>
[[nodiscard]] bool multiply(const Rows& weight, bool transposed, const Operands& operands, const Executor& executor) {
  const AmxKernel kernel = *amx_kernel();
  const Decoder decoder(weight, kernel);
  const AmxSizes sizes = amx_sizes_for(operands.m, transposed);
  const std::vector<float> factors = Decoder::factors(weight);
  if (!std::ranges::all_of(factors, [](float factor) { return std::isfinite(factor); })) return false;
  const std::span<const float> factors_of_x = transposed ? std::span<const float>() : factors;
  const AmxProduct product{.weight = weight,
                           .transposed = transposed,
                           .operands = operands,
                           .sizes = sizes,
                           .x = {.side = transposed ? PackedRows::Side::right : PackedRows::Side::left,
                                 .depth = DepthParts(transposed ? weight.k() : weight.n(), sizes.part),
                                 .arrange = transposed ? decoder.arrange() : nullptr,
                                 .terms = terms_of_x(weight, operands, !factors_of_x.empty()),
                                 .factors = factors_of_x},
                           .columns = transposed ? weight.n() : weight.k(),
                           .weight_terms = Decoder::terms(operands.dtype),
                           .factors = factors,
                           .has_to_be_finite = !factors.empty() || operands.dtype != DType::bf16};
  const auto range_of = [](std::size_t number, std::size_t size, std::size_t all) {
    return Range{number * size, std::min(size, all - number * size)};
  };
  const std::size_t parts = product.x.depth.count(), across = ceil_div(product.columns, sizes.columns);
  const std::size_t down = ceil_div(operands.m, rows_at_once),
                    at_once = std::min(down, ceil_div(enough_amx_tasks, across));
  std::atomic<bool> is_written = true;
  for (std::size_t done = 0; done < down && is_written; done += at_once) {
    const std::size_t count = std::min(at_once, down - done);
    std::vector<PackedRows> x;
    x.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
      x.emplace_back(operands, product.x, range_of(done + i, rows_at_once, operands.m));
    executor(count * parts, [&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end && is_written; ++i)
        if (!x[i / parts].pack(i % parts)) is_written = false;
    });
    executor(across * count, [&](std::size_t first, std::size_t end) {
      AmxColumns<Decoder> of_thread(product, kernel, decoder);
      // Those below each other come first: they have the same weights.
      for (std::size_t i = first; i < end && is_written; ++i)
        if (!of_thread.multiply(x[i % count], range_of(i / count, sizes.columns, product.columns))) is_written = false;
    });
  }
  return is_written;
}

// Fewer rows take less time in other loops. On Granite Rapids, 4096 x 4096 and one thread, tiles take this share of the
// time of the others:
//
//                    y                                    dx
//   bf16, 4 bits     4 rows 1.1, 5 rows 0.96 to 1.10      4 rows 1.3, 5 rows 0.94
//   fp16, 4 bits     10 rows 0.95 to 1.06, 12 rows 0.86   8 rows 1.14, 10 rows 0.95
//   int8             6 rows 1.0, 8 rows 0.83 to 1.05      4 rows 1.4 to 1.7, 5 rows 0.71 to 0.90
std::size_t min_m(const FourBitRows& /*weight*/, bool transposed, DType dtype) {
  if (dtype == DType::f32) return std::numeric_limits<std::size_t>::max();  // six products would take as long as fp32
  return dtype == DType::bf16 ? 5 : transposed ? 12 : 10;
}
// The errors of y in fp32 are those of torch's products from 16 rows on. For fewer rows, torch adds up in other loops,
// and tiles would have 1.2 times their errors.
std::size_t min_m(const Int8Rows& /*weight*/, bool transposed, DType dtype) {
  return !transposed ? 5 : dtype == DType::f32 ? 16 : 8;
}

bool has_room(const FourBitRows& weight, bool transposed) {
  return !transposed || !weight.has_nested_absmax() ||
         weight.k() / weight.blocksize() <= AmxFourBit::max_nested_blocks_of_row;
}
bool has_room(const Int8Rows& /*weight*/, bool /*transposed*/) { return true; }

template <class Rows> bool are_any_amx_rows(const Rows& weight, bool transposed, const Operands& operands) {
  return operands.m >= min_m(weight, transposed, operands.dtype) && weight.n() != 0 && weight.k() != 0 &&
         has_room(weight, transposed) && amx_kernel().has_value();
}

}  // namespace

bool are_amx_rows(const FourBitRows& weight, bool transposed, const Operands& operands) {
  return are_any_amx_rows(weight, transposed, operands);
}

bool are_amx_rows(const Int8Rows& weight, bool transposed, const Operands& operands) {
  return are_any_amx_rows(weight, transposed, operands);
}

bool multiply_amx(const FourBitRows& weight, bool transposed, const Operands& operands, const Executor& executor) {
  return multiply<AmxFourBit>(weight, transposed, operands, executor);
}

bool multiply_amx(const Int8Rows& weight, bool transposed, const Operands& operands, const Executor& executor) {
  return multiply<AmxInt8>(weight, transposed, operands, executor);
}

}  // namespace nibble::matmul
