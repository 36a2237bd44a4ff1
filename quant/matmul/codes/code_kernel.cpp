// Products of few rows with codes in fp32, compiled once per CPU target.
#include "quant/matmul/codes/code_kernel.hpp"

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/matmul/words/row_kernel.hpp"
#include "quant/simd/prefetch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/codes/code_kernel.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/byte_table16-inl.hpp"
#include "quant/simd/table16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::matmul::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
constexpr std::size_t lanes = hn::MaxLanes(D());
constexpr std::size_t line = 128;      // weights of a cache line
constexpr std::size_t added_rows = 8;  // the loads and stores of a sum take little time then

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

using nibble::HWY_NAMESPACE::Table16;
constexpr std::size_t group = 2 * lanes;
constexpr std::size_t max_rows = 4, max_in_registers = 4;  // their tables and sums fit 32 registers
constexpr std::size_t max_m = 12;                          // decoded again for every four: docs/cpu-matmul.md

// The even weights of a vector of bytes, and the odd ones.
struct EvenOdd {
  hn::Vec<D> even, odd;

  HWY_INLINE EvenOdd(const Table16<D>& values, const std::uint8_t* HWY_RESTRICT packed) {
    const hn::RebindToSigned<D> di;
    const auto byte = hn::PromoteTo(di, hn::LoadU(hn::Rebind<std::uint8_t, D>(), packed));
    even = values[hn::ShiftRight<4>(byte)];
    odd = values.at_lower_bits(byte);
  }
};

template <std::size_t rows, std::size_t m>
HWY_INLINE void multiply_block(const CodeRows& weights, std::size_t first, const float* HWY_RESTRICT x,
                               std::size_t x_stride, float* HWY_RESTRICT sums, std::size_t sums_stride) {
  const D d;
  const Table16<D> codebook(d, weights.tables.codebook.data());
  const std::size_t packed_stride = weights.packed_stride, absmax_stride = weights.absmax_stride;
  const std::uint8_t* HWY_RESTRICT packed = weights.packed + first * packed_stride;
  const float* HWY_RESTRICT absmax = weights.absmax + first * absmax_stride;
  hn::Vec<D> sum[rows][m];
  for (auto& row : sum)
    for (auto& v : row) v = hn::Zero(d);
  for (std::size_t left = weights.n; left > 0; left -= weights.blocksize, ++absmax) {
    HWY_ALIGN float room[rows][16];
    const auto multiply_with = [&](const auto&... values) HWY_ATTR {
      for (std::size_t i = 0; i < weights.blocksize; i += group, packed += lanes, x += group) {
        std::size_t r = 0;
        const auto add = [&](const Table16<D>& value) HWY_ATTR {
          if (i % line == 0) prefetch_to_l2(packed + r * packed_stride + weights.ahead);
          const EvenOdd w(value, packed + r * packed_stride);
          for (std::size_t j = 0; j < m; ++j) {
            sum[r][j] = hn::MulAdd(w.even, hn::Load(d, x + j * x_stride), sum[r][j]);
            sum[r][j] = hn::MulAdd(w.odd, hn::Load(d, x + j * x_stride + lanes), sum[r][j]);
          }
          ++r;
        };
        (add(values), ...);
      }
    };
    const auto values = [&](std::size_t r)
                            HWY_ATTR { return Table16<D>(d, codebook, absmax[r * absmax_stride], room[r]); };
    if constexpr (rows == 4)
      multiply_with(values(0), values(1), values(2), values(3));
    else
      multiply_with(values(0));
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < m; ++j) sums[r * sums_stride + j] += hn::GetLane(hn::SumOfLanes(d, sum[r][j]));
}

void multiply_codes(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums) {
  const auto* const from = reinterpret_cast<const float*>(x);
  in_parts<max_in_registers>(m, [&](auto count, std::size_t i) HWY_ATTR {
    in_groups<max_rows>(weights.rows, [&](auto rows, std::size_t row) HWY_ATTR {
      multiply_block<rows(), count()>(weights, row, from + i * x_stride, x_stride, sums + row * m + i, m);
    });
  });
}

// `groups` of columns have the same absmax.
template <std::size_t groups, std::size_t rows, std::size_t m>
HWY_INLINE void add_block(const CodeRows& weights, std::size_t first, const float* HWY_RESTRICT x, std::size_t x_stride,
                          float* HWY_RESTRICT sums, std::size_t sums_stride) {
  const D d;
  const Table16<D> codebook(d, weights.tables.codebook.data());
  for (std::size_t c = 0; c < weights.n; c += groups * group, sums += groups * group) {
    const std::uint8_t* HWY_RESTRICT packed = weights.packed + first * weights.packed_stride + c / 2;
    const float* HWY_RESTRICT absmax = weights.absmax + first * weights.absmax_stride + c / weights.blocksize;
    hn::Vec<D> sum[m][2 * groups];
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t v = 0; v < 2 * groups; ++v) sum[j][v] = hn::Load(d, sums + j * sums_stride + v * lanes);
    for (std::size_t r = 0; r < rows; ++r, packed += weights.packed_stride, absmax += weights.absmax_stride) {
      HWY_ALIGN float room[16];
      prefetch_to_l2(packed + weights.ahead);
      const Table16<D> values(d, codebook, *absmax, room);
      for (std::size_t g = 0; g < groups; ++g) {
        const EvenOdd w(values, packed + g * lanes);
        for (std::size_t j = 0; j < m; ++j) {
          const auto factor = hn::Set(d, x[j * x_stride + first + r]);
          sum[j][2 * g] = hn::MulAdd(w.even, factor, sum[j][2 * g]);
          sum[j][2 * g + 1] = hn::MulAdd(w.odd, factor, sum[j][2 * g + 1]);
        }
      }
    }
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t v = 0; v < 2 * groups; ++v) hn::Store(sum[j][v], d, sums + j * sums_stride + v * lanes);
  }
}

void add_codes(const CodeRows& weights, const float* x, std::size_t x_stride, std::size_t m, float* sums,
               std::size_t sums_stride) {
  const bool two_groups = weights.n % (2 * group) == 0 && weights.blocksize % (2 * group) == 0;
  with_constant<max_in_registers>(m, [&](auto count) HWY_ATTR {
    in_groups<added_rows>(weights.rows, [&](auto rows, std::size_t row) HWY_ATTR {
      constexpr std::size_t most_groups = rows() == 1 ? 1 : 2;
      two_groups ? add_block<most_groups, rows(), count()>(weights, row, x, x_stride, sums, sums_stride)
                 : add_block<1, rows(), count()>(weights, row, x, x_stride, sums, sums_stride);
    });
  });
}

#else

using nibble::HWY_NAMESPACE::ByteTable16;
constexpr std::size_t vectors = 32 / lanes;  // of the weights that are looked up at a time
constexpr std::size_t max_in_registers = 2, max_m = 2;

// sums[i] += the product of a row of weights and x[i]. Values of the codebook are multiplied, and absmax is a factor of
// the sums of a block. There are four of them for one row of x, because fewer would be waited for.
template <std::size_t m>
HWY_INLINE void multiply_row(const ByteTable16<D>& codebook, const CodeRows& weights, std::size_t row,
                             const float* HWY_RESTRICT x, std::size_t x_stride, float* HWY_RESTRICT sums) {
  const D d;
  const std::uint8_t* HWY_RESTRICT packed = weights.packed + row * weights.packed_stride;
  const float* HWY_RESTRICT absmax = weights.absmax + row * weights.absmax_stride;
  constexpr std::size_t chains = 4 / m;
  hn::Vec<D> sum[m];
  for (auto& v : sum) v = hn::Zero(d);
  for (std::size_t left = weights.n; left > 0; left -= weights.blocksize, ++absmax) {
    hn::Vec<D> of_block[m][chains];
    for (auto& of_x : of_block)
      for (auto& v : of_x) v = hn::Zero(d);
    for (std::size_t i = 0; i < weights.blocksize; i += 32, packed += 16, x += 32) {
      if (i % line == 0) prefetch_to_l2(packed + weights.ahead);
      codebook.look_up_32(packed, [&](std::size_t at, hn::Vec<D> v) HWY_ATTR {
        for (std::size_t j = 0; j < m; ++j) {
          auto& to = of_block[j][at / lanes % chains];
          to = hn::MulAdd(v, hn::Load(d, x + j * x_stride + at), to);
        }
      });
    }
    for (std::size_t j = 0; j < m; ++j) {
      auto all = hn::Add(of_block[j][0], of_block[j][1]);
      if constexpr (chains == 4) all = hn::Add(all, hn::Add(of_block[j][2], of_block[j][3]));
      sum[j] = hn::MulAdd(all, hn::Set(d, *absmax), sum[j]);
    }
  }
  for (std::size_t j = 0; j < m; ++j) sums[j] += hn::GetLane(hn::SumOfLanes(d, sum[j]));
}

void multiply_codes(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums) {
  const auto* const from = reinterpret_cast<const float*>(x);
  const ByteTable16<D> codebook(weights.tables.codebook.data());
  with_constant<max_in_registers>(m, [&](auto count) HWY_ATTR {
    for (std::size_t row = 0; row < weights.rows; ++row)
      multiply_row<count()>(codebook, weights, row, from, x_stride, sums + row * m);
  });
}

template <std::size_t rows, std::size_t m>
HWY_INLINE void add_block(const ByteTable16<D>& codebook, const CodeRows& weights, std::size_t first,
                          const float* HWY_RESTRICT x, std::size_t x_stride, float* HWY_RESTRICT sums,
                          std::size_t sums_stride) {
  const D d;
  for (std::size_t c = 0; c < weights.n; c += 32, sums += 32) {
    const std::uint8_t* HWY_RESTRICT packed = weights.packed + first * weights.packed_stride + c / 2;
    const float* HWY_RESTRICT absmax = weights.absmax + first * weights.absmax_stride + c / weights.blocksize;
    hn::Vec<D> sum[m][vectors];
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t v = 0; v < vectors; ++v) sum[j][v] = hn::Load(d, sums + j * sums_stride + v * lanes);
    for (std::size_t r = 0; r < rows; ++r, packed += weights.packed_stride, absmax += weights.absmax_stride) {
      prefetch_to_l2(packed + weights.ahead);
      const auto scale = hn::Set(d, *absmax);
      codebook.look_up_32(packed, [&](std::size_t at, hn::Vec<D> v) HWY_ATTR {
        const auto w = hn::Mul(v, scale);
        for (std::size_t j = 0; j < m; ++j) {
          auto& to = sum[j][at / lanes];
          to = hn::MulAdd(w, hn::Set(d, x[j * x_stride + first + r]), to);
        }
      });
    }
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t v = 0; v < vectors; ++v) hn::Store(sum[j][v], d, sums + j * sums_stride + v * lanes);
  }
}

void add_codes(const CodeRows& weights, const float* x, std::size_t x_stride, std::size_t m, float* sums,
               std::size_t sums_stride) {
  const ByteTable16<D> codebook(weights.tables.codebook.data());
  with_constant<max_in_registers>(m, [&](auto count) HWY_ATTR {
    in_groups<added_rows>(weights.rows, [&](auto rows, std::size_t row) HWY_ATTR {
      add_block<rows(), count()>(codebook, weights, row, x, x_stride, sums, sums_stride);
    });
  });
}

#endif

std::size_t most_rows() { return max_m; }
std::size_t most_rows_to_add() { return max_in_registers; }

}  // namespace nibble::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::matmul {

HWY_EXPORT(multiply_codes);
HWY_EXPORT(add_codes);
HWY_EXPORT(most_rows);
HWY_EXPORT(most_rows_to_add);

CodeKernel code_kernel_f32() {
  return {{in_fp32.words_of_64, in_fp32.from, row_kernel_f32().decoder.arrange_four_bit},
          HWY_DYNAMIC_DISPATCH(most_rows)(),
          min_blocksize,
          min_blocksize,
          HWY_DYNAMIC_DISPATCH(multiply_codes)};
}

std::size_t max_m_of_add_code_rows() { return HWY_DYNAMIC_DISPATCH(most_rows_to_add)(); }

void add_code_rows(const CodeRows& weights, const float* x, std::size_t x_stride, std::size_t m, float* sums,
                   std::size_t sums_stride) {
  HWY_DYNAMIC_DISPATCH(add_codes)(weights, x, x_stride, m, sums, sums_stride);
}

}  // namespace nibble::matmul
#endif
