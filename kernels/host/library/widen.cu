#include "kernels/quantize/widen.hpp"

#include <algorithm>

#include "kernels/host/library/widen.hpp"

namespace nibble::kernels {
namespace {

template <class Half> void start(const Half* in, u64 n, float* out, StreamRef stream) {
  using Kernel = Widen<Half>;
  const u64 blocks = std::min<u64>(ceil_div<u64>(n, Kernel::threads), 8 * multiprocessors());
  launch({static_cast<u32>(blocks)}, 0, stream, Kernel{in, out, static_cast<i64>(n)});
}

}  // namespace

void widen(const bf16* in, u64 n, float* out, StreamRef stream) { start(in, n, out, stream); }
void widen(const f16* in, u64 n, float* out, StreamRef stream) { start(in, n, out, stream); }

}  // namespace nibble::kernels
