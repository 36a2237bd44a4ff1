#pragma once

// A 4-bit weight in the tensors that bitsandbytes stores, and its decoding on the CPU.

#include <cstdint>
#include <optional>
#include <string_view>

#include "nibble/matmul.hpp"
#include "nibble/tensor.hpp"
#include "python/torch/tensors.hpp"

namespace nibble {
struct FourBitTables;
}

namespace nibble::torch_operators {

/// The arguments of an operator that say what a 4-bit weight is.
struct FourBitParts {
  const Tensor& packed;                          ///< two codes a byte, in any element type
  const Tensor& absmax;                          ///< F32, or U8 if nested
  const std::optional<Tensor>& nested_absmax;    ///< F32, one per 256 absmax
  const std::optional<Tensor>& nested_codebook;  ///< F32 [256]
  const std::optional<Tensor>& nested_offset;    ///< F32, one value
  std::int64_t blocksize;
  std::string_view quant_type;  ///< "nf4" or "fp4"

  [[nodiscard]] bool nested() const { return nested_absmax.has_value(); }
};

/// Throws Error(usage) with one sentence unless the parts are those of `weights` weights.
void check_four_bit(const FourBitParts& parts, std::int64_t weights);

/// The tables of "nf4" or "fp4"; throws Error(usage) for any other.
[[nodiscard]] const FourBitTables& four_bit_tables(std::string_view quant_type);

/// A checked 4-bit weight on the CPU. The tensors must outlive it.
class FourBitRows {
 public:
  FourBitRows(const FourBitParts& parts, std::int64_t rows, std::int64_t columns);

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }

  /// The same weight for products.
  [[nodiscard]] matmul::FourBitWeight for_products() const;

  /// Decodes `count` weights from number `first` (a multiple of the blocksize) on to F32, BF16 or F16.
  void decode(std::int64_t first, std::int64_t count, DType to, void* out) const;

 private:
  const FourBitTables& tables_;
  matmul::Codebook codebook_;
  std::int64_t rows_, columns_, blocksize_;
  const std::uint8_t* packed_;
  const float* absmax_ = nullptr;
  const std::uint8_t* absmax_codes_ = nullptr;
  const float* nested_absmax_ = nullptr;
  const float* nested_codebook_ = nullptr;
  float nested_offset_ = 0;
};

}  // namespace nibble::torch_operators
