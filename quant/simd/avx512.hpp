#pragma once

// What functions for processors with AVX512_BF16, AVX512_VNNI, or both AVX512_VNNI and AVX512_VBMI need. Highway 1.0.3
// has no target with the first, and one with the others would be compiled for everything, so they name these
// instructions themselves. All processors with AVX512_BF16 but Cooper Lake have AVX512_VBMI, too.

namespace nibble {

/// Whether the CPU target is AVX-512.
[[nodiscard]] bool target_has_avx512();

}  // namespace nibble

#ifdef __x86_64__

#include <immintrin.h>

#define NIBBLE_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512bf16")))
#define NIBBLE_AVX512_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define NIBBLE_AVX512_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")))

// g++ 12 warns of its own immintrin.h.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace nibble {

__attribute__((always_inline)) NIBBLE_AVX512_BF16 inline __m512bh bf16_pairs(__m512i words) {
  return reinterpret_cast<__m512bh>(words);
}

/// Word 4 i + j of 32 bits becomes word 4 j + i.
__attribute__((always_inline)) NIBBLE_AVX512_VNNI inline __m512i transposed_words(__m512i words) {
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), words);
}

/// Whether the processor has these instructions and the CPU target may use them.
inline bool has_avx512_bf16() {
  static const bool supported = __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
  return supported && target_has_avx512();
}
inline bool has_avx512_vnni() {
  static const bool supported = __builtin_cpu_supports("avx512vnni") != 0;
  return supported && target_has_avx512();
}
inline bool has_avx512_vbmi() {
  static const bool supported = __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
  return supported && target_has_avx512();
}

}  // namespace nibble

#endif
