// The sums for processors with AVX512_VNNI, where one instruction multiplies pairs and adds the products to a sum: 10
// in place of 12 instructions for 32 weights.
#include <algorithm>

#include "quant/quantizers/search/block_group.hpp"
#include "quant/simd/avx512.hpp"

namespace nibble::block_group {

#ifdef NIBBLE_AVX512_VNNI

namespace {

constexpr std::size_t width = max_lanes;

NIBBLE_AVX512_VNNI void add(OfLanes& to, __m512i sums) {
  _mm512_store_ps(to.data(), _mm512_add_ps(_mm512_load_ps(to.data()), _mm512_cvtepi32_ps(sums)));
}

// As ValuesByBucket of block_group.cpp finds the values.
template <std::size_t count, bool weighs>
NIBBLE_AVX512_VNNI void add_sums_of(const SearchValues& values, const LaidOut& group, std::size_t n,
                                    const Inverses* __restrict inverse, Sums* __restrict sums) {
  constexpr int end = SearchValues::end;
  alignas(16) static constexpr std::uint8_t odd[16] = {1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15};
  const __m512i upper_bytes = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(odd)));
  const __m512i bucket = _mm512_load_si512(values.bucket.data()), value = _mm512_load_si512(values.value.data());
  const __m512i greatest = _mm512_set1_epi16(end - 1), least = _mm512_set1_epi16(-end);
  __m512i factor[count];
  for (std::size_t s = 0; s < count; ++s) factor[s] = _mm512_load_si512(inverse[s].data());
  for (std::size_t begin = 0; begin < n; begin += exact) {
    __m512i product[count], square[count];
    for (std::size_t s = 0; s < count; ++s) product[s] = square[s] = _mm512_setzero_si512();
    for (std::size_t i = begin; i < std::min(n, begin + exact); i += 2) {
      const __m512i w = _mm512_load_si512(group.weights + i * width), w8 = _mm512_slli_epi16(w, 3);
      const __m512i counted = weighs ? _mm512_load_si512(group.weighted + i * width) : w;
      for (std::size_t s = 0; s < count; ++s) {
        const __m512i position = _mm512_mulhrs_epi16(w8, factor[s]);
        const __m512i y = _mm512_max_epi16(_mm512_min_epi16(position, greatest), least);
        const __m512i turn = _mm512_permutexvar_epi16(_mm512_shuffle_epi8(y, upper_bytes), bucket);
        const __m512i sum = _mm512_add_epi16(y, turn);
        __m512i c = _mm512_permutexvar_epi16(_mm512_shuffle_epi8(sum, upper_bytes), value);
        if constexpr (weighs) c = _mm512_mulhrs_epi16(c, _mm512_load_si512(group.roots + i * width));
        product[s] = _mm512_dpwssd_epi32(product[s], counted, c);
        square[s] = _mm512_dpwssd_epi32(square[s], c, c);
      }
    }
    for (std::size_t s = 0; s < count; ++s) {
      add(sums[s].product, product[s]);
      add(sums[s].square, square[s]);
    }
  }
}

template <bool weighs>
void add_all(const SearchValues& values, const LaidOut& group, std::size_t n, const Inverses* inverse, Sums* sums,
             std::size_t count) {
  constexpr std::size_t at_a_time = 4;  // their sums and factors fit the registers
  std::size_t s = 0;
  for (; s + at_a_time <= count; s += at_a_time)
    add_sums_of<at_a_time, weighs>(values, group, n, inverse + s, sums + s);
  for (; s + 2 <= count; s += 2) add_sums_of<2, weighs>(values, group, n, inverse + s, sums + s);
  if (s < count) add_sums_of<1, weighs>(values, group, n, inverse + s, sums + s);
}

void add_to(const FourBitTables&, const SearchValues& values, const LaidOut& group, std::size_t n,
            const Inverses* inverse, Sums* sums, std::size_t count) {
  const auto add = group.roots == nullptr ? add_all<false> : add_all<true>;
  add(values, group, n, inverse, sums, count);
}

}  // namespace

AddSums add_sums_vnni() { return has_avx512_vnni() ? add_to : nullptr; }

#else

AddSums add_sums_vnni() { return nullptr; }

#endif

}  // namespace nibble::block_group
