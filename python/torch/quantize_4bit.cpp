// 4-bit codes from weights and back on the CPU, on torch's threads.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "nibble/nested.hpp"
#include "python/torch/four_bit.hpp"
#include "python/torch/operators.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble::torch_operators {

Tensor quant_map(const std::string& quant_type) {
  const std::span<const float> values =
      quant_type == "nested" ? std::span<const float>(nested::codebook) : four_bit_tables(quant_type).codebook;
  const std::array<std::int64_t, 1> shape{static_cast<std::int64_t>(values.size())};
  const Tensor map = torch::stable::empty(shape, ScalarType::Float);
  std::copy(values.begin(), values.end(), map.mutable_data_ptr<float>());
  return map;
}

namespace cpu {
namespace {

// Weights that a thread takes at least: 64 KiB of fp32. A multiple of every blocksize.
constexpr std::int64_t grain = 16384;

}  // namespace

std::tuple<Tensor, Tensor> quantize_4bit(const Tensor& weights, std::int64_t blocksize, const std::string& quant_type) {
  const DType source = weight_type("weights", weights.scalar_type());
  const FourBitTables& tables = four_bit_tables(quant_type);
  require(blocksize >= 32 && blocksize <= 4096 && (blocksize & (blocksize - 1)) == 0,
          [&] { return fmt::format("blocksize: is {}, not one of 32, 64, ..., 4096", blocksize); });
  const Tensor flat = row_major(weights);
  const std::int64_t n = flat.numel(), blocks = (n + blocksize - 1) / blocksize;
  const Tensor packed = empty({(n + 1) / 2, 1}, ScalarType::Byte, weights);
  const Tensor absmax = empty({blocks}, ScalarType::Float, weights);
  const auto* const from = static_cast<const std::byte*>(flat.const_data_ptr());
  auto* const codes = packed.mutable_data_ptr<std::uint8_t>();
  auto* const scales = absmax.mutable_data_ptr<float>();
  const std::int64_t size = traits(source).bits / 8;
  parallel_for((n + grain - 1) / grain, 1, [&](std::int64_t a, std::int64_t b) {
    const std::int64_t begin = a * grain, count = std::min(b * grain, n) - begin;
    (void)encode_four_bit(tables, source, {from + begin * size, static_cast<std::size_t>(count * size)},
                          static_cast<std::size_t>(blocksize),
                          {codes + begin / 2, static_cast<std::size_t>((count + 1) / 2)},
                          {scales + begin / blocksize, static_cast<std::size_t>((count + blocksize - 1) / blocksize)});
  });
  return {packed, absmax};
}

Tensor dequantize_4bit(const Tensor& packed, const Tensor& absmax, const std::optional<Tensor>& nested_absmax,
                       const std::optional<Tensor>& nested_codebook, const std::optional<Tensor>& nested_offset,
                       const std::vector<std::int64_t>& shape, std::int64_t blocksize, const std::string& quant_type,
                       ScalarType dtype) {
  const DType to = weight_type("dtype", dtype);
  std::int64_t n = 1;
  for (const std::int64_t size : shape)
    require(size >= 0 && !__builtin_mul_overflow(n, size, &n), [] { return std::string("shape: is too large"); });
  const FourBitParts parts{packed, absmax, nested_absmax, nested_codebook, nested_offset, blocksize, quant_type};
  const FourBitRows weight(parts, 1, n);
  const Tensor out = empty(shape, dtype, packed);
  auto* const to_bytes = static_cast<std::byte*>(out.mutable_data_ptr());
  const std::int64_t size = traits(to).bits / 8;
  parallel_for((n + grain - 1) / grain, 1, [&](std::int64_t a, std::int64_t b) {
    const std::int64_t begin = a * grain, end = std::min(b * grain, n);
    weight.decode(begin, end - begin, to, to_bytes + begin * size);
  });
  return out;
}

std::tuple<Tensor, Tensor, Tensor> quantize_absmax(const Tensor& absmax, const std::optional<Tensor>& offset) {
  require_plane("absmax", absmax, ScalarType::Float, absmax);
  const auto n = static_cast<std::size_t>(absmax.numel());
  const std::size_t nested_blocks = (n + nested::blocksize - 1) / nested::blocksize;
  const std::span<const float> values(absmax.const_data_ptr<float>(), n);
  const Tensor codes = empty({absmax.numel()}, ScalarType::Byte, absmax);
  const Tensor nested_absmax = empty({static_cast<std::int64_t>(nested_blocks)}, ScalarType::Float, absmax);
  const Tensor mean = empty({}, ScalarType::Float, absmax);
  if (offset) {
    require_plane("offset", *offset, ScalarType::Float, absmax);
    require(offset->numel() == 1, [&] { return fmt::format("offset: has {} values, not 1", offset->numel()); });
  }
  const float center = offset ? *offset->const_data_ptr<float>() : nested::offset(values);
  *mean.mutable_data_ptr<float>() = center;
  auto* const to = codes.mutable_data_ptr<std::uint8_t>();
  auto* const scales = nested_absmax.mutable_data_ptr<float>();
  parallel_for(static_cast<std::int64_t>(nested_blocks), 16, [&](std::int64_t a, std::int64_t b) {
    const auto first = static_cast<std::size_t>(a) * nested::blocksize;
    const std::size_t count = std::min(static_cast<std::size_t>(b) * nested::blocksize, n) - first;
    nested::encode(values.subspan(first, count), center, {to + first, count},
                   {scales + a, static_cast<std::size_t>(b - a)});
  });
  return {codes, nested_absmax, mean};
}

Tensor dequantize_absmax(const Tensor& codes, const Tensor& nested_absmax, const Tensor& nested_codebook,
                         const Tensor& nested_offset) {
  require_plane("codes", codes, ScalarType::Byte, codes);
  require_plane("nested_absmax", nested_absmax, ScalarType::Float, codes);
  require_plane("nested_quant_map", nested_codebook, ScalarType::Float, codes);
  require_plane("nested_offset", nested_offset, ScalarType::Float, codes);
  const auto n = static_cast<std::size_t>(codes.numel());
  const std::size_t nested_blocks = (n + nested::blocksize - 1) / nested::blocksize;
  require(nested_absmax.numel() == static_cast<std::int64_t>(nested_blocks), [&] {
    return fmt::format("nested_absmax: has {} values, and {} codes need {}", nested_absmax.numel(), n, nested_blocks);
  });
  require(nested_codebook.numel() == 256,
          [&] { return fmt::format("nested_quant_map: has {} values, not 256", nested_codebook.numel()); });
  require(nested_offset.numel() == 1,
          [&] { return fmt::format("nested_offset: has {} values, not 1", nested_offset.numel()); });
  const Tensor absmax = empty(codes.sizes(), ScalarType::Float, codes);
  const auto* const from = codes.const_data_ptr<std::uint8_t>();
  const auto* const scales = nested_absmax.const_data_ptr<float>();
  const std::span<const float, 256> codebook(nested_codebook.const_data_ptr<float>(), 256);
  const float offset = *nested_offset.const_data_ptr<float>();
  auto* const to = absmax.mutable_data_ptr<float>();
  parallel_for(static_cast<std::int64_t>(nested_blocks), 64, [&](std::int64_t a, std::int64_t b) {
    const auto first = static_cast<std::size_t>(a) * nested::blocksize;
    const std::size_t count = std::min(static_cast<std::size_t>(b) * nested::blocksize, n) - first;
    nested::decode({from + first, count}, {scales + a, static_cast<std::size_t>(b - a)}, codebook, offset,
                   {to + first, count});
  });
  return absmax;
}

}  // namespace cpu
}  // namespace nibble::torch_operators
