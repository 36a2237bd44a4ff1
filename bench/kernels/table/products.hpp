// The products of the speed table: with 4-bit and with int8 weights, beside cuBLASLt's with a bf16 weight.
#pragma once
#include <vector>

#include "bench/kernels/table/session.hpp"

namespace nibble::bench {

/// Prints the lines of a shape, for all decode_m, and with usual blocks and 4-bit weights for table_many_m. The
/// originals are copies of `weights`. An int8 weight has no blocks: with other blocks than usual it would be measured
/// twice, and is left out.
void measure_products(Session& session, const Shape& shape, const std::vector<u16>& weights,
                      const std::vector<Buffer>& originals, const std::vector<FourBit>& four_bit);

}  // namespace nibble::bench
