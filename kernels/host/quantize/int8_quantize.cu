#include "kernels/quantize/int8_quantize.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/host/interface.hpp"

namespace nibble::kernels {
namespace {

constexpr u64 max_rows = u64{Int8Quantize<float, 32>::grid_width} * 65535;  // as many rows of blocks as a grid has

template <class T, u32 Threads>
void launch_rows(const nibble_matrix& in, i8* codes, float* absmax, u64* nonfinite_rows, StreamRef stream) {
  using Kernel = Int8Quantize<T, Threads>;
  const bool aligned = is_aligned(in.data, 16) && in.stride % Kernel::run == 0 && in.columns % Kernel::run == 0 &&
                       is_aligned(codes, Kernel::run);
  const u32 width = static_cast<u32>(std::min<u64>(in.rows, Kernel::grid_width));
  launch(
      {width, static_cast<u32>(ceil_div<u64>(in.rows, width))}, 0, stream,
      Kernel{static_cast<const T*>(in.data), in.rows, in.columns, in.stride, aligned, codes, absmax, nonfinite_rows});
}

}  // namespace
}  // namespace nibble::kernels

int nibble_quantize_int8(const nibble_matrix* weights, int8_t* codes, float* absmax, uint64_t* nonfinite_rows,
                         nibble_stream stream) {
  using namespace nibble::kernels;
  return result_of([&] {
    const nibble_matrix from = checked_matrix("weights", weights);
    if (from.rows == 0) return;
    if (from.rows > max_rows)
      refuse("weights has " + std::to_string(from.rows) + " rows, at most " + std::to_string(max_rows) +
             " are possible");
    check_pointer("absmax", absmax, alignof(float));
    if (from.columns > 0) check_pointer("codes", codes, 1);
    if (nonfinite_rows != nullptr) check_pointer("nonfinite_rows", nonfinite_rows, alignof(u64));
    with_type(from.dtype, [&](auto type) {
      using T = decltype(type);
      const u64 row_bytes = from.columns * sizeof(T);
      if (row_bytes <= Int8Quantize<T, 32>::row_bytes_kept)
        launch_rows<T, 32>(from, codes, absmax, nonfinite_rows, stream);
      else if (row_bytes <= Int8Quantize<T, 128>::row_bytes_kept)
        launch_rows<T, 128>(from, codes, absmax, nonfinite_rows, stream);
      else
        launch_rows<T, 384>(from, codes, absmax, nonfinite_rows, stream);
    });
  });
}
