// Checks of sizes, and which loops compute what.
#include "nibble/matmul.hpp"

#include <fmt/format.h>
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include "nibble/error.hpp"
#include "quant/matmul/amx_rows.hpp"
#include "quant/matmul/few_rows.hpp"
#include "quant/matmul/few_rows_dx.hpp"
#include "quant/matmul/many_rows.hpp"
#include "quant/matmul/weight.hpp"

namespace nibble::matmul {
namespace {

// The number of rows, or an error. Rows of no columns have no bytes: 0.
std::size_t rows_of(DType dtype, std::span<const std::byte> x, std::size_t columns, const char* name) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)
    throw Error(Errc::usage, fmt::format("{}: is {}, not F32, BF16 or F16", name, traits(dtype).name));
  const std::size_t row_bytes = columns * (traits(dtype).bits / 8);
  if (row_bytes == 0 ? !x.empty() : x.size() % row_bytes != 0)
    throw Error(Errc::usage,
                fmt::format("{}: has {} bytes, which are not whole rows of {}", name, x.size(), row_bytes));
  return row_bytes == 0 ? 0 : x.size() / row_bytes;
}

void check_bytes(const char* name, std::size_t bytes, std::size_t expected) {
  if (bytes != expected) throw Error(Errc::usage, fmt::format("{}: has {} bytes, not {}", name, bytes, expected));
}

Operands operands_of(const Weight& weight, bool transposed, DType dtype, std::span<const std::byte> x,
                     std::span<const std::byte> bias, std::span<std::byte> y) {
  const std::size_t depth = transposed ? weight.k() : weight.n(), columns = transposed ? weight.n() : weight.k();
  const char* const result = transposed ? "y" : "dx";
  std::size_t m = rows_of(dtype, x, depth, transposed ? "x" : "dy");
  if (depth == 0) m = rows_of(dtype, y, columns, result);  // of sums over nothing
  const std::size_t bytes = traits(dtype).bits / 8;
  check_bytes(result, y.size(), m * columns * bytes);
  if (!bias.empty()) check_bytes("bias", bias.size(), columns * bytes);
  return {dtype, m, x, bias, y};
}

template <class Rows>
void multiply_any(const Rows& weight, bool transposed, DType dtype, std::span<const std::byte> x,
                  std::span<const std::byte> bias, std::span<std::byte> y, const Executor& executor) {
  const Operands operands = operands_of(weight, transposed, dtype, x, bias, y);
  if (are_amx_rows(weight, transposed, operands) && multiply_amx(weight, transposed, operands, executor)) return;
  if (transposed && are_few_rows(weight, operands))
    multiply_rows(weight, operands, executor);
  else if (!transposed && are_few_rows_dx(weight, operands))
    multiply_rows_dx(weight, operands, executor);
  else
    multiply_tiles(weight, transposed, operands, executor);
}

}  // namespace

void on_all_threads(std::size_t tasks, const std::function<void(std::size_t, std::size_t)>& work) {
  using Tasks = tbb::blocked_range<std::size_t>;
  tbb::this_task_arena::isolate(
      [&] { tbb::parallel_for(Tasks(0, tasks), [&](const Tasks& range) { work(range.begin(), range.end()); }); });
}

void linear(const FourBitWeight& weight, DType dtype, std::span<const std::byte> x, std::span<const std::byte> bias,
            std::span<std::byte> y, const Executor& executor) {
  multiply_any(FourBitRows(weight), true, dtype, x, bias, y, executor);
}

void linear(const Int8Weight& weight, DType dtype, std::span<const std::byte> x, std::span<const std::byte> bias,
            std::span<std::byte> y, const Executor& executor) {
  multiply_any(Int8Rows(weight), true, dtype, x, bias, y, executor);
}

void linear_dx(const FourBitWeight& weight, DType dtype, std::span<const std::byte> dy, std::span<std::byte> dx,
               const Executor& executor) {
  multiply_any(FourBitRows(weight), false, dtype, dy, {}, dx, executor);
}

void linear_dx(const Int8Weight& weight, DType dtype, std::span<const std::byte> dy, std::span<std::byte> dx,
               const Executor& executor) {
  multiply_any(Int8Rows(weight), false, dtype, dy, {}, dx, executor);
}

}  // namespace nibble::matmul
