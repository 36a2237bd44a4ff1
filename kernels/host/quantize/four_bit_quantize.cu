#include "kernels/quantize/four_bit_quantize.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.hpp"
#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/interface.hpp"
#include "kernels/quantize/nested_quantize.hpp"
#include "kernels/quantize/nested_sums.hpp"

namespace nibble::kernels {
namespace {

// The workspace of double quantization: every absmax in fp32, and the sum of each group of them.
struct Workspace {
  u64 blocks, groups;
  std::size_t absmax_bytes, sums_bytes;

  Workspace(u64 size, u64 blocksize)
      : blocks(size / blocksize + (size % blocksize != 0)),
        groups(ceil_div<u64>(blocks, nested::group)),
        absmax_bytes(ceil_div<u64>(blocks * sizeof(float), 16) * 16),
        sums_bytes(groups * sizeof(double)) {}
  [[nodiscard]] std::size_t bytes() const { return absmax_bytes + sums_bytes; }

  static float* absmax(void* memory) { return static_cast<float*>(memory); }
  [[nodiscard]] double* sums(void* memory) const {
    return reinterpret_cast<double*>(static_cast<char*>(memory) + absmax_bytes);
  }
};

nibble_four_bit_output checked_output(const nibble_four_bit_output* given, u64 size) {
  const nibble_four_bit_output out = whole("out", given);
  check_codebook("out.codebook", out.codebook);
  check_blocksize("out.blocksize", out.blocksize);
  if (out.absmax != nullptr && out.absmax_codes != nullptr)
    refuse("out has both absmax and absmax_codes, must have one of them");
  if (out.absmax_codes != nullptr) check_pointer("out.nested_offset", out.nested_offset, alignof(float));
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
                   StreamRef stream) {
  using Kernel = FourBitQuantize<T, Format>;
  const u64 blocks = ceil_div<u64>(size, Kernel::tile);
  const u32 width = static_cast<u32>(std::min<u64>(blocks, Kernel::grid_width));
  launch({width, static_cast<u32>(ceil_div<u64>(blocks, width))}, 0, stream,
         Kernel{static_cast<const T*>(weights), size, log2_of(out.blocksize),
                is_aligned(weights, 16) && is_aligned(out.packed, 4), out.packed, absmax, nonfinite});
}

// The sums of absmax, then codes and the offset. Without weights there are no sums, and the offset is 0.
void launch_nested(const Workspace& room, void* workspace, const nibble_four_bit_output& out, StreamRef stream) {
  const float* const absmax = Workspace::absmax(workspace);
  double* const sums = room.sums(workspace);
  if (room.groups > 0)  // at most 2^29, because there are at most 2^48 weights
    launch({static_cast<u32>(room.groups)}, 0, stream, NestedSums{absmax, room.blocks, sums}, Overlap::yes);
  const u64 blocks = ceil_div<u64>(room.blocks, u64{NestedCodes::warps} * nested::blocksize);
  launch(resident_grid<NestedCodes>(std::max<u64>(blocks, 1)), 0, stream,
         NestedCodes{absmax, room.blocks, sums, out.nested_offset, is_aligned(out.absmax_codes, 8), out.absmax_codes,
                     out.nested_absmax},
         Overlap::yes);
}

}  // namespace
}  // namespace nibble::kernels

int nibble_quantize_four_bit_workspace(uint64_t size, uint32_t blocksize, int nested, size_t* bytes) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_pointer("bytes", bytes, alignof(size_t));
    checked_size("weights", size, 1);
    check_blocksize("blocksize", blocksize);
    *bytes = nested != 0 ? Workspace(size, blocksize).bytes() : 0;
  });
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

    float* const absmax = nested ? Workspace::absmax(workspace) : out.absmax;
    if (size > 0)
      with_type(dtype, [&](auto type) {
        using T = decltype(type);
        if (out.codebook == NIBBLE_NF4)
          launch_blocks<T, Nf4>(weights, size, out, absmax, nonfinite_blocks, stream);
        else
          launch_blocks<T, Fp4>(weights, size, out, absmax, nonfinite_blocks, stream);
      });
    if (nested) launch_nested(room, workspace, out, stream);
  });
}
