#pragma once

// The operators, as the schemas of library.cpp declare them. What they compute stands in docs/torch.md.

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "python/torch/tensors.hpp"

namespace nibble::torch_operators {

/// The values of the codes, on the CPU: 16 of "nf4" or "fp4", 256 of "nested".
Tensor quant_map(const std::string& quant_type);

// Types of the functions that every device has to have.
using Linear4bit = Tensor(const Tensor& x, const Tensor& packed, const Tensor& absmax,
                          const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                          const std::optional<Tensor>& nested_offset, const std::optional<Tensor>& bias,
                          std::int64_t out_features, std::int64_t blocksize, const std::string& quant_type);
using Linear4bitDx = Tensor(const Tensor& dy, const Tensor& packed, const Tensor& absmax,
                            const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                            const std::optional<Tensor>& nested_offset, std::int64_t in_features,
                            std::int64_t blocksize, const std::string& quant_type);
using Quantize4bit = std::tuple<Tensor, Tensor>(const Tensor& weights, std::int64_t blocksize,
                                                const std::string& quant_type);
using Dequantize4bit = Tensor(const Tensor& packed, const Tensor& absmax, const std::optional<Tensor>& nested_absmax,
                              const std::optional<Tensor>& nested_codebook, const std::optional<Tensor>& nested_offset,
                              const std::vector<std::int64_t>& shape, std::int64_t blocksize,
                              const std::string& quant_type, ScalarType dtype);
using QuantizeAbsmax = std::tuple<Tensor, Tensor, Tensor>(const Tensor& absmax, const std::optional<Tensor>& offset);
using DequantizeAbsmax = Tensor(const Tensor& codes, const Tensor& nested_absmax, const Tensor& nested_codebook,
                                const Tensor& nested_offset);
using LinearInt8 = Tensor(const Tensor& x, const Tensor& weight, const Tensor& absmax,
                          const std::optional<Tensor>& bias);
using LinearInt8Dx = Tensor(const Tensor& dy, const Tensor& weight, const Tensor& absmax);
using QuantizeInt8 = std::tuple<Tensor, Tensor>(const Tensor& weights);
using DequantizeInt8 = Tensor(const Tensor& weight, const Tensor& absmax, ScalarType dtype);

namespace cpu {
Linear4bit linear_4bit;
Linear4bitDx linear_4bit_dx;
Quantize4bit quantize_4bit;
Dequantize4bit dequantize_4bit;
QuantizeAbsmax quantize_absmax;
DequantizeAbsmax dequantize_absmax;
LinearInt8 linear_int8;
LinearInt8Dx linear_int8_dx;
QuantizeInt8 quantize_int8;
DequantizeInt8 dequantize_int8;
}  // namespace cpu

namespace cuda {
Linear4bit linear_4bit;
Linear4bitDx linear_4bit_dx;
Quantize4bit quantize_4bit;
Dequantize4bit dequantize_4bit;
LinearInt8 linear_int8;
LinearInt8Dx linear_int8_dx;
QuantizeInt8 quantize_int8;
DequantizeInt8 dequantize_int8;
}  // namespace cuda

}  // namespace nibble::torch_operators
