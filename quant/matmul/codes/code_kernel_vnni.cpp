// Products of few rows in bf16 with codes, for processors with AVX512_VNNI.
#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/codes/int16_numbers.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/simd/avx512.hpp"
#include "quant/simd/prefetch.hpp"

#ifdef NIBBLE_AVX512_VNNI

namespace nibble::matmul::codes_in_vnni {
namespace {

#define NIBBLE_CODES_TARGET NIBBLE_AVX512_VNNI

struct TwoVectors {
  __m512i a, b;
};

// One instruction looks up 16-bit values in a table of 32 and uses the lower five bits of each index. The table holds
// the 16 values twice, so the fifth bit does not matter. 16 bits hold four codes: shifted right by 0, 4, 8 and 12 bits,
// they are the index of each. So 128 codes take three shifts and four lookups.
class Values {
 public:
  NIBBLE_CODES_TARGET explicit Values(const Int16Codebook& codebook)
      : values_(_mm512_load_si512(codebook.repeated.data())) {}

  NIBBLE_CODES_TARGET TwoVectors of(__m512i codes, std::size_t half) const {
    const __m512i first = half == 0 ? codes : _mm512_srli_epi16(codes, 8);
    const __m512i second = _mm512_srli_epi16(codes, half == 0 ? 4 : 12);
    return {_mm512_permutexvar_epi16(first, values_), _mm512_permutexvar_epi16(second, values_)};
  }

  static constexpr std::size_t code(std::size_t vector, std::size_t word) {
    constexpr std::array<std::size_t, 4> of_four{1, 0, 3, 2};  // from the lowest bits on
    return 4 * word + of_four[vector];
  }

 private:
  __m512i values_;
};

#include "quant/matmul/codes/code_kernel_vnni-inl.hpp"

#undef NIBBLE_CODES_TARGET

}  // namespace
}  // namespace nibble::matmul::codes_in_vnni

namespace nibble::matmul {

std::optional<CodeKernel> code_kernel_vnni() {
  return has_avx512_vnni() ? std::optional(codes_in_vnni::code_kernel()) : std::nullopt;
}

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

std::optional<CodeKernel> code_kernel_vnni() { return std::nullopt; }

}  // namespace nibble::matmul

#endif
