// Products in AMX tiles.
#include "quant/matmul/amx/amx_kernel.hpp"

#include <utility>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/simd/amx.hpp"

#ifdef __x86_64__

namespace nibble::matmul::products_in_amx {
namespace {

constexpr std::size_t tile_bytes = amx::rows * amx::row_bytes;

// Up to four tiles of sums: fewer would wait for each other's results. The others take turns as operands.
template <int lefts, int rights> struct Tiles {
  static constexpr int sums = 4;
  static constexpr int sum(int i, int j) { return i * rights + j; }
  static constexpr int left(int i) { return lefts == 1 ? 4 : 4 + i % 2; }
  static constexpr int right(int j) { return lefts == 1 ? 5 + j % 3 : 6 + j; }
  static_assert(lefts * rights <= sums && (lefts == 1 || rights <= 2));
};

// f(constant) for 0, 1, ..., count - 1.
template <int count, class F> __attribute__((always_inline)) inline void for_constants(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) { (f(std::integral_constant<int, i>()), ...); }
  (std::make_integer_sequence<int, count>());
}

// Sums of lefts * 16 rows and rights * 16 columns.
template <int lefts, int rights>
[[gnu::noinline]] void multiply_block(const AmxOperands& operands, bool is_first, float* sums, std::size_t sums_stride,
                                      LinesAhead& ahead, std::size_t lines_of_step) {
  using T = Tiles<lefts, rights>;
  const auto* left = reinterpret_cast<const std::byte*>(operands.left);
  const auto* right = reinterpret_cast<const std::byte*>(operands.right);
  const std::size_t left_stride = operands.left_stride * 4, right_stride = operands.right_stride * 4;
  const auto for_sums = [&](const auto& f) {
    for_constants<lefts>([&](auto i) {
      for_constants<rights>([&](auto j) {
        f(std::integral_constant<int, T::sum(i, j)>(), sums + i * amx_rows * sums_stride + j * amx_words);
      });
    });
  };
  for_sums([&](auto tile, const float* from) {
    if (is_first)
      amx::zero<tile()>();
    else
      amx::load<tile()>(from, sums_stride * 4);
  });
  for (std::size_t p = 0; p < operands.words; p += amx_words, left += amx::row_bytes, right += tile_bytes) {
    ahead.ask(lines_of_step);
    for_constants<lefts>([&](auto i) {
      amx::load<T::left(i)>(left + i * amx::rows * left_stride, left_stride);
      for_constants<rights>([&](auto j) {
        if (i == 0) amx::load<T::right(j)>(right + j * right_stride, amx::row_bytes);
        amx::add_products<T::sum(i, j), T::left(i), T::right(j)>();
      });
    });
  }
  for_sums([&](auto tile, float* to) { amx::store<tile()>(to, sums_stride * 4); });
}

// The columns of two groups stay in L1 while they are multiplied by all rows.
void multiply(const AmxOperands& operands, bool is_first, float* sums, std::size_t sums_stride, LinesAhead& ahead) {
  // There are as many steps as this, or more where a block is smaller than 32 x 32.
  const std::size_t blocks = ceil_div(operands.left_rows * operands.right_groups, 4 * amx_rows);
  const std::size_t lines_of_step = ceil_div(ahead.left(), blocks * operands.words / amx_words);
  const auto multiply_at = [&](auto lefts, std::size_t row, auto rights, std::size_t group) {
    AmxOperands block = operands;
    block.left += row * amx_rows * operands.left_stride;
    block.right += group * operands.right_stride;
    multiply_block<lefts(), rights()>(block, is_first, sums + row * amx_rows * sums_stride + group * amx_words,
                                      sums_stride, ahead, lines_of_step);
  };
  amx::order_memory();
  const std::size_t rows = operands.left_rows / amx_rows, pairs = rows / 2 * 2;
  in_groups<2>(operands.right_groups, [&](auto rights, std::size_t group) {
    if constexpr (rights() == 2)
      for (std::size_t row = 0; row < pairs; row += 2)
        multiply_at(std::integral_constant<std::size_t, 2>(), row, rights, group);
    else
      in_groups<4>(pairs, [&](auto lefts, std::size_t row) { multiply_at(lefts, row, rights, group); });
  });
  if (pairs < rows)
    in_groups<4>(operands.right_groups, [&](auto rights, std::size_t group) {
      multiply_at(std::integral_constant<std::size_t, 1>(), pairs, rights, group);
    });
  amx::order_memory();
}

}  // namespace
}  // namespace nibble::matmul::products_in_amx

namespace nibble::matmul {
namespace {

std::optional<AmxKernel> of_processor() {
  if (!amx::has_bf16()) return std::nullopt;
  return AmxKernel{amx::configure, amx::release, products_in_amx::multiply, *amx_row_decoder(), *amx_pair_decoder()};
}

}  // namespace
}  // namespace nibble::matmul

#else

namespace nibble::matmul {
namespace {

std::optional<AmxKernel> of_processor() { return std::nullopt; }

}  // namespace
}  // namespace nibble::matmul

#endif

namespace nibble::matmul {
namespace {

struct Replacement {
  bool is_there = false;
  std::optional<AmxKernel> kernel;
};
Replacement& replacement() {
  static Replacement replacement;
  return replacement;
}

}  // namespace

std::optional<AmxKernel> amx_kernel() { return replacement().is_there ? replacement().kernel : of_processor(); }
void replace_amx_kernel(const std::optional<AmxKernel>& kernel) { replacement() = {true, kernel}; }
void restore_amx_kernel() { replacement() = {}; }

}  // namespace nibble::matmul
