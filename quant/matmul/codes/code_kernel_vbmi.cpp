// Products of few rows in bf16 with codes, for processors with AVX512_VNNI and AVX512_VBMI.
#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/codes/int16_numbers.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/simd/avx512.hpp"
#include "quant/simd/int16_table16.hpp"
#include "quant/simd/prefetch.hpp"

#ifdef NIBBLE_AVX512_VBMI

namespace nibble::matmul::codes_in_vbmi {
namespace {

#define NIBBLE_CODES_TARGET NIBBLE_AVX512_VBMI

struct TwoVectors {
  __m512i a, b;
};

// 128 codes take a shift, four lookups, and four instructions that put bytes together.
class Values {
 public:
  NIBBLE_CODES_TARGET explicit Values(const Int16Codebook& codebook) : table_(codebook.lower, codebook.upper) {}

  NIBBLE_CODES_TARGET TwoVectors of(__m512i codes, std::size_t half) const {
    const auto [lower, upper] = table_[half == 0 ? codes : _mm512_srli_epi16(codes, 4)];
    return {lower, upper};
  }

  // The first code of a byte is in its upper bits.
  static constexpr std::size_t code(std::size_t vector, std::size_t word) {
    const std::size_t byte = word / 8 * 16 + vector % 2 * 8 + word % 8;
    return 2 * byte + (vector < 2 ? 1 : 0);
  }

 private:
  Int16Table16 table_;
};

#include "quant/matmul/codes/code_kernel_vnni-inl.hpp"

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
