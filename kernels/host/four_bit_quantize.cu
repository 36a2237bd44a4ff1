#include "kernels/four_bit_quantize.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/interface.hpp"
#include "kernels/nested_quantize.hpp"

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
};

void check_output(const nibble_four_bit_output* out, u64 size) {
  if (out == nullptr) refuse("out is null");
  check_codebook("out.codebook", out->codebook);
  check_blocksize("out.blocksize", out->blocksize);
  if (out->absmax != nullptr && out->absmax_codes != nullptr)
    refuse("out has both absmax and absmax_codes, must have one of them");
  if (out->absmax_codes != nullptr) check_pointer("out.nested_offset", out->nested_offset, alignof(float));
  if (size == 0) return;
  check_pointer("out.packed", out->packed, 1);
  if (out->absmax_codes != nullptr)
    check_pointer("out.nested_absmax", out->nested_absmax, alignof(float));
  else if (out->absmax == nullptr)
    refuse("out has neither absmax nor absmax_codes");
  else
    check_pointer("out.absmax", out->absmax, alignof(float));
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

// Thread blocks of NestedCodes; a grid is at most so wide. From 2^47 weights on at a blocksize of 32 there may be more.
constexpr u64 widest_grid = (u64{1} << 31) - 1;
constexpr u64 max_nested_blocks = widest_grid * NestedCodes::warps * nested::blocksize;
u64 nested_grid(const Workspace& room) {
  return ceil_div<u64>(ceil_div<u64>(room.blocks, nested::blocksize), NestedCodes::warps);
}

void launch_nested(const Workspace& room, const float* absmax, double* sums, const nibble_four_bit_output& out,
                   StreamRef stream) {
  if (room.groups > 0) launch({static_cast<u32>(room.groups)}, 0, stream, NestedGroupSums{absmax, room.blocks, sums});
  launch({1}, 0, stream, NestedOffset{sums, room.groups, room.blocks, out.nested_offset});
  if (room.blocks == 0) return;
  launch({static_cast<u32>(nested_grid(room))}, 0, stream,
         NestedCodes{absmax, room.blocks, out.nested_offset, is_aligned(out.absmax_codes, 8), out.absmax_codes,
                     out.nested_absmax});
}

}  // namespace
}  // namespace nibble::kernels

size_t nibble_quantize_four_bit_workspace(uint64_t size, uint32_t blocksize, int nested) {
  return nested != 0 && blocksize != 0 ? nibble::kernels::Workspace(size, blocksize).bytes() : 0;
}

int nibble_quantize_four_bit(const void* weights, nibble_dtype dtype, uint64_t size, const nibble_four_bit_output* out,
                             uint64_t* nonfinite_blocks, void* workspace, size_t workspace_bytes,
                             nibble_stream stream) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_dtype("dtype", dtype);
    checked_size("weights", size, 1);
    check_output(out, size);
    if (size > 0) check_pointer("weights", weights, element_bytes(dtype));
    if (nonfinite_blocks != nullptr) check_pointer("nonfinite_blocks", nonfinite_blocks, alignof(u64));
    const bool nested = out->absmax_codes != nullptr;
    const Workspace room(size, out->blocksize);
    if (nested && room.blocks > max_nested_blocks)
      refuse("weights has " + std::to_string(size) + " elements in " + std::to_string(room.blocks) +
             " blocks, at most " + std::to_string(max_nested_blocks) + " blocks can have nested absmax");
    if (nested) check_workspace(workspace, workspace_bytes, room.bytes());

    float* const absmax = nested ? static_cast<float*>(workspace) : out->absmax;
    if (size > 0)
      with_type(dtype, [&](auto type) {
        using T = decltype(type);
        if (out->codebook == NIBBLE_NF4)
          launch_blocks<T, Nf4>(weights, size, *out, absmax, nonfinite_blocks, stream);
        else
          launch_blocks<T, Fp4>(weights, size, *out, absmax, nonfinite_blocks, stream);
      });
    if (nested)
      launch_nested(room, absmax, reinterpret_cast<double*>(static_cast<char*>(workspace) + room.absmax_bytes), *out,
                    stream);
  });
}
