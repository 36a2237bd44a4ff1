#include "kernels/host/matmul/round_rows.hpp"

#include <algorithm>

#include "kernels/matmul/round_rows.hpp"

namespace nibble::kernels {
namespace {

template <class Half> void start(const nibble_matrix& x, Half* out, StreamRef stream) {
  const u32 m = static_cast<u32>(x.rows);
  launch({std::min(m, 8 * multiprocessors())}, 0, stream,
         RoundRows<Half>{static_cast<const float*>(x.data), static_cast<i64>(x.stride), static_cast<i64>(x.columns), m,
                         out});
}

}  // namespace

void round_rows(const nibble_matrix& x, bf16* out, StreamRef stream) { start(x, out, stream); }
void round_rows(const nibble_matrix& x, f16* out, StreamRef stream) { start(x, out, stream); }

}  // namespace nibble::kernels
