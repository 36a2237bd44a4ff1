// Products for few rows of x. Reading the weight takes most of the time, so it is read once, in order, and decoded a
// few rows at a time: in registers, or into memory that stays in L1.
#include "quant/matmul/few_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "nibble/int8.hpp"
#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/arranged.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/codes/int8_kernel.hpp"
#include "quant/matmul/lines.hpp"
#include "quant/matmul/words/row_kernel.hpp"
#include "quant/matmul/words/tile.hpp"

namespace nibble::matmul {
namespace {

constexpr std::size_t max_few_rows = 32;
// Of a row of the weight, decoded at a time. The bytes of a result depend on it.
constexpr std::size_t part_depth = 2048;
constexpr std::size_t task_rows = 32;
// Rows of x by which int8 codes are multiplied in registers, which converts them for every few rows of x again: at
// most this many, or fewer where bf16 is the alternative.
constexpr std::size_t max_rows_of_codes = 16, max_rows_of_codes_beside_bf16 = 4;
// How many bytes ahead of the codes that are decoded the next ones are asked for, at least. Memory then has work while
// rows are multiplied, where the processor's own prefetching stops: one token takes half of the time.
constexpr std::size_t bytes_ahead = 8192;
// How many cache lines of codes are asked for, ahead of each row, before absmax is decoded. Memory then has work
// meanwhile: one token takes up to 6 % less time (4096 x 4096 in bf16, one thread of Emerald Rapids, measured by hand).
constexpr std::size_t first_lines = 4;
static_assert(part_depth % min_blocksize == 0 && task_rows % RowKernel::max_rows == 0);

RowKernel row_kernel_for(DType dtype) {
  const auto bf16 = dtype == DType::bf16 && prefers_bf16() ? row_kernel_bf16() : std::nullopt;
  return bf16 ? *bf16 : row_kernel_f32();
}

CodeKernel code_kernel_for(DType dtype, const FourBitRows& weight) {
  if (dtype == DType::bf16)
    for (const auto& kernel : {prefers_bf16() ? code_kernel_bf16() : std::nullopt, code_kernel_vbmi(),
                               code_kernel_vnni(), code_kernel_int16()})
      if (kernel && kernel->min_blocksize <= weight.blocksize() && weight.k() % kernel->depth_multiple == 0)
        return *kernel;
  return code_kernel_f32();
}

Arrangement arrangement_for(const RowKernel& kernel, Arrange arrange) {
  return {64 / kernel.per_word, kernel.per_word == 1 ? DType::f32 : DType::bf16, arrange};
}

bool fits(const Weight& weight, const Operands& operands) {
  return operands.m <= max_few_rows && operands.m * weight.k() <= max_arranged && weight.k() % 32 == 0;
}

// The absmax of the rows of a task. Nested ones are decoded just before their rows are multiplied, so that codes can be
// read from memory meanwhile. Whole blocks of 256 take less time than parts of them (nested.cpp).
class TaskAbsmax {
 public:
  explicit TaskAbsmax(const FourBitRows& weight)
      : weight_(weight), room_(weight.has_nested_absmax() ? task_rows * blocks_of_row() : 0) {}

  void start(Range rows) {
    rows_ = rows;
    ready_ = 0;
    absmax_ = next(0).data();
  }
  // Of a row, once it and the rows before it are ready.
  [[nodiscard]] const float* of(std::size_t row) const { return absmax_ + (row - rows_.first) * blocks_of_row(); }
  [[nodiscard]] std::size_t blocks_of_row() const { return weight_.k() / weight_.blocksize(); }

  void make_ready(Range rows) {
    const std::size_t first = rows_.first * blocks_of_row(), end = (rows.first + rows.size) * blocks_of_row();
    if (end <= first + ready_) return;
    const std::size_t whole = ceil_div(end, nested::blocksize) * nested::blocksize - first;
    const std::size_t count = std::min(whole, rows_.size * blocks_of_row()) - ready_;
    (void)next(count);
    ready_ += count;
  }

 private:
  // Decodes the next values.
  std::span<const float> next(std::size_t count) {
    const std::span<float> room =
        weight_.has_nested_absmax() ? std::span(room_.data() + ready_, count) : std::span<float>();
    return weight_.absmax(rows_.first * blocks_of_row() + ready_, count, room);
  }

  const FourBitRows& weight_;
  Lines<float> room_;
  Range rows_{};
  std::size_t ready_ = 0;  // of the blocks of the task
  const float* absmax_ = nullptr;
};

class DecodeFourBit {
 public:
  DecodeFourBit(const FourBitRows& weight, const RowKernel& kernel)
      : weight_(weight), kernel_(kernel), absmax_(weight) {}

  void start(Range rows) { absmax_.start(rows); }
  void operator()(std::size_t row, std::size_t first, std::size_t n, std::uint32_t* words) {
    const std::size_t blocksize = weight_.blocksize();
    absmax_.make_ready({row, 1});
    kernel_.decoder.four_bit(weight_.tables(), weight_.packed() + (row * weight_.k() + first) / 2,
                             absmax_.of(row) + first / blocksize, blocksize, n, bytes_ahead, words);
  }

 private:
  const FourBitRows& weight_;
  const RowKernel& kernel_;
  TaskAbsmax absmax_;
};

class DecodeInt8 {
 public:
  DecodeInt8(const Int8Rows& weight, const RowKernel& kernel) : weight_(weight), kernel_(kernel) {}

  void start(Range /*rows*/) const {}
  void operator()(std::size_t row, std::size_t first, std::size_t n, std::uint32_t* words) const {
    kernel_.decoder.int8(weight_.codes(row) + first, weight_.absmax(row), n, bytes_ahead, words);
  }

 private:
  const Int8Rows& weight_;
  const RowKernel& kernel_;
};

// Adds products of rows of a task, which are decoded before.
template <class Decode> class AddDecoded {
 public:
  AddDecoded(const RowKernel& kernel, std::size_t k, const std::uint32_t* x, std::size_t m, Decode decode)
      : kernel_(kernel),
        k_(k),
        x_(x),
        m_(m),
        decode_(std::move(decode)),
        weights_(RowKernel::max_rows * part_depth / kernel.per_word) {}

  void start(Range rows) { decode_.start(rows); }
  void operator()(Range rows, float* sums) {
    for (std::size_t first = 0; first < k_; first += part_depth) {
      const std::size_t depth = std::min(part_depth, k_ - first), words = depth / kernel_.per_word;
      for (std::size_t r = 0; r < rows.size; ++r) decode_(rows.first + r, first, depth, weights_.data() + r * words);
      kernel_.multiply(weights_.data(), words, rows.size, x_ + first / kernel_.per_word, k_ / kernel_.per_word, m_,
                       words, sums);
    }
  }

 private:
  const RowKernel& kernel_;
  std::size_t k_;
  const std::uint32_t* x_;
  std::size_t m_;
  Decode decode_;
  Lines<std::uint32_t> weights_;
};

// The same with codes that are decoded in registers.
class AddCodes {
 public:
  AddCodes(const FourBitRows& weight, const CodeKernel& kernel, const std::uint32_t* x, std::size_t m)
      : weight_(weight), kernel_(kernel), x_(x), m_(m), absmax_(weight) {}

  void start(Range rows) { absmax_.start(rows); }
  void operator()(Range rows, float* sums) {
    const std::size_t k = weight_.k(), blocksize = weight_.blocksize();
    const std::size_t ahead = std::max(bytes_ahead, rows.size * k / 2);
    for (std::size_t r = 0; r < rows.size; ++r)
      prefetch({reinterpret_cast<const std::byte*>(weight_.packed() + (rows.first + r) * k / 2 + ahead), first_lines});
    absmax_.make_ready(rows);
    // An instruction that multiplies bf16 or integers adds up pairs, so sums have as many terms as in fp32.
    const std::size_t part = kernel_.x.from == DType::bf16 ? 2 * part_depth : part_depth;
    for (std::size_t first = 0; first < k; first += part) {
      const CodeRows codes{.tables = weight_.tables(),
                           .packed = weight_.packed() + (rows.first * k + first) / 2,
                           .packed_stride = k / 2,
                           .absmax = absmax_.of(rows.first) + first / blocksize,
                           .absmax_stride = absmax_.blocks_of_row(),
                           .blocksize = blocksize,
                           .rows = rows.size,
                           .n = std::min(part, k - first),
                           .ahead = ahead};
      kernel_.multiply(codes, x_ + kernel_.x.words(first), kernel_.x.words(k), m_, sums);
    }
  }

 private:
  const FourBitRows& weight_;
  const CodeKernel& kernel_;
  const std::uint32_t* x_;
  std::size_t m_;
  TaskAbsmax absmax_;
};

// The same with int8 codes, to sums of 0. Absmax is a factor of the sums.
class AddInt8Codes {
 public:
  AddInt8Codes(const Int8Rows& weight, const float* x, std::size_t m) : weight_(weight), x_(x), m_(m) {}

  void start(Range /*rows*/) const {}
  void operator()(Range rows, float* sums) const {
    const std::size_t k = weight_.k();
    for (std::size_t first = 0; first < k; first += part_depth)
      multiply_int8_codes({.codes = weight_.codes(rows.first) + first,
                           .stride = k,
                           .rows = rows.size,
                           .n = std::min(part_depth, k - first),
                           .ahead = std::max(bytes_ahead, rows.size * k)},
                          x_ + first, k, m_, sums);
    for (std::size_t i = 0; i < rows.size * m_; ++i)
      sums[i] = sums[i] * factor_of_int8_codes(weight_.absmax(rows.first + i / m_)) * int8::inverse_127;
  }

 private:
  const Int8Rows& weight_;
  const float* x_;
  std::size_t m_;
};

// Adds the sums of `add`, unless one of them is not finite: then those of the object that make_exact() makes. `add`
// multiplies sums by absmax, and infinity times a sum is not the sum of infinite products. A sum may also be too large
// before it is multiplied.
template <class Add, class MakeExact> class AddFinite {
 public:
  AddFinite(Add add, const MakeExact& make_exact, std::size_t m)
      : add_(std::move(add)), make_exact_(make_exact), m_(m) {}

  void start(Range rows) {
    add_.start(rows);
    task_ = rows;
    is_exact_ready_ = false;
  }
  void operator()(Range rows, float* sums) {
    std::array<float, RowKernel::max_rows * max_few_rows> of_rows;
    const std::span<float> added(of_rows.data(), rows.size * m_);
    std::ranges::fill(added, 0.0f);
    add_(rows, added.data());
    if (!std::ranges::all_of(added, [](float sum) { return std::isfinite(sum); })) {
      if (!exact_) exact_.emplace(make_exact_());
      if (!is_exact_ready_) exact_->start(task_);
      is_exact_ready_ = true;
      return (*exact_)(rows, sums);
    }
    for (std::size_t i = 0; i < added.size(); ++i) sums[i] += added[i];
  }

 private:
  Add add_;
  const MakeExact& make_exact_;
  std::size_t m_;
  Range task_{};
  std::optional<std::invoke_result_t<MakeExact>> exact_;
  bool is_exact_ready_ = false;  // for the task
};

// make_add() gives a thread an object whose start() is told the rows of the weight of a task, and which then adds to
// sums[r * m + i], for a few rows r of them, the products with row i of x.
template <class MakeAdd>
void multiply(std::size_t n, const Operands& operands, const Executor& executor, const MakeAdd& make_add) {
  executor(ceil_div(n, task_rows), [&](std::size_t begin, std::size_t end) {
    std::array<float, task_rows * max_few_rows> sums, turned;
    const std::size_t m = operands.m;
    auto add = make_add();
    for (std::size_t task = begin; task < end; ++task) {
      const Range columns{task * task_rows, std::min(task_rows, n - task * task_rows)};
      add.start(columns);
      std::fill_n(sums.begin(), columns.size * m, 0.0f);
      for (std::size_t row = 0; row < columns.size; row += RowKernel::max_rows)
        add({columns.first + row, std::min(RowKernel::max_rows, columns.size - row)}, sums.data() + row * m);
      for (std::size_t i = 0; i < m; ++i)
        for (std::size_t c = 0; c < columns.size; ++c) turned[i * task_rows + c] = sums[c * m + i];
      round(operands, {0, m}, columns, n, turned.data(), task_rows);
    }
  });
}

}  // namespace

bool are_few_rows(const FourBitRows& weight, const Operands& operands) {
  // A part of a row starts and ends with a block.
  return fits(weight, operands) && weight.rows_have_whole_blocks() && weight.blocksize() <= part_depth;
}

bool are_few_rows(const Int8Rows& weight, const Operands& operands) { return fits(weight, operands); }

void multiply_rows(const FourBitRows& weight, const Operands& operands, const Executor& executor) {
  const std::size_t n = weight.n(), k = weight.k(), m = operands.m;
  const CodeKernel codes = code_kernel_for(operands.dtype, weight);
  if (m <= codes.max_m) {
    const Lines<std::uint32_t> x = arranged(codes.x, operands, k);
    const RowKernel kernel = row_kernel_f32();
    std::once_flag is_needed;
    std::optional<Lines<std::uint32_t>> x_in_fp32;
    const auto make_exact = [&] {
      std::call_once(is_needed, [&] {
        x_in_fp32 = arranged(arrangement_for(kernel, kernel.decoder.arrange_four_bit), operands, k);
      });
      return AddDecoded(kernel, k, x_in_fp32->data(), m, DecodeFourBit(weight, kernel));
    };
    return multiply(n, operands, executor,
                    [&] { return AddFinite(AddCodes(weight, codes, x.data(), m), make_exact, m); });
  }
  const RowKernel kernel = row_kernel_for(operands.dtype);
  const Lines<std::uint32_t> x = arranged(arrangement_for(kernel, kernel.decoder.arrange_four_bit), operands, k);
  multiply(n, operands, executor, [&] { return AddDecoded(kernel, k, x.data(), m, DecodeFourBit(weight, kernel)); });
}

void multiply_rows(const Int8Rows& weight, const Operands& operands, const Executor& executor) {
  const std::size_t k = weight.k(), m = operands.m;
  const RowKernel kernel = m <= max_rows_of_codes_beside_bf16 ? row_kernel_f32() : row_kernel_for(operands.dtype);
  const Lines<std::uint32_t> x = arranged(arrangement_for(kernel, nullptr), operands, k);
  const auto make_decoded = [&] { return AddDecoded(kernel, k, x.data(), m, DecodeInt8(weight, kernel)); };
  if (kernel.per_word == 1 && m <= max_rows_of_codes)
    return multiply(weight.n(), operands, executor, [&] {
      return AddFinite(AddInt8Codes(weight, reinterpret_cast<const float*>(x.data()), m), make_decoded, m);
    });
  multiply(weight.n(), operands, executor, make_decoded);
}

}  // namespace nibble::matmul
