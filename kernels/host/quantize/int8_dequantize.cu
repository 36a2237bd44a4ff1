#include "kernels/quantize/int8_dequantize.hpp"

#include "kernels/host/interface.hpp"

namespace nibble::kernels {
namespace {

template <class T, bool whole>
void start(const nibble_int8& weight, u64 first_row, const nibble_matrix& out, StreamRef stream) {
  using Kernel = Int8Dequantize<T, whole>;
  const auto* codes = reinterpret_cast<const u8*>(weight.codes) + first_row * weight.columns;
  const Kernel kernel{.codes = codes,
                      .absmax = weight.absmax + first_row,
                      .out = static_cast<T*>(out.data),
                      .size = out.rows * out.columns,
                      .gap = out.stride - out.columns,
                      .k = Divisor(out.columns),
                      .aligned = is_aligned(codes, Kernel::each)};
  static_assert(max_elements <= Divisor::max);
  launch(resident_grid<Kernel>(ceil_div<u64>(kernel.size, Kernel::tile * (Kernel::threads / 32))), 0, stream, kernel);
}

}  // namespace
}  // namespace nibble::kernels

int nibble_dequantize_int8(const nibble_int8* weight, uint64_t first_row, const nibble_matrix* out,
                           nibble_stream stream) {
  using namespace nibble::kernels;
  return result_of([&] {
    const nibble_int8 from = checked_int8("weight", weight);
    const nibble_matrix to = checked_rows("out", out, first_row, from.rows, from.columns);
    if (to.rows == 0 || to.columns == 0) return;
    with_type(to.dtype, [&]<class T>(T) {
      const bool strided = to.stride % in_vector<T> == 0 || to.rows == 1;
      if (is_aligned(to.data, 16) && to.columns % in_vector<T> == 0 && strided)
        start<T, true>(from, first_row, to, stream);
      else
        start<T, false>(from, first_row, to, stream);
    });
  });
}
