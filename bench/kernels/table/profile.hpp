// One launch of an operation, for tools that look into it: Nsight Compute, compute-sanitizer.
#pragma once
#include <string>

#include "bench/kernels/operands/four_bit.hpp"

namespace nibble::bench {

struct ProfileCase {
  enum class Operation { matmul, int8_matmul, shared_matmul, expert_matmul, dequantize, quantize } operation;
  Shape shape;
  u64 m;  // rows of x, or tokens of experts; 0 unless it is a product
};

/// Of `OPERATION,NxK,M` for a product and `OPERATION,NxK` for `dequantize` and `quantize`. The products are `matmul`,
/// `int8-matmul`, `shared-matmul` (of shared_shapes()) and `expert-matmul` (`experts` weights of that shape, M tokens).
/// Throws std::runtime_error for any other text.
ProfileCase profile_case(const std::string& text);

/// Calls the operation once, on random data that no cache holds, between cudaProfilerStart() and cudaProfilerStop().
/// Its outputs and workspace are memory that nothing was written to before.
void profile(const ProfileCase& what);

}  // namespace nibble::bench
