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

namespace cpu {

Tensor linear_4bit(const Tensor& x, const Tensor& packed, const Tensor& absmax,
                   const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                   const std::optional<Tensor>& nested_offset, const std::optional<Tensor>& bias,
                   std::int64_t out_features, std::int64_t blocksize, const std::string& quant_type);
Tensor linear_4bit_dx(const Tensor& dy, const Tensor& packed, const Tensor& absmax,
                      const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                      const std::optional<Tensor>& nested_offset, std::int64_t in_features, std::int64_t blocksize,
                      const std::string& quant_type);
std::tuple<Tensor, Tensor> quantize_4bit(const Tensor& weights, std::int64_t blocksize, const std::string& quant_type);
Tensor dequantize_4bit(const Tensor& packed, const Tensor& absmax, const std::optional<Tensor>& nested_absmax,
                       const std::optional<Tensor>& nested_codebook, const std::optional<Tensor>& nested_offset,
                       const std::vector<std::int64_t>& shape, std::int64_t blocksize, const std::string& quant_type,
                       ScalarType dtype);
std::tuple<Tensor, Tensor, Tensor> quantize_absmax(const Tensor& absmax, const std::optional<Tensor>& offset);
Tensor dequantize_absmax(const Tensor& codes, const Tensor& nested_absmax, const Tensor& nested_codebook,
                         const Tensor& nested_offset);

Tensor linear_int8(const Tensor& x, const Tensor& weight, const Tensor& absmax, const std::optional<Tensor>& bias);
Tensor linear_int8_dx(const Tensor& dy, const Tensor& weight, const Tensor& absmax);
std::tuple<Tensor, Tensor> quantize_int8(const Tensor& weights);
Tensor dequantize_int8(const Tensor& weight, const Tensor& absmax, ScalarType dtype);

}  // namespace cpu

namespace cuda {

Tensor linear_4bit(const Tensor& x, const Tensor& packed, const Tensor& absmax,
                   const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                   const std::optional<Tensor>& nested_offset, const std::optional<Tensor>& bias,
                   std::int64_t out_features, std::int64_t blocksize, const std::string& quant_type);
Tensor linear_4bit_dx(const Tensor& dy, const Tensor& packed, const Tensor& absmax,
                      const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                      const std::optional<Tensor>& nested_offset, std::int64_t in_features, std::int64_t blocksize,
                      const std::string& quant_type);
std::tuple<Tensor, Tensor> quantize_4bit(const Tensor& weights, std::int64_t blocksize, const std::string& quant_type);
Tensor dequantize_4bit(const Tensor& packed, const Tensor& absmax, const std::optional<Tensor>& nested_absmax,
                       const std::optional<Tensor>& nested_codebook, const std::optional<Tensor>& nested_offset,
                       const std::vector<std::int64_t>& shape, std::int64_t blocksize, const std::string& quant_type,
                       ScalarType dtype);
Tensor linear_int8(const Tensor& x, const Tensor& weight, const Tensor& absmax, const std::optional<Tensor>& bias);
Tensor linear_int8_dx(const Tensor& dy, const Tensor& weight, const Tensor& absmax);
std::tuple<Tensor, Tensor> quantize_int8(const Tensor& weights);
Tensor dequantize_int8(const Tensor& weight, const Tensor& absmax, ScalarType dtype);

}  // namespace cuda

}  // namespace nibble::torch_operators
