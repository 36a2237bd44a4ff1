// Operands of products on the device: random values, more copies of a weight than a cache holds, and whether a product
// of them is right.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/kernels/gpu/gpu.hpp"
#include "bench/kernels/gpu/sizes.hpp"

namespace nibble::bench {

using u8 = std::uint8_t;
using u16 = std::uint16_t;

/// Nearly normal; values repeat after 16 million.
std::vector<u16> random_bf16(u64 n, float deviation, u64 seed);

/// All bytes of the buffer are random.
void fill_randomly(const Buffer& buffer, u64 seed);

/// A weight in bf16, in copies_of() its bytes.
std::vector<Buffer> bf16_copies(const std::vector<u16>& values);

/// Random quantized weights of that shape, in copies_of() their bytes.
template <class Weight> std::vector<Weight> random_copies(const Shape& shape) {
  std::vector<Weight> copies;
  do copies.push_back(Weight::random(shape, copies.size()));
  while (copies.size() < copies_of(copies[0].bytes()));
  return copies;
}

// The checks throw std::runtime_error, whose text begins with `what`.

void require(bool right, const std::string& what);

/// Results of a product in bf16 against sums in fp64.
class ProductErrors {
 public:
  /// `y` should be the sum of weights[i] * x[i].
  void add(const std::vector<float>& weights, const u16* x, u16 y);
  /// The error that is allowed, 1 % of the root mean square, has room for the roundings of weights and of y to bf16,
  /// and for none of a wrong row, scale or order. False for a NaN, too.
  [[nodiscard]] bool are_small() const { return errors_ <= 1e-4 * squares_; }

 private:
  double squares_ = 0, errors_ = 0;
};

/// The n that are looked at.
inline std::array<u64, 3> checked_rows(const Shape& shape) { return {0, shape.n / 2 + 1, shape.n - 1}; }

/// Looks at three n, whose weights row(n) gives, and all m.
void check_product(const Shape& shape, u64 m, const std::vector<u16>& x, const Buffer& y,
                   const std::function<std::vector<float>(u64)>& row, const std::string& what);

}  // namespace nibble::bench
