#include "kernels/quantize/four_bit_dequantize.hpp"

#include <algorithm>
#include <string>

#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/interface.hpp"

namespace nibble::kernels {
namespace {

template <class T, Rows rows>
void start(const nibble_four_bit& weight, u64 first_row, const nibble_matrix& out, StreamRef stream) {
  using Kernel = FourBitDequantize<T, rows>;
  Kernel kernel{.packed = weight.packed,
                .absmax = absmax_of(weight),
                .out = static_cast<T*>(out.data),
                .begin = weight.first + first_row * weight.columns,
                .end = weight.first + (first_row + out.rows) * weight.columns,
                .gap = out.stride - out.columns,
                .k = Divisor(weight.columns),
                .log2_blocksize = log2_of(weight.blocksize),
                .aligned = is_aligned(weight.packed, std::max<std::size_t>(Kernel::each / 2, 1)),
                .codebook = {}};
  copy_codebook(weight.codebook, kernel.codebook);
  static_assert(max_elements <= Divisor::max);
  const u64 tiles = ceil_div<u64>(kernel.end, Kernel::tile) - kernel.begin / Kernel::tile;
  launch(resident_grid<Kernel>(ceil_div<u64>(tiles, Kernel::threads / 32)), 0, stream, kernel);
}

template <class T>
void start(const nibble_four_bit& weight, u64 first_row, const nibble_matrix& out, StreamRef stream) {
  constexpr u64 each = in_vector<T>;
  const bool contiguous = out.stride == out.columns || out.rows == 1;
  if (!is_aligned(out.data, 16)) return start<T, Rows::any>(weight, first_row, out, stream);
  if (contiguous && (weight.first + first_row * weight.columns) % each == 0)
    return start<T, Rows::contiguous>(weight, first_row, out, stream);
  if (weight.first % each == 0 && out.columns % each == 0 && out.stride % each == 0)
    return start<T, Rows::strided>(weight, first_row, out, stream);
  start<T, Rows::any>(weight, first_row, out, stream);
}

}  // namespace
}  // namespace nibble::kernels

int nibble_dequantize_four_bit(const nibble_four_bit* weight, uint64_t first_row, const nibble_matrix* out,
                               nibble_stream stream) {
  using namespace nibble::kernels;
  return result_of([&] {
    const nibble_four_bit whole_weight = checked_four_bit("weight", weight);
    const nibble_matrix to = checked_rows("out", out, first_row, whole_weight.rows, whole_weight.columns);
    if (whole_weight.stride != whole_weight.columns)
      refuse("weight.stride is " + std::to_string(whole_weight.stride) + ", must be its " +
             std::to_string(whole_weight.columns) + " columns");
    if (to.rows == 0 || to.columns == 0) return;
    with_type(to.dtype, [&]<class T>(T) { start<T>(whole_weight, first_row, to, stream); });
  });
}
