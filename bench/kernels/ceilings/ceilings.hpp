// What the kernels are measured against: the parts of bench_ceilings, each a function that prints lines.
#pragma once
#include "bench/kernels/gpu/peers.hpp"
#include "bench/kernels/gpu/report.hpp"
#include "bench/kernels/operands/four_bit.hpp"

namespace nibble::bench {

/// Long products need few calls for a steady time.
constexpr Effort proposal_effort(u64 m) { return m <= 256 ? Effort{0.05, 5, 10} : Effort{0.05, 3, 2}; }
constexpr Effort final_effort(u64 m) { return m <= 256 ? Effort{0.15, 15, 20} : Effort{0.2, 5, 2}; }

/// cuBLASLt alone: all shapes, all m. What it does not support is a line with `error`, and no failure.
void measure_cublas(const Cublas& cublas, Cublas::Type type, bool backward, Report& report);

/// nibble's dequantization to bf16 and then cuBLASLt's product, beside that product with a bf16 weight alone.
void measure_scratch(const Cublas& cublas, Report& report);

/// nibble's product of many rows by its two ways, the fused kernel and cuBLASLt, beside cuBLASLt with a bf16 weight.
void measure_library(const Cublas& cublas, Report& report);

/// The errors of nibble's product and of cuBLASLt's with the weights rounded to bf16, both against fp64 sums of the
/// exact weights, for 256 rows of each weight.
void measure_errors(const Cublas& cublas, Report& report);

}  // namespace nibble::bench
