#include "kernels/matmul/store_sums.hpp"

#include <algorithm>

#include "kernels/host/library/store_sums.hpp"
#include "kernels/host/matmul/matmul_memory.hpp"

namespace nibble::kernels {
namespace {

template <class Half> void start(const float* sums, const void* bias, const nibble_matrix& y, StreamRef stream) {
  const u32 m = static_cast<u32>(y.rows);
  launch({std::min(m, 8 * multiprocessors())}, 0, stream,
         StoreSums<Half>{sums, static_cast<i64>(y.columns), m, matmul_output<Half>(y, bias, true)});
}

}  // namespace

void store_sums(const float* sums, const void* bias, const nibble_matrix& y, StreamRef stream) {
  y.dtype == NIBBLE_BF16 ? start<bf16>(sums, bias, y, stream) : start<f16>(sums, bias, y, stream);
}

}  // namespace nibble::kernels
