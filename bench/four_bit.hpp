// Weights for the kernels' benchmark, and whether a result is right: the plainest loops, for a few rows.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu.hpp"
#include "bench/gpu_peers.hpp"
#include "nibble/kernels.h"
#include "nibble/nested.hpp"

namespace nibble::bench {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u64 = std::uint64_t;

constexpr u64 blocksize = 64, nested_span = blocksize * nested::blocksize;  // weights per nested absmax
struct Shape {
  u64 n, k;  // output features, input features
  [[nodiscard]] u64 size() const { return n * k; }
  [[nodiscard]] std::string text() const { return std::to_string(n) + "x" + std::to_string(k); }
};
/// Nearly normal.
std::vector<u16> random_bf16(u64 n, float deviation, u64 seed);

/// A weight of nested NF4 on the device.
struct FourBit {
  Buffer packed, absmax_codes, nested_absmax, offset;

  explicit FourBit(u64 size)
      : packed(size / 2),
        absmax_codes(size / blocksize),
        nested_absmax(4 * ((size + nested_span - 1) / nested_span)),
        offset(4) {}

  [[nodiscard]] nibble_four_bit_output output() const {
    return {NIBBLE_NF4,        blocksize, packed.as<u8>(), nullptr, absmax_codes.as<u8>(), nested_absmax.as<float>(),
            offset.as<float>()};
  }
  [[nodiscard]] nibble_four_bit argument(const Shape& shape, const Buffer& codebook) const {
    return {NIBBLE_NF4,
            blocksize,
            shape.n,
            shape.k,
            packed.as<u8>(),
            nullptr,
            absmax_codes.as<u8>(),
            nested_absmax.as<float>(),
            codebook.as<float>(),
            offset.as<float>()};
  }
  [[nodiscard]] Bitsandbytes::Nested peer_argument(const Buffer& codebook) const {
    return {packed.as<u8>(), absmax_codes.as<u8>(), nested_absmax.as<float>(), codebook.as<float>(),
            offset.as<float>()};
  }
  [[nodiscard]] u64 bytes() const {
    return packed.bytes() + absmax_codes.bytes() + nested_absmax.bytes() + offset.bytes();
  }
  void poison() {
    for (Buffer* const part : {&packed, &absmax_codes, &nested_absmax, &offset}) part->poison();
  }

  /// As decoded on the CPU: the absmax of blocks [first, first + count), and the codes of weights.
  [[nodiscard]] std::vector<float> absmax(u64 first, u64 count) const;
  [[nodiscard]] std::vector<u8> codes(u64 first, u64 count) const;
};

// The checks throw std::runtime_error, whose text begins with `what`. Of a weight they look at the first, the middle
// and the last blocks, as many as share a nested absmax.

void require(bool right, const std::string& what);

/// The packed codes alone, of which a `share` may differ.
void check_codes(const std::vector<u16>& weights, const FourBit& result, const std::string& what, double share = 0);

/// All parts; the codes must be the CPU's.
void check_quantized(const std::vector<u16>& weights, const FourBit& result, const std::string& what);

/// Bit for bit.
void check_dequantized(const FourBit& weight, u64 size, const Buffer& out, const std::string& what);

/// Looks at three n, whose weights row(n) gives, and all m. The error that is allowed, 1 % of the root mean square,
/// has room for the roundings of weights and of y to bf16, and for none of a wrong row, scale or order.
void check_product(const Shape& shape, u64 m, const std::vector<u16>& x, const Buffer& y,
                   const std::function<std::vector<float>(u64)>& row, const std::string& what);

}  // namespace nibble::bench
