#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "nibble/tensor.hpp"

/// Products with quantized weights on the CPU, for weights in the form in which bitsandbytes stores them. The weights
/// are decoded in registers or in small tiles, and never written to memory as a whole.
///
///   linear      y [m, n] = x [m, k] * transposed(W [n, k]) + bias [n]
///   linear_dx   dx [m, k] = dy [m, n] * W [n, k]
///
/// Sums are in fp32, and results are rounded once. What is multiplied is x and the weights
///
///   codebook[code] * absmax   or   (code * absmax) * (1 / 127)
///
/// in fp32. If x is in bf16 and the processor takes less time to multiply bf16 (AVX512_BF16 of AMD), the weights are
/// rounded to bf16, as those of a layer in bf16 are, except int8 weights times up to 4 rows, and for dx of few rows.
/// More than a few rows are multiplied in AMX tiles of bf16 where a processor has them: 4-bit weights rounded to bf16
/// if x is in bf16, and otherwise the sum of two numbers in bf16, whose products are off by 2^-15 of themselves at
/// most; int8 codes exactly, with absmax / 127 as a factor of the sums or, for dx, of dy, which in bf16 and with more
/// than 32 rows and 65536 weights is then rounded to bf16. x in fp16 or fp32 is the sum of numbers in bf16. Subnormal
/// numbers count as 0 there if x is in bf16. Other x86 processors multiply few rows in bf16 in integers, without
/// AVX-512 or with AVX512_VNNI: values of the codebook are off by 2^-14.5 of the largest at most, and numbers of x by
/// 2^-9 of the geometric mean of 64. All x86 processors without AVX-512, and those with AVX512_VNNI and AVX512_VBMI,
/// multiply dx of one row in bf16 in integers, if blocks have at least 64 weights: products of dy and absmax are off by
/// 2^-9 of the geometric mean of eight at most. NaN and infinities spread as the formula says.
///
/// The bytes of a result do not depend on the number of threads or on which thread computes what. They do depend on the
/// instructions of the processor, on the CPU target and on m.
namespace nibble::matmul {

enum class Codebook : std::uint8_t { nf4, fp4 };

/// A weight [n, k] in 4-bit codes. Blocks run on from row to row. absmax is either given in fp32, and what is nested is
/// empty, or as codes, and `absmax` is empty:
///
///   absmax = nested_codebook[absmax_codes] * nested_absmax + nested_offset
struct FourBitWeight {
  std::size_t n = 0, k = 0;
  Codebook codebook = Codebook::nf4;
  std::size_t blocksize = 64;                  ///< 32, 64, ..., 4096
  std::span<const std::uint8_t> packed;        ///< ceil(n k / 2) bytes, the first of two codes in the high nibble
  std::span<const float> absmax;               ///< ceil(n k / blocksize) values, in weight units
  std::span<const std::uint8_t> absmax_codes;  ///< as many codes
  std::span<const float> nested_absmax;        ///< one for 256 codes
  std::span<const float> nested_codebook;      ///< 256 values
  float nested_offset = 0;
};

/// A weight [n, k] in 8-bit codes, with one absmax per row.
struct Int8Weight {
  std::size_t n = 0, k = 0;
  std::span<const std::int8_t> codes;  ///< n k
  std::span<const float> absmax;       ///< n values in weight units, which bitsandbytes calls SCB
};

/// Calls work(first, end) for ranges that together are [0, tasks), on any threads, and returns when all have returned.
/// `work` throws std::bad_alloc at most. Each call of it allocates up to 4 MiB. A product calls the executor several
/// times, one after the other.
using Executor = std::function<void(std::size_t tasks, const std::function<void(std::size_t, std::size_t)>& work)>;

/// On the threads of oneTBB, as many as the caller's arena has.
void on_all_threads(std::size_t tasks, const std::function<void(std::size_t, std::size_t)>& work);

/// y = x * transposed(weight) + bias. x, bias and y are row-major in `dtype` (F32, BF16 or F16) and need no alignment;
/// m follows from the size of x. An empty bias counts as zeros.
///
/// Thread-safe. Throws Error(usage) if a size disagrees or there is no such dtype or blocksize.
///
/// For more than a few rows, x is copied, unless bf16 is read where it is: at least 512 rows at a time, which take up
/// to 3 KiB for each column of x, and up to 32768 rows if the weight is narrow, so that there are 64 tasks.
void linear(const FourBitWeight& weight, DType dtype, std::span<const std::byte> x, std::span<const std::byte> bias,
            std::span<std::byte> y, const Executor& executor = on_all_threads);
void linear(const Int8Weight& weight, DType dtype, std::span<const std::byte> x, std::span<const std::byte> bias,
            std::span<std::byte> y, const Executor& executor = on_all_threads);

/// dx = dy * weight. Otherwise as linear(); m follows from the size of dy.
void linear_dx(const FourBitWeight& weight, DType dtype, std::span<const std::byte> dy, std::span<std::byte> dx,
               const Executor& executor = on_all_threads);
void linear_dx(const Int8Weight& weight, DType dtype, std::span<const std::byte> dy, std::span<std::byte> dx,
               const Executor& executor = on_all_threads);

}  // namespace nibble::matmul
