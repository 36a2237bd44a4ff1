// Products of few rows in bf16 with codes, in integers of 16 bits. The file that includes this in its namespace says
// for which processors, NIBBLE_CODES_TARGET, and how they decode, in a class Values:
//
//   explicit Values(const Int16Codebook& codebook)
//   TwoVectors of(__m512i codes, std::size_t half)  two of the four vectors of values of 128 codes
//   static constexpr std::size_t code(std::size_t vector, std::size_t word)
//       the index of the code whose value is in that word of that vector, for words 0 to 15 and codes 0 to 63
//
// Words 16 to 31 have the values of codes 64 to 127, in the same order. So a lane gets the sum of eight products that
// are all in one block.

inline constexpr std::size_t lanes = 16, block = Int16Numbers::count, pair = 2 * block;
// Words of a pair of blocks of x: its integers, and eight times the scale of each block.
inline constexpr std::size_t scales_at = pair / 2, upper_scale_at = scales_at + lanes / 2,
                             pair_words = scales_at + lanes;
inline constexpr std::size_t rows_at_a_time = 4, max_in_registers = 4, max_m = 16;
inline constexpr __mmask16 lower_lanes = 0x00FF, upper_lanes = 0xFF00;  // of the blocks of a pair

enum class Part : std::uint8_t { first, second };

template <Part part, std::size_t rows, std::size_t m>
NIBBLE_CODES_TARGET void multiply_rows(const CodeRows& weights, std::size_t first_row,
                                       const std::uint32_t* __restrict x, std::size_t x_stride, float* __restrict sums,
                                       std::size_t sums_stride) {
  // The products of so many rows are begun before any are finished: one row alone waits for its last product.
  constexpr std::size_t begun = std::max<std::size_t>(1, std::min(rows, 4 / m));
  const Int16Codebook& codebook = weights.tables.int16_codebook;
  const Values values(codebook);
  const std::size_t packed_stride = weights.packed_stride, absmax_stride = weights.absmax_stride;
  const std::uint8_t* __restrict packed = weights.packed + first_row * packed_stride;
  const float* const __restrict absmax = weights.absmax + first_row * absmax_stride;
  const int log2_blocksize = std::countr_zero(weights.blocksize);
  __m512 sum[rows][m];
  for (auto& row : sum)
    for (auto& v : row) v = _mm512_setzero_ps();
  for (std::size_t at = 0; at < weights.n; at += pair, packed += pair / 2, x += pair_words) {
    if constexpr (part == Part::second) {
      std::uint32_t scales = 0;
      for (std::size_t j = 0; j < m; ++j) scales |= x[j * x_stride + scales_at] | x[j * x_stride + upper_scale_at];
      if (scales == 0) continue;
    }
    const float* const absmax_of_lower = absmax + (at >> log2_blocksize);
    const float* const absmax_of_upper = absmax + ((at + block) >> log2_blocksize);
    for (std::size_t first = 0; first < rows; first += begun) {
      __m512i codes[begun], products[begun][m];
      for (std::size_t r = 0; r < begun; ++r) {
        const std::uint8_t* const from = packed + (first + r) * packed_stride;
        if (part == Part::first) prefetch_to_l2(from + weights.ahead);
        codes[r] = _mm512_loadu_si512(from);
        const TwoVectors w = values.of(codes[r], 0);
        for (std::size_t j = 0; j < m; ++j) {
          const std::uint32_t* const numbers = x + j * x_stride;
          products[r][j] = _mm512_madd_epi16(w.a, _mm512_load_si512(numbers));
          products[r][j] = _mm512_dpwssd_epi32(products[r][j], w.b, _mm512_load_si512(numbers + lanes));
        }
      }
      for (std::size_t r = 0; r < begun; ++r) {
        const TwoVectors w = values.of(codes[r], 1);
        for (std::size_t j = 0; j < m; ++j) {
          const std::uint32_t* const numbers = x + j * x_stride;
          products[r][j] = _mm512_dpwssd_epi32(products[r][j], w.a, _mm512_load_si512(numbers + 2 * lanes));
          products[r][j] = _mm512_dpwssd_epi32(products[r][j], w.b, _mm512_load_si512(numbers + 3 * lanes));
        }
      }
      for (std::size_t r = 0; r < begun; ++r) {
        const __m512 absmax0 = _mm512_set1_ps(absmax_of_lower[(first + r) * absmax_stride]);
        const __m512 absmax1 = _mm512_set1_ps(absmax_of_upper[(first + r) * absmax_stride]);
        for (std::size_t j = 0; j < m; ++j) {
          const __m512 scales = _mm512_load_ps(x + j * x_stride + scales_at);
          const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(products[r][j]), scales);
          __m512& to = sum[first + r][j];
          to = _mm512_mask3_fmadd_ps(scaled, absmax0, to, lower_lanes);
          to = _mm512_mask3_fmadd_ps(scaled, absmax1, to, upper_lanes);
        }
      }
    }
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < m; ++j) sums[r * sums_stride + j] += _mm512_reduce_add_ps(sum[r][j]) * codebook.unit;
}

template <Part part>
void multiply_part(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums) {
  in_parts<max_in_registers>(m, [&](auto count, std::size_t i) {
    in_groups<rows_at_a_time>(weights.rows, [&](auto rows, std::size_t row) {
      multiply_rows<part, rows(), count()>(weights, row, x + i * x_stride, x_stride, sums + row * m + i, m);
    });
  });
}

inline void multiply(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m,
                     float* sums) {
  assert(weights.n % pair == 0);
  multiply_part<Part::first>(weights, x, x_stride, m, sums);
  const std::uint32_t* const second = x + m * x_stride;
  std::uint32_t scales = 0;
  for (std::size_t j = 0; j < m; ++j)
    for (const std::uint32_t *words = second + j * x_stride, *const end = words + weights.n / pair * pair_words;
         words != end; words += pair_words)
      scales |= words[scales_at] | words[upper_scale_at];
  if (scales != 0) multiply_part<Part::second>(weights, second, x_stride, m, sums);
}

// Integers of a block, in the order of the lookups, and their scale. `half` is 1 for the second block of a pair.
inline void store(const std::array<std::int16_t, block>& numbers, float scale, std::size_t half, std::uint32_t* words) {
  for (std::size_t vector = 0; vector < 4; ++vector) {
    auto* const to = reinterpret_cast<std::int16_t*>(words + vector * lanes + half * lanes / 2);
    for (std::size_t word = 0; word < lanes; ++word) to[word] = numbers[Values::code(vector, word)];
  }
  std::fill_n(words + scales_at + half * lanes / 2, lanes / 2, std::bit_cast<std::uint32_t>(scale));
}

inline void arrange(const void* x, std::size_t n, std::uint32_t* words) {
  assert(n % pair == 0);
  const auto* from = static_cast<const std::byte*>(x);
  std::uint32_t* second = words + n / pair * pair_words;
  for (std::size_t i = 0; i < n; i += pair, words += pair_words, second += pair_words)
    for (std::size_t half = 0; half < 2; ++half, from += 2 * block) {
      const Int16Numbers numbers = to_int16(from);
      store(numbers.first, numbers.first_scale, half, words);
      store(numbers.second, numbers.second_scale, half, second);
    }
}

inline CodeKernel code_kernel() { return {{pair_words / 2, DType::bf16, arrange, 2}, max_m, block, pair, multiply}; }
