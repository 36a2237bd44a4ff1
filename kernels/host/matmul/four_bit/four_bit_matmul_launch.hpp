// What FourBitMatmul is launched with: here for the library, and for bench_tune, which compiles more of its kernels.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/device/stream.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul.hpp"

namespace nibble::kernels {

/// Tells each product how many blocks take its items, and returns how many the grid has for each: the most of them.
template <class Half> u32 give_blocks(FourBitProduct<Half>* products, const std::vector<u32>& blocks) {
  for (const u32 own : blocks) (products++)->blocks = own;
  return *std::max_element(blocks.begin(), blocks.end());
}

/// One launch. Kernel is a FourBitMatmul of Half. The rows of x [m, k] are `x_stride` elements apart, `sums` counts the
/// n of all weights, and `ends` are those of experts, or null.
template <class Half, class Kernel> class FourBitMatmulLaunch {
 public:
  /// Whether a kernel that keeps x has room for so much of it.
  static bool fits(u64 m, u64 k) {
    return m <= Kernel::max_m && Kernel::shared_bytes(static_cast<u32>(m), k) <= Kernel::shared_limit;
  }

  FourBitMatmulLaunch(const Half* x, i64 x_stride, u32 m, u64 k, const SplitSums& sums, const u32* ends = nullptr)
      : kernel_{.product = {}, .x = x, .x_stride = x_stride, .m = m, .sums = sums, .ends = ends}, k_(k) {}

  /// The next weight: there may be max_weights, or one with experts, whose n is that of one expert.
  void add(const FourBitOperand& weight, const MatmulOutput<Half>& output) {
    const u64 n = static_cast<u64>(weight.n);
    kernel_.product[weights_] = {weight, output, static_cast<i64>(sums_), static_cast<u32>(groups_), 0};
    sums_ += kernel_.m * n;
    groups_ += four_bit_matmul::groups_of(Kernel::sizes, kernel_.m, n);
    items_[weights_++] = ceil_div<u64>(n, Kernel::block_n) * kernel_.sums.splits;
  }

  /// `experts` is 0 without experts.
  void run(const four_bit_matmul::DeviceTuning& tuning, u32 experts, StreamRef stream, Overlap overlap) {
    const std::span<const u64> items(items_.data(), weights_);
    const std::size_t shared_bytes = Kernel::shared_bytes(kernel_.m, k_);
    const u64 resident = resident_blocks<Kernel>(shared_bytes);
    const u32 blocks = give_blocks(kernel_.product, four_bit_matmul::blocks_for(tuning, items, resident));
    launch({blocks, 1, experts > 0 ? experts : weights_}, shared_bytes, stream, kernel_, overlap);
  }

 private:
  Kernel kernel_;
  std::array<u64, Kernel::max_weights> items_ = {};
  u64 k_, sums_ = 0, groups_ = 0;
  u32 weights_ = 0;
};

}  // namespace nibble::kernels
