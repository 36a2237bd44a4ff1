#include "kernels/int8_dequantize.hpp"

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
    check_int8("weight", weight);
    check_rows("out", out, first_row, weight->rows, weight->columns);
    if (out->rows == 0 || out->columns == 0) return;
    with_type(out->dtype, [&]<class T>(T) {
      const bool strided = out->stride % in_vector<T> == 0 || out->rows == 1;
      if (is_aligned(out->data, 16) && out->columns % in_vector<T> == 0 && strided)
        start<T, true>(*weight, first_row, *out, stream);
      else
        start<T, false>(*weight, first_row, *out, stream);
    });
  });
}
