// The functions of bitsandbytes' CUDA library that the benchmarks call, by the plainest loops on the host.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "nibble/bf16.hpp"
#include "nibble/nf4.hpp"

namespace {

float code_value(const std::uint8_t* packed, std::size_t i) {
  return nibble::nf4::codebook.value[i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15];
}

}  // namespace

extern "C" {

void cdequantize_blockwise_fp32(const float* codebook, const std::uint8_t* codes, const float* absmax, float* out,
                                int blocksize, int n, cudaStream_t /*stream*/) {
  for (int i = 0; i < n; ++i) out[i] = codebook[codes[i]] * absmax[i / blocksize];
}

void cdequantize_blockwise_bf16_nf4(const float* /*unused*/, const std::uint8_t* packed, const float* absmax, void* out,
                                    int blocksize, int n, cudaStream_t /*stream*/) {
  for (int i = 0; i < n; ++i)
    static_cast<std::uint16_t*>(out)[i] =
        nibble::bf16::from_float(code_value(packed, static_cast<std::size_t>(i)) * absmax[i / blocksize]);
}

void cquantize_blockwise_bf16_nf4(const float* /*unused*/, const void* weights, float* absmax, std::uint8_t* packed,
                                  int blocksize, int n) {
  const auto weight = [weights](int i) {
    return nibble::bf16::to_float(static_cast<const std::uint16_t*>(weights)[i]);
  };
  for (int block = 0; block < n / blocksize; ++block) {
    float largest = 0;
    for (int i = block * blocksize; i < (block + 1) * blocksize; ++i) largest = std::max(largest, std::fabs(weight(i)));
    absmax[block] = largest;
    for (int i = block * blocksize; i < (block + 1) * blocksize; ++i) {
      const auto& values = nibble::nf4::codebook.value;
      const float unit = weight(i) * (1.0f / largest);
      int code = 0;
      while (code < 15 && unit > (values[code] + values[code + 1]) / 2) ++code;
      std::uint8_t& byte = packed[i / 2];
      byte = static_cast<std::uint8_t>(i % 2 == 0 ? code << 4 : byte | code);
    }
  }
}

void cgemm_4bit_bf16(const void* x, const std::uint8_t* packed, const float* nested_absmax,
                     const std::uint8_t* absmax_codes, const float* nested_codebook, const float* nested_offset,
                     void* y, const void* /*bias*/, int m, int n, int k, int blocksize, int /*type*/,
                     cudaStream_t /*stream*/) {
  for (int row = 0; row < n; ++row) {
    std::vector<double> weights;
    for (int i = row * k; i < (row + 1) * k; ++i) {
      const int block = i / blocksize;
      const float absmax = nested_codebook[absmax_codes[block]] * nested_absmax[block / 256] + *nested_offset;
      weights.push_back(double{code_value(packed, static_cast<std::size_t>(i)) * absmax});
    }
    for (int token = 0; token < m; ++token) {
      double sum = 0;
      for (int i = 0; i < k; ++i)
        sum += weights[static_cast<std::size_t>(i)] *
               double{nibble::bf16::to_float(static_cast<const std::uint16_t*>(x)[token * k + i])};
      static_cast<std::uint16_t*>(y)[token * n + row] = nibble::bf16::from_float(static_cast<float>(sum));
    }
  }
}

}  // extern "C"
