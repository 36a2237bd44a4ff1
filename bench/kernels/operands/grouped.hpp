// Products of several 4-bit weights in one launch: those that share x (q, k and v), and those of experts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/kernels/operands/four_bit.hpp"

namespace nibble::bench {

/// Which rows of x each expert takes: expert_ends(), also on the device.
struct Routing {
  u64 m;  // tokens * experts_of_a_token
  std::vector<std::uint32_t> host_ends;
  Buffer ends;

  Routing(u64 tokens, u64 seed);
};

/// y[i][m][n] = x[m][k] * transposed(weight[i][n][k]), in bf16; or, with experts, a weight [experts * n, k], of which a
/// row of x is multiplied by one expert's.
class GroupedMatmul {
 public:
  /// For all weights like these. `of` has the shapes of the weights, or that of one expert. x, y and the codebook have
  /// to outlive it.
  GroupedMatmul(std::vector<Shape> of, u64 m, const std::vector<FourBit>& weights, const Routing* routing,
                const Buffer& codebook, const Buffer& x, const std::vector<Buffer>& y);
  void run(const std::vector<FourBit>& weights, const Routing* routing, cudaStream_t stream) const;

 private:
  template <class Body> void call(const std::vector<FourBit>& weights, const Routing* routing, Body&& body) const;
  std::vector<Shape> shapes_;
  u64 m_;
  const Buffer &codebook_, &x_;
  const std::vector<Buffer>& y_;
  Buffer counters_, workspace_;
};

/// A weight of `experts` such shapes.
inline Shape shape_of_experts(const Shape& expert) { return {experts * expert.n, expert.k}; }

/// As check_product(), for the weight of experts.
void check_expert_product(const Shape& expert, const Routing& routing, const std::vector<u16>& x, const Buffer& y,
                          const FourBit& weight, const std::string& what);

}  // namespace nibble::bench
