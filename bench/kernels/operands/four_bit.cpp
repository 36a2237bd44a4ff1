#include "bench/kernels/operands/four_bit.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "nibble/bf16.hpp"
#include "nibble/kernels.hpp"
#include "nibble/nf4.hpp"

namespace nibble::bench {
namespace {

std::array<u64, 3> spans_of(u64 size) {
  const u64 spans = size / nested_span;
  return {0, spans / 2 * nested_span, (spans - 1) * nested_span};
}

// How many midpoints of the codebook are below it.
u8 nearest_nf4(float v) {
  u8 code = 0;
  while (code < 15 && v > (nf4::codebook.value[code] + nf4::codebook.value[code + 1]) / 2) ++code;
  return code;
}

float largest_of(const std::vector<u16>& weights, u64 block) {
  float largest = 0;
  for (u64 i = block * blocksize; i < (block + 1) * blocksize; ++i)
    largest = std::max(largest, std::fabs(bf16::to_float(weights[i])));
  return largest;
}

}  // namespace

FourBit FourBit::random(const Shape& shape, u64 seed) {
  FourBit weight(shape.size(), Buffer::Fill::nothing, shape.block);
  fill_randomly(weight.packed, 2 * seed);
  fill_randomly(weight.absmax_codes, 2 * seed + 1);
  const std::vector<float> scales(weight.nested_absmax.bytes() / sizeof(float), 0.01f);
  weight.nested_absmax.from_host(scales.data());
  const float mean = 0.05f;
  weight.offset.from_host(&mean);
  return weight;
}

nibble_four_bit FourBit::argument(const Shape& shape, const Buffer& codebook) const {
  return {.struct_bytes = sizeof(nibble_four_bit),
          .codebook = NIBBLE_NF4,
          .blocksize = static_cast<std::uint32_t>(block),
          .rows = shape.n,
          .columns = shape.k,
          .packed = packed.as<u8>(),
          .absmax = nullptr,
          .absmax_codes = absmax_codes.as<u8>(),
          .nested_absmax = nested_absmax.as<float>(),
          .nested_codebook = codebook.as<float>(),
          .nested_offset = offset.as<float>(),
          .first = 0,
          .stride = shape.k};
}

Buffer nested_codebook() {
  return Buffer::of(std::vector<float>(nibble_nested_codebook(), nibble_nested_codebook() + 256));
}

Quantize::Quantize(u64 size) : size_(size), workspace_(workspace_bytes(size), Buffer::Fill::nothing) {}

std::size_t Quantize::workspace_bytes(u64 size) { return cuda::quantize_workspace_bytes(size, blocksize, true); }

void Quantize::run(const Buffer& weights, const FourBit& out, cudaStream_t stream) const {
  cuda::quantize(weights.as<void>(), NIBBLE_BF16, size_,
                 {.struct_bytes = sizeof(nibble_four_bit_output),
                  .codebook = NIBBLE_NF4,
                  .blocksize = blocksize,
                  .packed = out.packed.as<u8>(),
                  .absmax = nullptr,
                  .absmax_codes = out.absmax_codes.as<u8>(),
                  .nested_absmax = out.nested_absmax.as<float>(),
                  .nested_offset = out.offset.as<float>()},
                 nullptr, workspace_.as<void>(), workspace_.bytes(), stream);
}

void Quantize::run_without_nesting(const Buffer& weights, const Buffer& packed, const Buffer& absmax,
                                   cudaStream_t stream) const {
  cuda::quantize(weights.as<void>(), NIBBLE_BF16, size_,
                 {.struct_bytes = sizeof(nibble_four_bit_output),
                  .codebook = NIBBLE_NF4,
                  .blocksize = blocksize,
                  .packed = packed.as<u8>(),
                  .absmax = absmax.as<float>(),
                  .absmax_codes = nullptr,
                  .nested_absmax = nullptr,
                  .nested_offset = nullptr},
                 nullptr, nullptr, 0, stream);
}

void dequantize(const FourBit& weight, const Shape& shape, const Buffer& codebook, const Buffer& out,
                cudaStream_t stream) {
  cuda::dequantize(weight.argument(shape, codebook), 0,
                   {sizeof(nibble_matrix), NIBBLE_BF16, shape.n, shape.k, shape.k, out.as<void>()}, stream);
}

Matmul::Matmul(const Shape& shape, u64 m, const FourBit& weight, const Buffer& codebook, std::uint32_t min_library_m,
               bool weights_are_ready)
    : shape_(shape),
      m_(m),
      min_library_m_(min_library_m),
      weights_are_ready_(weights_are_ready),
      counters_(Buffer::of(std::vector<std::uint32_t>(NIBBLE_COUNTERS))),
      workspace_(0, Buffer::Fill::nothing) {
  // The size does not depend on what x and y point to.
  call(weight, codebook, weight.packed.as<void>(), weight.packed.as<void>(),
       [&](const nibble_matmul& matmul) { workspace_ = Buffer(cuda::workspace_bytes(matmul), Buffer::Fill::nothing); });
}

void Matmul::run(const FourBit& weight, const Buffer& codebook, const Buffer& x, const Buffer& y,
                 cudaStream_t stream) const {
  call(weight, codebook, x.as<void>(), y.as<void>(),
       [&](const nibble_matmul& matmul) { cuda::run(matmul, workspace_.as<void>(), workspace_.bytes(), stream); });
}

template <class Body>
void Matmul::call(const FourBit& weight, const Buffer& codebook, void* x, void* y, Body&& body) const {
  const nibble_four_bit w = weight.argument(shape_, codebook);
  const nibble_matrix x_matrix{sizeof(nibble_matrix), NIBBLE_BF16, m_, shape_.k, shape_.k, x},
      y_matrix{sizeof(nibble_matrix), NIBBLE_BF16, m_, shape_.n, shape_.n, y};
  const nibble_four_bit_product product{sizeof(nibble_four_bit_product), &w, nullptr, &y_matrix};
  nibble_matmul matmul{};
  matmul.struct_bytes = sizeof matmul;
  matmul.x = &x_matrix;
  matmul.products = &product;
  matmul.product_count = 1;
  matmul.weights_are_ready = weights_are_ready_ ? 1 : 0;
  matmul.counters = counters_.as<std::uint32_t>();
  matmul.min_library_m = min_library_m_;
  body(matmul);
}

std::vector<float> FourBit::absmax(u64 first, u64 count) const {
  const auto codes = absmax_codes.to_host<u8>(first, count);
  const u64 begin = first / nested::blocksize, end = (first + count - 1) / nested::blocksize + 1;
  const auto scales = nested_absmax.to_host<float>(begin, end - begin);
  const float mean = offset.to_host<float>()[0];
  std::vector<float> values(count);
  for (u64 i = 0; i < count; ++i) {
    const float difference = nested::codebook[codes[i]] * scales[(first + i) / nested::blocksize - begin];
    values[i] = difference + mean;
  }
  return values;
}

std::vector<u8> FourBit::codes(u64 first, u64 count) const {
  const auto bytes = packed.to_host<u8>(first / 2, count / 2);
  std::vector<u8> codes(count);
  for (u64 i = 0; i < count; ++i) codes[i] = i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15;
  return codes;
}

std::vector<float> FourBit::row(const Shape& shape, u64 n) const {
  const u64 first = n * shape.k, first_block = first / block, last_block = (first + shape.k - 1) / block;
  const auto row_codes = codes(first, shape.k);
  const auto row_absmax = absmax(first_block, last_block - first_block + 1);
  std::vector<float> row(shape.k);
  for (u64 k = 0; k < shape.k; ++k)
    row[k] = nf4::codebook.value[row_codes[k]] * row_absmax[(first + k) / block - first_block];
  return row;
}

void check_codes(const std::vector<u16>& weights, const FourBit& result, const std::string& what, double share) {
  u64 different = 0;
  for (const u64 first : spans_of(weights.size())) {
    const auto codes = result.codes(first, nested_span);
    for (u64 i = 0; i < nested_span; ++i) {
      const float inverse = 1.0f / std::max(largest_of(weights, (first + i) / blocksize), 1e-38f);
      different += nearest_nf4(bf16::to_float(weights[first + i]) * inverse) != codes[i];
    }
  }
  require(static_cast<double>(different) <= share * 3 * nested_span, what + ", codes");
}

void check_quantized(const std::vector<u16>& weights, const FourBit& result, const std::string& what) {
  check_codes(weights, result, what);
  const u64 blocks = weights.size() / blocksize;
  double sum = 0;
  for (u64 block = 0; block < blocks; ++block) sum += double{largest_of(weights, block)};
  const double mean = sum / static_cast<double>(blocks);
  const float offset = result.offset.to_host<float>()[0];
  require(std::fabs(double{offset} - mean) <= 1e-6 * mean, what + ", offset");
  for (const u64 first : spans_of(weights.size())) {
    const auto codes = result.absmax_codes.to_host<u8>(first / blocksize, nested::blocksize);
    const float scale = result.nested_absmax.to_host<float>(first / nested_span, 1)[0];
    float largest = 0;
    for (u64 i = 0; i < nested::blocksize; ++i) {
      const float difference = largest_of(weights, first / blocksize + i) - offset;
      largest = std::max(largest, std::fabs(difference));
      const auto distance = [v = difference / scale](float value) { return std::fabs(v - value); };
      float least = 2;
      for (const float value : nested::codebook) least = std::min(least, distance(value));
      require(distance(nested::codebook[codes[i]]) <= least + 1e-6f, what + ", absmax codes");
    }
    require(scale == largest, what + ", nested absmax");
  }
}

void check_dequantized(const FourBit& weight, u64 size, const Buffer& out, const std::string& what) {
  for (const u64 first : spans_of(size)) {
    const auto values = out.to_host<u16>(first, nested_span);
    const auto codes = weight.codes(first, nested_span);
    const auto absmax = weight.absmax(first / blocksize, nested::blocksize);
    for (u64 i = 0; i < nested_span; ++i)
      require(values[i] == bf16::from_float(nf4::codebook.value[codes[i]] * absmax[i / blocksize]), what);
  }
}

}  // namespace nibble::bench
