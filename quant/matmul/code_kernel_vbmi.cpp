// Products of few rows in bf16 with codes, for processors with AVX512_VNNI and AVX512_VBMI. Those of Intel take two
// steps to look up words, and one to look up bytes.
#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/code_kernel.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/matmul/int16_numbers.hpp"
#include "quant/simd/avx512.hpp"

#ifdef NIBBLE_AVX512_VBMI

namespace nibble::matmul::codes_in_vbmi {
namespace {

#define NIBBLE_CODES_TARGET NIBBLE_AVX512_VBMI

struct TwoVectors {
  __m512i a, b;
};

// The two bytes of a value are looked up apart, by the lower six bits of each index. The tables hold the 16 bytes four
// times, so the upper two of these bits do not matter. So 128 codes take a shift, four lookups, and four instructions
// that put bytes together.
class Values {
 public:
  NIBBLE_CODES_TARGET explicit Values(const Int16Codebook& codebook)
      : lower_(repeated(codebook.lower)), upper_(repeated(codebook.upper)) {}

  NIBBLE_CODES_TARGET TwoVectors of(__m512i codes, std::size_t half) const {
    const __m512i index = half == 0 ? codes : _mm512_srli_epi16(codes, 4);
    const __m512i lower = _mm512_permutexvar_epi8(index, lower_), upper = _mm512_permutexvar_epi8(index, upper_);
    return {_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)};
  }

  // The first code of a byte is in its upper bits.
  static constexpr std::size_t code(std::size_t vector, std::size_t word) {
    const std::size_t byte = word / 8 * 16 + vector % 2 * 8 + word % 8;
    return 2 * byte + (vector < 2 ? 1 : 0);
  }

 private:
  NIBBLE_CODES_TARGET static __m512i repeated(const std::array<std::uint8_t, 16>& bytes) {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes.data())));
  }

  __m512i lower_, upper_;
};

#include "quant/matmul/code_kernel_vnni-inl.hpp"

#undef NIBBLE_CODES_TARGET

}  // namespace
}  // namespace nibble::matmul::codes_in_vbmi

namespace nibble::matmul {

std::optional<CodeKernel> code_kernel_vbmi() {
  return has_avx512_vbmi() ? std::optional(codes_in_vbmi::code_kernel()) : std::nullopt;
}

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

std::optional<CodeKernel> code_kernel_vbmi() { return std::nullopt; }

}  // namespace nibble::matmul

#endif
