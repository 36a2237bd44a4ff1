// 4-bit weights for the kernels' benchmark, and whether a result is right: the plainest loops, for a few blocks.
#pragma once
#include <string>
#include <vector>

#include "bench/kernels/gpu/peers.hpp"
#include "bench/kernels/operands/operands.hpp"
#include "nibble/kernels.h"
#include "nibble/nested.hpp"

namespace nibble::bench {

constexpr u64 blocksize = 64, nested_span = blocksize * nested::blocksize;  // weights per nested absmax

/// A weight of nested NF4 on the device.
struct FourBit {
  u64 block;  // weights per absmax
  Buffer packed, absmax_codes, nested_absmax, offset;

  explicit FourBit(u64 size, Buffer::Fill fill = Buffer::Fill::nan, u64 of_block = blocksize)
      : block(of_block),
        packed(size / 2, fill),
        absmax_codes(size / block, fill),
        nested_absmax(4 * ((size / block + nested::blocksize - 1) / nested::blocksize), fill),
        offset(4, fill) {}
  /// Random codes, and scales of a real weight's size.
  static FourBit random(const Shape& shape, u64 seed);

  [[nodiscard]] nibble_four_bit argument(const Shape& shape, const Buffer& codebook) const;
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
  /// Row n of the weight.
  [[nodiscard]] std::vector<float> row(const Shape& shape, u64 n) const;
};

// The operations. Nothing else here calls the library, or knows its arguments.

/// The 256 values of nested codes, in device memory.
Buffer nested_codebook();

class Quantize {
 public:
  explicit Quantize(u64 size);
  /// Of bf16 weights.
  void run(const Buffer& weights, const FourBit& out, cudaStream_t stream) const;
  /// The same codes, with every absmax in fp32 instead of its nested form.
  void run_without_nesting(const Buffer& weights, const Buffer& packed, const Buffer& absmax,
                           cudaStream_t stream) const;

 private:
  static std::size_t workspace_bytes(u64 size);
  u64 size_;
  Buffer workspace_;
};

/// To bf16.
void dequantize(const FourBit& weight, const Shape& shape, const Buffer& codebook, const Buffer& out,
                cudaStream_t stream);

/// y[m][n] = x[m][k] * transposed(weight[n][k]), x and y in bf16.
class Matmul {
 public:
  /// For all weights like that one. A library may do it from min_library_m rows on, or from what nibble takes to be
  /// best. `weights_are_ready` is nibble_matmul's, and what holds in a model.
  Matmul(const Shape& shape, u64 m, const FourBit& weight, const Buffer& codebook, std::uint32_t min_library_m = 0,
         bool weights_are_ready = true);
  void run(const FourBit& weight, const Buffer& codebook, const Buffer& x, const Buffer& y, cudaStream_t stream) const;
  [[nodiscard]] std::size_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  template <class Body> void call(const FourBit& weight, const Buffer& codebook, void* x, void* y, Body&& body) const;
  Shape shape_;
  u64 m_;
  std::uint32_t min_library_m_;
  bool weights_are_ready_;
  Buffer counters_, workspace_;
};

// The checks throw std::runtime_error, whose text begins with `what`. They look at the first, the middle and the last
// blocks, as many as share a nested absmax.

/// The packed codes alone, of which a `share` may differ.
void check_codes(const std::vector<u16>& weights, const FourBit& result, const std::string& what, double share = 0);

/// All parts; the codes must be the CPU's.
void check_quantized(const std::vector<u16>& weights, const FourBit& result, const std::string& what);

/// Bit for bit.
void check_dequantized(const FourBit& weight, u64 size, const Buffer& out, const std::string& what);

}  // namespace nibble::bench
