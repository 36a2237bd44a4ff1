#include "quant/simd/extensions.hpp"

#include "quant/simd/amx.hpp"
#include "quant/simd/avx512.hpp"

namespace nibble {

std::vector<std::string_view> cpu_extensions() {
  std::vector<std::string_view> extensions;
#ifdef __x86_64__
  if (has_avx512_vnni()) extensions.emplace_back("AVX512_VNNI");
  if (has_avx512_vbmi()) extensions.emplace_back("AVX512_VBMI");
  if (has_avx512_bf16()) extensions.emplace_back("AVX512_BF16");
#endif
  if (amx::has_bf16()) extensions.emplace_back("AMX_BF16");
  return extensions;
}

}  // namespace nibble
