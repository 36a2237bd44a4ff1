// Sums of rows of codes times numbers of x in bf16, in integers of 16 bits. One instruction multiplies the values of
// two rows and 16 columns by their Int16Factors, and adds both products to their sums. The file that includes this in
// its namespace says for which processors, NIBBLE_CODES_TARGET, and how they decode, in a class PairValues:
//
//   explicit PairValues(const Int16Codebook& codebook)
//   static TwoVectors interleaved(__m512i first, __m512i second)
//       of the transposed_words() of 128 codes of two rows: the codes of both for columns 0 to 63, and for the others
//   FourVectors of(__m512i codes) const
//       the values of such 64 columns; each word of 32 bits has those of the first and of the second row
//   static FourVectors in_order(const FourVectors& sums)
//       of sums in the order of the values: those of the even ones of columns 0 to 31 and 32 to 63, then the odd ones

struct TwoVectors {
  __m512i v[2];
};
struct FourVectors {
  __m512i v[4];
};

inline constexpr std::size_t lanes = 16, columns = 128;

// The sums of a row are in the order of RowDecoder::arrange_four_bit(): of 32 columns, the even ones come first.
template <class PairValues>
NIBBLE_CODES_TARGET void add(const CodeRows& weights, const Int16Factors& factors, float* __restrict sums) {
  const PairValues values(weights.tables.int16_codebook);
  const int log2_blocksize = std::countr_zero(weights.blocksize);
  for (std::size_t column = 0; column < weights.n; column += columns, sums += columns) {
    const std::size_t blocks[2] = {column >> log2_blocksize, (column + columns / 2) >> log2_blocksize};
    FourVectors of_half[2];
    for (FourVectors& vectors : of_half)
      for (__m512i& v : vectors.v) v = _mm512_setzero_si512();
    const std::uint8_t* from = weights.packed + column / 2;
    for (const auto& of_pair : factors.of_pair) {
      const auto next_row = [&]() NIBBLE_CODES_TARGET {
        prefetch_to_l2(from + weights.ahead);
        const __m512i codes = transposed_words(_mm512_loadu_si512(from));
        from += weights.packed_stride;
        return codes;
      };
      const __m512i first = next_row(), second = next_row();
      const TwoVectors codes = PairValues::interleaved(first, second);
      for (std::size_t half = 0; half < 2; ++half) {
        const __m512i x = _mm512_set1_epi32(static_cast<int>(of_pair[blocks[half]]));
        const FourVectors w = values.of(codes.v[half]);
        for (std::size_t i = 0; i < 4; ++i) of_half[half].v[i] = _mm512_dpwssd_epi32(of_half[half].v[i], w.v[i], x);
      }
    }
    for (std::size_t half = 0; half < 2; ++half) {
      const __m512 unit = _mm512_set1_ps(factors.unit[blocks[half]]);
      const FourVectors ordered = PairValues::in_order(of_half[half]);
      for (std::size_t i = 0; i < 4; ++i) {
        float* const to = sums + columns / 2 * half + 2 * lanes * (i % 2) + lanes * (i / 2);
        _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(ordered.v[i]), unit, _mm512_load_ps(to)));
      }
    }
  }
}

template <class PairValues> bool add_integers(const CodeRows& weights, const float* x, float* sums) {
  assert(weights.n <= max_columns_of_added_integers && weights.n % weights.blocksize == 0);
  if (weights.rows != Int16Factors::rows || weights.blocksize < Int16Factors::min_blocksize || weights.n % columns != 0)
    return false;
  Int16Factors factors;
  if (!make_int16_factors(weights, x, factors)) return false;
  add<PairValues>(weights, factors, sums);
  return true;
}
