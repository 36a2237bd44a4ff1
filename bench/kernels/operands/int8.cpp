#include "bench/kernels/operands/int8.hpp"

#include "nibble/kernels.hpp"

namespace nibble::bench {

Int8 Int8::random(const Shape& shape, u64 seed) {
  Int8 weight(shape);
  fill_randomly(weight.codes, seed);
  std::vector<float> scales(shape.n);
  for (u64 n = 0; n < shape.n; ++n) scales[n] = 0.05f + 0.001f * static_cast<float>(n % 50);
  weight.absmax.from_host(scales.data());
  return weight;
}

std::vector<float> Int8::row(const Shape& shape, u64 n) const {
  const auto row_codes = codes.to_host<std::int8_t>(n * shape.k, shape.k);
  const float scale = absmax.to_host<float>(n, 1)[0] / 127;
  std::vector<float> row(shape.k);
  for (u64 k = 0; k < shape.k; ++k) row[k] = static_cast<float>(row_codes[k]) * scale;
  return row;
}

Int8Matmul::Int8Matmul(const Shape& shape, u64 m, const Int8& weight)
    : shape_(shape),
      m_(m),
      counters_(Buffer::of(std::vector<std::uint32_t>(NIBBLE_COUNTERS))),
      workspace_(0, Buffer::Fill::nothing) {
  // The size does not depend on what x and y point to.
  call(weight, weight.codes.as<void>(), weight.codes.as<void>(),
       [&](const nibble_matmul& matmul, const nibble_int8_product& product) {
         workspace_ = Buffer(cuda::workspace_bytes(matmul, product), Buffer::Fill::nothing);
       });
}

void Int8Matmul::run(const Int8& weight, const Buffer& x, const Buffer& y, cudaStream_t stream) const {
  call(weight, x.as<void>(), y.as<void>(), [&](const nibble_matmul& matmul, const nibble_int8_product& product) {
    cuda::run(matmul, product, workspace_.as<void>(), workspace_.bytes(), stream);
  });
}

template <class Body> void Int8Matmul::call(const Int8& weight, void* x, void* y, Body&& body) const {
  const nibble_int8 w = weight.argument(shape_);
  const nibble_matrix x_matrix{sizeof(nibble_matrix), NIBBLE_BF16, m_, shape_.k, shape_.k, x},
      y_matrix{sizeof(nibble_matrix), NIBBLE_BF16, m_, shape_.n, shape_.n, y};
  nibble_matmul matmul{};
  matmul.struct_bytes = sizeof matmul;
  matmul.x = &x_matrix;
  matmul.weights_are_ready = 1;
  matmul.counters = counters_.as<std::uint32_t>();
  body(matmul, nibble_int8_product{sizeof(nibble_int8_product), &w, nullptr, &y_matrix});
}

}  // namespace nibble::bench
