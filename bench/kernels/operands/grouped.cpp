#include "bench/kernels/operands/grouped.hpp"

#include <utility>

#include "nibble/kernels.hpp"

namespace nibble::bench {

Routing::Routing(u64 tokens, u64 seed)
    : m(tokens * experts_of_a_token), host_ends(expert_ends(tokens, seed)), ends(Buffer::of(host_ends)) {}

GroupedMatmul::GroupedMatmul(std::vector<Shape> of, u64 m, const std::vector<FourBit>& weights, const Routing* routing,
                             const Buffer& codebook, const Buffer& x, const std::vector<Buffer>& y)
    : shapes_(std::move(of)),
      m_(m),
      codebook_(codebook),
      x_(x),
      y_(y),
      counters_(Buffer::of(std::vector<std::uint32_t>(NIBBLE_COUNTERS))),
      workspace_(0, Buffer::Fill::nothing) {
  call(weights, routing,
       [&](const nibble_matmul& matmul) { workspace_ = Buffer(cuda::workspace_bytes(matmul), Buffer::Fill::nothing); });
}

void GroupedMatmul::run(const std::vector<FourBit>& weights, const Routing* routing, cudaStream_t stream) const {
  call(weights, routing,
       [&](const nibble_matmul& matmul) { cuda::run(matmul, workspace_.as<void>(), workspace_.bytes(), stream); });
}

template <class Body>
void GroupedMatmul::call(const std::vector<FourBit>& weights, const Routing* routing, Body&& body) const {
  std::vector<nibble_four_bit> arguments;
  std::vector<nibble_matrix> outs;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const Shape& shape = shapes_[i];
    arguments.push_back(weights[i].argument(routing == nullptr ? shape : shape_of_experts(shape), codebook_));
    outs.push_back({sizeof(nibble_matrix), NIBBLE_BF16, m_, shape.n, shape.n, y_[i].as<void>()});
  }
  std::vector<nibble_four_bit_product> products;
  for (std::size_t i = 0; i < shapes_.size(); ++i)
    products.push_back({sizeof(nibble_four_bit_product), &arguments[i], nullptr, &outs[i]});
  const nibble_matrix x{sizeof(nibble_matrix), NIBBLE_BF16, m_, shapes_[0].k, shapes_[0].k, x_.as<void>()};
  nibble_matmul matmul{};
  matmul.struct_bytes = sizeof matmul;
  matmul.x = &x;
  matmul.products = products.data();
  matmul.product_count = static_cast<std::uint32_t>(products.size());
  matmul.weights_are_ready = 1;
  matmul.counters = counters_.as<std::uint32_t>();
  if (routing != nullptr) {
    matmul.experts = static_cast<std::uint32_t>(experts);
    matmul.ends = routing->ends.as<std::uint32_t>();
  }
  body(matmul);
}

void check_expert_product(const Shape& expert, const Routing& routing, const std::vector<u16>& x, const Buffer& y,
                          const FourBit& weight, const std::string& what) {
  const auto result = y.to_host<u16>(0, routing.m * expert.n);
  ProductErrors errors;
  for (u64 i = 0; i < experts; ++i) {
    const u64 begin = i == 0 ? 0 : routing.host_ends[i - 1], end = routing.host_ends[i];
    for (const u64 n : checked_rows(expert)) {
      if (begin == end) break;
      const std::vector<float> weights = weight.row(shape_of_experts(expert), i * expert.n + n);
      for (u64 m = begin; m < end; ++m) errors.add(weights, &x[m * expert.k], result[m * expert.n + n]);
    }
  }
  require(errors.are_small(), what);
}

}  // namespace nibble::bench
