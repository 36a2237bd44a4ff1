// Products for few rows of x. Reading the weight takes most of the time, so it is read once, in order, and decoded a
// few rows at a time into memory that stays in L1.
#include "quant/matmul/few_rows.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/lines.hpp"
#include "quant/matmul/row_kernel.hpp"
#include "quant/simd/widen.hpp"

namespace nibble::matmul {
namespace {

constexpr std::size_t max_few_rows = 32;
// Of a row of the weight, decoded at a time. The bytes of a result depend on it.
constexpr std::size_t part_depth = 2048;
constexpr std::size_t task_rows = 32;
// How many bytes ahead of the codes that are decoded the next ones are asked for. Memory then has work while rows are
// multiplied, where the processor's own prefetching stops: one token takes half of the time.
constexpr std::size_t ahead = 8192;
// Columns of dx that a task computes from all rows of the weight.
constexpr std::size_t strip_columns = 512, max_few_rows_dx = 16;
// So many rows of the weight are summed up one after the other, and these sums are then added up.
constexpr std::size_t chain_rows = 128;
constexpr std::size_t max_x = std::size_t{1} << 18;  // 1 MiB
static_assert(strip_columns <= part_depth && chain_rows % max_added_rows == 0 && part_depth % min_blocksize == 0 &&
              task_rows % RowKernel::max_rows == 0);

RowKernel kernel_for(DType dtype) {
  const auto bf16 = dtype == DType::bf16 ? row_kernel_bf16() : std::nullopt;
  return bf16 ? *bf16 : row_kernel_f32();
}

bool fits(const Weight& weight, bool transposed, const Operands& operands) {
  const std::size_t depth = transposed ? weight.k() : weight.n();
  return operands.m <= (transposed ? max_few_rows : max_few_rows_dx) && operands.m * depth <= max_x &&
         weight.k() % 32 == 0;
}

using Arrange = void (*)(const float*, std::size_t, std::uint32_t*);

// x in the words and the order of the kernel, aligned.
Lines<std::uint32_t> arranged(const RowKernel& kernel, Arrange arrange, const Operands& operands, std::size_t depth) {
  const std::size_t size = traits(operands.dtype).bits / 8;
  Lines<std::uint32_t> words(operands.m * depth / kernel.per_word);
  if (kernel.per_word == 2) {
    std::memcpy(words.data(), operands.x.data(), operands.x.size());
    return words;
  }
  std::array<float, part_depth> room;
  for (std::size_t i = 0; i < operands.m * depth; i += part_depth) {
    const std::size_t n = std::min(part_depth, operands.m * depth - i);
    const std::span<const float> x = widen(operands.dtype, operands.x.subspan(i * size, n * size), room);
    if (arrange != nullptr)
      arrange(x.data(), n, words.data() + i);
    else
      std::memcpy(words.data() + i, x.data(), n * sizeof(float));
  }
  return words;
}

// Decodes rows of a task. All their absmax come first: whole blocks of 256 nested ones take a third of the time.
class FourBitTask {
 public:
  FourBitTask(const FourBitRows& weight, const RowKernel& kernel)
      : weight_(weight), kernel_(kernel), room_(task_rows * blocks_of_row()) {}

  void start(Range rows) {
    first_ = rows.first;
    const std::size_t blocks = rows.size * blocks_of_row();
    absmax_ = weight_.absmax(rows.first * blocks_of_row(), blocks, {room_.data(), blocks}).data();
  }
  void operator()(std::size_t row, std::size_t first, std::size_t n, std::uint32_t* words) const {
    const std::size_t blocksize = weight_.blocksize();
    kernel_.decode_four_bit(weight_.tables(), weight_.packed() + (row * weight_.k() + first) / 2,
                            absmax_ + (row - first_) * blocks_of_row() + first / blocksize, blocksize, n, ahead, words);
  }

 private:
  [[nodiscard]] std::size_t blocks_of_row() const { return weight_.k() / weight_.blocksize(); }

  const FourBitRows& weight_;
  const RowKernel& kernel_;
  Lines<float> room_;
  std::size_t first_ = 0;
  const float* absmax_ = nullptr;
};

class Int8Task {
 public:
  Int8Task(const Int8Rows& weight, const RowKernel& kernel, std::size_t distance)
      : weight_(weight), kernel_(kernel), distance_(distance) {}

  void start(Range /*rows*/) const {}
  void operator()(std::size_t row, std::size_t first, std::size_t n, std::uint32_t* words) const {
    kernel_.decode_int8(weight_.codes(row) + first, weight_.absmax(row), n, distance_, words);
  }

 private:
  const Int8Rows& weight_;
  const RowKernel& kernel_;
  std::size_t distance_;
};

// make_decode() gives a thread an object whose start() is told which rows come next, and which then writes weights of a
// row as decode(row, first, n, words).
template <class MakeDecode>
void multiply(const RowKernel& kernel, Arrange arrange, std::size_t n, std::size_t k, const Operands& operands,
              const Executor& executor, const MakeDecode& make_decode) {
  const Lines<std::uint32_t> x = arranged(kernel, arrange, operands, k);
  executor(ceil_div(n, task_rows), [&](std::size_t begin, std::size_t end) {
    alignas(64) std::array<std::uint32_t, RowKernel::max_rows * part_depth> weights;
    std::array<float, task_rows * max_few_rows> sums, turned;
    const std::size_t m = operands.m, row_words = k / kernel.per_word;
    auto decode = make_decode();
    for (std::size_t task = begin; task < end; ++task) {
      const Range columns{task * task_rows, std::min(task_rows, n - task * task_rows)};
      decode.start(columns);
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (std::size_t row = 0; row < columns.size; row += RowKernel::max_rows) {
        const std::size_t rows = std::min(RowKernel::max_rows, columns.size - row);
        for (std::size_t first = 0; first < k; first += part_depth) {
          const std::size_t depth = std::min(part_depth, k - first), words = depth / kernel.per_word;
          for (std::size_t r = 0; r < rows; ++r)
            decode(columns.first + row + r, first, depth, weights.data() + r * words);
          kernel.multiply(weights.data(), words, rows, x.data() + first / kernel.per_word, row_words, m, words,
                          sums.data() + row * m);
        }
      }
      for (std::size_t i = 0; i < m; ++i)
        for (std::size_t c = 0; c < columns.size; ++c) turned[i * task_rows + c] = sums[c * m + i];
      round(operands, {0, m}, columns, n, turned.data(), task_rows);
    }
  });
}

void add_and_clear(float* __restrict chain, std::size_t n, float* __restrict sums) {
  for (std::size_t i = 0; i < n; ++i) {
    sums[i] += chain[i];
    chain[i] = 0;
  }
}

// dx = dy * weight. restore(sums, n) puts n sums in order.
template <class Decode, class Restore>
void multiply_dx(const RowKernel& kernel, std::size_t n, std::size_t k, const Operands& operands,
                 const Executor& executor, const Decode& decode, const Restore& restore) {
  const Lines<std::uint32_t> words = arranged(kernel, nullptr, operands, n);
  const auto* const dy = reinterpret_cast<const float*>(words.data());
  const std::size_t m = operands.m;
  executor(ceil_div(k, strip_columns), [&](std::size_t begin, std::size_t end) {
    alignas(64) std::array<std::uint32_t, max_added_rows * strip_columns> weights;
    alignas(64) std::array<float, max_few_rows_dx * strip_columns> sums, chain;
    for (std::size_t strip = begin; strip < end; ++strip) {
      const Range columns{strip * strip_columns, std::min(strip_columns, k - strip * strip_columns)};
      std::fill_n(sums.begin(), m * strip_columns, 0.0f);
      std::fill_n(chain.begin(), m * strip_columns, 0.0f);
      for (std::size_t row = 0; row < n; row += max_added_rows) {
        const std::size_t rows = std::min(max_added_rows, n - row);
        for (std::size_t r = 0; r < rows; ++r)
          decode(row + r, columns.first, columns.size, weights.data() + r * strip_columns);
        add_rows(reinterpret_cast<const float*>(weights.data()), strip_columns, rows, columns.size, dy + row, n, m,
                 chain.data(), strip_columns);
        if ((row + rows) % chain_rows != 0 && row + rows < n) continue;
        add_and_clear(chain.data(), m * strip_columns, sums.data());
      }
      for (std::size_t i = 0; i < m; ++i) restore(std::span(sums).subspan(i * strip_columns, columns.size));
      for (std::size_t first = 0; first < columns.size; first += max_rounded_columns)
        round(operands, {0, m}, {columns.first + first, std::min(max_rounded_columns, columns.size - first)}, k,
              sums.data() + first, strip_columns);
    }
  });
}

}  // namespace

bool are_few_rows(const FourBitRows& weight, bool transposed, const Operands& operands) {
  // A part of a row starts and ends with a block.
  return fits(weight, transposed, operands) && weight.rows_have_whole_blocks() &&
         weight.blocksize() <= (transposed ? part_depth : strip_columns);
}

bool are_few_rows(const Int8Rows& weight, bool transposed, const Operands& operands) {
  return fits(weight, transposed, operands);
}

void multiply_rows(const FourBitRows& weight, bool transposed, const Operands& operands, const Executor& executor) {
  const std::size_t blocksize = weight.blocksize(), k = weight.k();
  if (transposed) {
    const RowKernel kernel = kernel_for(operands.dtype);
    return multiply(kernel, kernel.arrange_four_bit, weight.n(), k, operands, executor,
                    [&] { return FourBitTask(weight, kernel); });
  }
  const RowKernel kernel = row_kernel_f32();
  const auto decode = [&](std::size_t row, std::size_t first, std::size_t n, std::uint32_t* words) {
    std::array<float, strip_columns / min_blocksize> room;
    const std::size_t at = row * k + first;
    kernel.decode_four_bit(weight.tables(), weight.packed() + at / 2,
                           weight.absmax(at / blocksize, n / blocksize, room).data(), blocksize, n,
                           max_added_rows * k / 2, words);
  };
  multiply_dx(kernel, weight.n(), k, operands, executor, decode, [](std::span<float> sums) {
    std::array<float, strip_columns> arranged;
    std::copy(sums.begin(), sums.end(), arranged.begin());
    restore_four_bit(arranged.data(), sums.size(), sums.data());
  });
}

void multiply_rows(const Int8Rows& weight, bool transposed, const Operands& operands, const Executor& executor) {
  if (transposed) {
    const RowKernel kernel = kernel_for(operands.dtype);
    return multiply(kernel, nullptr, weight.n(), weight.k(), operands, executor,
                    [&] { return Int8Task(weight, kernel, ahead); });
  }
  const RowKernel kernel = row_kernel_f32();
  multiply_dx(kernel, weight.n(), weight.k(), operands, executor, Int8Task(weight, kernel, max_added_rows * weight.k()),
              [](std::span<float>) {});
}

}  // namespace nibble::matmul
