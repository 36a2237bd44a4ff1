#pragma once

namespace nibble {

/// The sum, in fp64, of the four lanes that 16 were folded into (quant/simd/lanes-inl.hpp).
inline double sum_of_lanes(const float (&lane)[4]) {
  return (static_cast<double>(lane[0]) + lane[2]) + (static_cast<double>(lane[1]) + lane[3]);
}

}  // namespace nibble
