#include "kernels/quantize/four_bit_quantize.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.hpp"
#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/interface.hpp"
#include "kernels/quantize/nested_quantize.hpp"

namespace nibble::kernels {
namespace {

// The workspace of double quantization: the counters, if the caller gives none; every absmax in fp32; and the sum of
// each group of them.
struct Workspace {
  static constexpr std::size_t counter_bytes = NIBBLE_COUNTERS * sizeof(u32);
  u64 blocks, groups;
  std::size_t absmax_bytes, sums_bytes;

  Workspace(u64 size, u64 blocksize)
      : blocks(size / blocksize + (size % blocksize != 0)),
        groups(ceil_div<u64>(blocks, nested::group)),
        absmax_bytes(ceil_div<u64>(blocks * sizeof(float), 16) * 16),
        sums_bytes(groups * sizeof(double)) {}
  [[nodiscard]] std::size_t bytes() const { return counter_bytes + absmax_bytes + sums_bytes; }

  static float* absmax(void* memory) { return reinterpret_cast<float*>(static_cast<char*>(memory) + counter_bytes); }
  [[nodiscard]] NestedSums sums(void* memory, u32* counters) const {
    const u64 groups_of_counter = std::bit_ceil(std::max<u64>(1, ceil_div<u64>(groups, NIBBLE_COUNTERS)));
    return {.arrived = counters,
            .absmax = absmax(memory),
            .size = blocks,
            .counter_bits = static_cast<u32>(std::countr_zero(groups_of_counter * nested::group)),
            .sums = reinterpret_cast<double*>(reinterpret_cast<char*>(absmax(memory)) + absmax_bytes)};
  }
};

nibble_four_bit_output checked_output(const nibble_four_bit_output* given, u64 size) {
  const nibble_four_bit_output out = whole("out", given);
  check_codebook("out.codebook", out.codebook);
  check_blocksize("out.blocksize", out.blocksize);
  if (out.absmax != nullptr && out.absmax_codes != nullptr)
    refuse("out has both absmax and absmax_codes, must have one of them");
  if (out.absmax_codes != nullptr) check_pointer("out.nested_offset", out.nested_offset, alignof(float));
  if (out.counters != nullptr) check_pointer("out.counters", out.counters, alignof(u32));
  if (size == 0) return out;
  check_pointer("out.packed", out.packed, 1);
  if (out.absmax_codes != nullptr)
    check_pointer("out.nested_absmax", out.nested_absmax, alignof(float));
  else if (out.absmax == nullptr)
    refuse("out has neither absmax nor absmax_codes");
  else
    check_pointer("out.absmax", out.absmax, alignof(float));
  return out;
}

template <class T, class Format>
void launch_blocks(const void* weights, u64 size, const nibble_four_bit_output& out, float* absmax, u64* nonfinite,
                   const NestedSums& sums, StreamRef stream) {
  using Kernel = FourBitQuantize<T, Format>;
  const u64 blocks = ceil_div<u64>(size, Kernel::tile);
  const u32 width = static_cast<u32>(std::min<u64>(blocks, Kernel::grid_width));
  launch({width, static_cast<u32>(ceil_div<u64>(blocks, width))}, 0, stream,
         Kernel{static_cast<const T*>(weights), size, log2_of(out.blocksize),
                is_aligned(weights, 16) && is_aligned(out.packed, 4), out.packed, absmax, nonfinite, sums});
}

// Also without weights, whose offset is 0.
void launch_nested(const NestedSums& sums, const nibble_four_bit_output& out, StreamRef stream) {
  const u64 blocks = ceil_div<u64>(sums.size, u64{NestedCodes::warps} * nested::blocksize);
  launch(resident_grid<NestedCodes>(std::max<u64>(blocks, 1)), 0, stream,
         NestedCodes{sums.absmax, sums.size, sums.sums, out.nested_offset, is_aligned(out.absmax_codes, 8),
                     out.absmax_codes, out.nested_absmax},
         Overlap::yes);
}

}  // namespace
}  // namespace nibble::kernels

size_t nibble_quantize_four_bit_workspace(uint64_t size, uint32_t blocksize, int nested) {
  return nested != 0 && blocksize != 0 ? nibble::kernels::Workspace(size, blocksize).bytes() : 0;
}

int nibble_quantize_four_bit(const void* weights, nibble_dtype dtype, uint64_t size,
                             const nibble_four_bit_output* given, uint64_t* nonfinite_blocks, void* workspace,
                             size_t workspace_bytes, nibble_stream stream) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_dtype("dtype", dtype);
    checked_size("weights", size, 1);
    const nibble_four_bit_output out = checked_output(given, size);
    if (size > 0) check_pointer("weights", weights, element_bytes(dtype));
    if (nonfinite_blocks != nullptr) check_pointer("nonfinite_blocks", nonfinite_blocks, alignof(u64));
    const bool nested = out.absmax_codes != nullptr;
    const Workspace room(size, out.blocksize);
    if (nested) check_workspace(workspace, workspace_bytes, room.bytes());

    u32* const counters = out.counters != nullptr ? out.counters : static_cast<u32*>(workspace);
    const NestedSums sums = nested ? room.sums(workspace, counters) : NestedSums{};
    float* const absmax = nested ? Workspace::absmax(workspace) : out.absmax;
    if (nested && size > 0 && out.counters == nullptr) clear_memory(counters, Workspace::counter_bytes, stream);
    if (size > 0)
      with_type(dtype, [&](auto type) {
        using T = decltype(type);
        if (out.codebook == NIBBLE_NF4)
          launch_blocks<T, Nf4>(weights, size, out, absmax, nonfinite_blocks, sums, stream);
        else
          launch_blocks<T, Fp4>(weights, size, out, absmax, nonfinite_blocks, sums, stream);
      });
    if (nested) launch_nested(sums, out, stream);
  });
}
