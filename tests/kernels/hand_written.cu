// FourBitDequantize<bf16, Rows::contiguous> (kernels/quantize/four_bit_dequantize.hpp) as one would write it without
// the device layer: CUDA's own names, raw pointers, and PTX where CUDA has no intrinsic for an instruction. It is never
// run: tests/kernels/machine_code/run.py counts its instructions, of each opcode, and the kernel must have as many. So
// what the layer costs would show. The algorithm is the kernel's, and is explained there.
#include <cstdint>

namespace nibble::hand_written {

constexpr std::uint32_t threads = 256, min_blocks = 6;
constexpr std::uint32_t tile = 1024, each = 8, steps = tile / (32 * each);
constexpr std::uint32_t everyone = 0xffffffff;

// The kernel's arguments. Gap and k are for rows with gaps, and have no use here.
struct FourBitDequantize {
  const std::uint8_t* packed;
  const float* absmax;
  const std::uint8_t* absmax_codes;
  const float* nested_absmax;
  const float* nested_codebook;
  const float* nested_offset;
  std::uint16_t* out;
  std::uint64_t begin, end, gap;
  struct {
    std::uint64_t multiplier;
    std::uint32_t shift;
  } k;
  std::uint32_t log2_blocksize;
  bool aligned;
  float codebook[16];
};

__device__ __forceinline__ float scale_of_lane(const FourBitDequantize& a, std::uint64_t first, std::uint32_t low,
                                               std::uint32_t high, float offset) {
  const std::uint32_t lane = threadIdx.x & 31;
  const std::uint32_t block = lane << a.log2_blocksize, next = block + (1u << a.log2_blocksize);
  if (block >= high || next <= low) return 0.0f;
  const auto i = static_cast<std::int64_t>((first >> a.log2_blocksize) + lane);
  if (a.absmax != nullptr) return __ldg(a.absmax + i);
  const std::uint8_t code = __ldg(a.absmax_codes + i);
  const float nested = __ldg(a.nested_absmax + (i >> 8));
  return __fadd_rn(__fmul_rn(__ldg(a.nested_codebook + code), nested), offset);
}

__device__ __forceinline__ float decoded(std::uint32_t codes, std::uint32_t i, float value, float scale) {
  return __fmul_rn(__shfl_sync(everyone, value, static_cast<int>(codes >> 4 * (i ^ 1))), scale);
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ void store(std::uint16_t* to, const float (&w)[1]) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(w[0]));
  *to = bits;
}
__device__ __forceinline__ void store(std::uint16_t* to, const float (&w)[8]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(pack_bf16(w[0], w[1])),
               "r"(pack_bf16(w[2], w[3])), "r"(pack_bf16(w[4], w[5])), "r"(pack_bf16(w[6], w[7]))
               : "memory");
}

template <std::uint32_t Each>
__device__ __forceinline__ void part_of_tile(const FourBitDequantize& a, std::uint64_t first, std::uint32_t low,
                                             std::uint32_t high, float value, float scales, std::uint32_t first_index) {
  const std::uint32_t index = first_index + (threadIdx.x & 31) * Each;
  const bool inside = index >= low && index + Each <= high;
  std::uint32_t codes = 0;
  if (inside) {
    const std::uint8_t* from = a.packed + (first + index) / 2;
#pragma unroll
    for (std::uint32_t i = 0; i < (Each + 1) / 2; ++i) codes |= std::uint32_t{__ldg(from + i)} << 8 * i;
  }
  const float scale = __shfl_sync(everyone, scales, static_cast<int>(index >> a.log2_blocksize));
  float weight[Each];
#pragma unroll
  for (std::uint32_t i = 0; i < Each; ++i) weight[i] = decoded(codes, Each == 1 ? index % 2 : i, value, scale);
  if (inside) store(a.out + (first + index - a.begin), weight);
}

__global__ void __launch_bounds__(threads, min_blocks)
    four_bit_dequantize(const __grid_constant__ FourBitDequantize a) {
  const std::uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float value = a.codebook[lane % 16];
  const float offset = a.absmax == nullptr ? __ldg(a.nested_offset) : 0.0f;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * (threads / 32) * tile;
  for (std::uint64_t first = a.begin / tile * tile + (std::uint64_t{blockIdx.x} * (threads / 32) + warp) * tile;
       first < a.end; first += stride) {
    if (a.aligned && first >= a.begin && a.end - first >= tile) {
      std::uint32_t codes[steps];
#pragma unroll
      for (std::uint32_t step = 0; step < steps; ++step) {
        const std::uint64_t element = first + (step * 32 + lane) * each;
        codes[step] = __ldcs(reinterpret_cast<const std::uint32_t*>(a.packed + element / 2));
      }
      const float scales = scale_of_lane(a, first, 0, tile, offset);
#pragma unroll
      for (std::uint32_t step = 0; step < steps; ++step) {
        const std::uint32_t index = (step * 32 + lane) * each;
        const float scale = __shfl_sync(everyone, scales, static_cast<int>(index >> a.log2_blocksize));
        float weight[each];
#pragma unroll
        for (std::uint32_t i = 0; i < each; ++i) weight[i] = decoded(codes[step], i, value, scale);
        store(a.out + (first + index - a.begin), weight);
      }
      continue;
    }

    const std::uint32_t low = a.begin > first ? static_cast<std::uint32_t>(a.begin - first) : 0;
    const std::uint32_t high = a.end - first < tile ? static_cast<std::uint32_t>(a.end - first) : tile;
    const float scales = scale_of_lane(a, first, low, high, offset);
#pragma unroll 1
    for (std::uint32_t index = 0; index < tile; index += 32 * each)
      part_of_tile<each>(a, first, low, high, value, scales, index);
    if (high % each != 0) part_of_tile<1>(a, first, low, high, value, scales, high - high % each);
  }
}

}  // namespace nibble::hand_written
