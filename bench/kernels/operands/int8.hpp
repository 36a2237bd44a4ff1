// int8 weights for the kernels' benchmark, and nibble's product with them.
#pragma once
#include <vector>

#include "bench/kernels/operands/operands.hpp"
#include "nibble/kernels.h"

namespace nibble::bench {

/// A weight of LLM.int8() on the device.
struct Int8 {
  Buffer codes, absmax;

  explicit Int8(const Shape& shape)
      : codes(shape.size(), Buffer::Fill::nothing), absmax(shape.n * sizeof(float), Buffer::Fill::nothing) {}
  /// Random codes, and scales of a real weight's size, of which neighbours differ.
  static Int8 random(const Shape& shape, u64 seed);

  [[nodiscard]] nibble_int8 argument(const Shape& shape) const {
    return {.struct_bytes = sizeof(nibble_int8),
            .rows = shape.n,
            .columns = shape.k,
            .codes = codes.as<std::int8_t>(),
            .absmax = absmax.as<float>()};
  }
  [[nodiscard]] u64 bytes() const { return codes.bytes() + absmax.bytes(); }

  /// Row n of the weight, as decoded on the CPU.
  [[nodiscard]] std::vector<float> row(const Shape& shape, u64 n) const;
};

/// y[m][n] = x[m][k] * transposed(weight[n][k]), x and y in bf16.
class Int8Matmul {
 public:
  /// For all weights like that one.
  Int8Matmul(const Shape& shape, u64 m, const Int8& weight);
  void run(const Int8& weight, const Buffer& x, const Buffer& y, cudaStream_t stream) const;

 private:
  template <class Body> void call(const Int8& weight, void* x, void* y, Body&& body) const;
  Shape shape_;
  u64 m_;
  Buffer counters_, workspace_;
};

}  // namespace nibble::bench
