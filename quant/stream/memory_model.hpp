#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/memory_limit.hpp"  // program_bytes
#include "nibble/plan.hpp"
#include "nibble/tensor_list.hpp"
#include "quant/stream/codings.hpp"

/// The figures from which ConversionMemory and MeasurementMemory are computed. They were measured as peak RSS on
/// x86-64; a third was added for machines with other libraries.
namespace nibble {

// ---- buffers -------------------------------------------------------------------------------------------------------

inline constexpr std::uint64_t max_chunk_bytes = 1 << 20;  ///< of the source, read at once
inline constexpr std::uint64_t min_chunk_bytes = 64 << 10;
inline constexpr std::uint64_t max_batch_bytes = 1 << 20;
inline constexpr std::uint64_t min_behind_bytes = 256 << 10;  ///< smaller writes would mostly go through the page cache

/// Weights that are decoded, or read and compared, at a time. Sums are added up unit by unit, so they do not depend on
/// the memory.
inline constexpr std::uint64_t unit_weights = 1 << 17;

/// Batches in flight besides one for each thread, so that threads have work while a tensor is finished. With 1, a
/// conversion took 1.1 times as long. measure() finishes no tensor this way, so 1 is enough.
inline constexpr std::size_t tokens_in_line = 4;
inline constexpr std::size_t measured_in_line = 1;

inline constexpr std::uint64_t bytes_per_buffer = 4096;      ///< a buffer may start anywhere in a page
inline constexpr std::uint64_t bytes_per_thread = 64 << 10;  ///< stack and the allocator: 30 KiB with 64 threads

inline constexpr std::uint64_t encoder_share = 8;  ///< an encoder needs a buffer of this share of a chunk

/// Beside its device memory, a queue has room for the absmax of a chunk, in blocks of 32 weights of 16 bits or in rows.
inline constexpr std::uint64_t absmax_share = 16;
inline constexpr std::uint64_t row_absmax_bytes = 16 << 10;

// ---- a tensor in progress ------------------------------------------------------------------------------------------

/// Encoder::finish() reads absmax piece by piece and encodes each piece.
inline constexpr std::uint64_t finish_piece_bytes = 1 << 20;
[[nodiscard]] constexpr std::uint64_t finish_bytes(std::uint64_t absmax_bytes) {
  return (absmax_bytes < finish_piece_bytes ? absmax_bytes : finish_piece_bytes) * 5 / 4;
}

/// Each hash chunk of the largest part has a hash of 16 bytes, and 35 bytes of text in nibble.json. A vector or a
/// string that grows takes three times its size: the old buffer, and a new one of twice the size.
inline constexpr std::uint64_t bytes_per_hash = std::uint64_t{3} * (16 + 35);

/// Parts of a tensor after its first are read whole and copied into its decoder, while that of the tensor before it may
/// still be in use.
inline constexpr std::uint64_t decoder_copies = 3;

// ---- lists of tensors ----------------------------------------------------------------------------------------------

/// From reading its header to writing the last file, a tensor that is converted takes this many bytes, and its name and
/// shape several times: in the text of the header, in the reader's and the plan's copy, and in the old buffer of a copy
/// that grows. The six parts of NF4 in the output are half of it. In a model of 100,000 tensors, each was measured to
/// take 330 bytes, all included.
inline constexpr std::uint64_t bytes_per_converted = 128;
inline constexpr std::uint64_t converted_names = 4;
inline constexpr std::uint64_t bytes_per_decoded = 128;  ///< StoredWeights::memory_bytes() of FP8, while it grows
inline constexpr std::uint64_t bytes_per_report = 512;   ///< of a full report, which is kept until the manifest has it

/// In a measurement, every list holds the names once beside these bytes, and the results hold them twice: as name and
/// as kind.
inline constexpr std::uint64_t bytes_per_part = 64;     ///< of an open checkpoint
inline constexpr std::uint64_t bytes_per_planned = 80;  ///< of a plan
inline constexpr std::uint64_t bytes_per_found = 380;   ///< of a result, and for every candidate:
inline constexpr std::uint64_t bytes_per_error = 280;
inline constexpr std::uint64_t bytes_per_counts = 640;
inline constexpr std::size_t counted_dimensions = 4;  ///< of a shape, included in the figures above

/// What opening a checkpoint took. That memory is free again, but it was part of the peak.
inline constexpr std::uint64_t bytes_per_opened = 96;
inline constexpr std::uint64_t opened_names = 3;

/// Bytes of all names, and of the dimensions of all shapes after the first `dimensions` of each.
[[nodiscard]] std::uint64_t text_bytes(const TensorList& tensors, std::size_t dimensions);

// ---- plans ---------------------------------------------------------------------------------------------------------

/// Figures of a plan that only memory estimates use.
struct PlanEstimates {
  /// Bytes that writing config.json anew takes.
  [[nodiscard]] static std::uint64_t& rewrite_bytes(Plan& plan) noexcept { return plan.rewrite_bytes_; }
  [[nodiscard]] static std::uint64_t rewrite_bytes(const Plan& plan) noexcept { return plan.rewrite_bytes_; }

  /// Bytes of absmax and scales of the largest tensor that is decoded.
  [[nodiscard]] static std::uint64_t& decoder_bytes(Plan& plan) noexcept { return plan.decoder_bytes_; }
  [[nodiscard]] static std::uint64_t decoder_bytes(const Plan& plan) noexcept { return plan.decoder_bytes_; }
};

// ---- encoding ------------------------------------------------------------------------------------------------------

/// What the tensors of a plan need while they are encoded: for each figure, the largest of any tensor.
struct EncodingNeeds {
  std::uint64_t codes = 0;                  ///< bytes
  std::uint64_t scratch = 0;                ///< Quantizer::scratch_bytes()
  std::uint64_t encoder = 0;                ///< beside the scratch: to finish, and for rows that are read twice
  std::uint64_t decoder = 0;                ///< bytes of the planes beside the codes, to read what was written
  std::uint64_t decoded = 0;                ///< number of tensors whose weights are decoded from codes
  std::uint64_t least_chunk = 0;            ///< bytes of the smallest chunk that a quantizer takes
  double growth = 1;                        ///< of a chunk whose codes take more bytes than the weights
  double kept_share = 0;                    ///< scratch bytes per byte of codes
  bool transposes = false;                  ///< whether any tensor is transposed
  std::uint64_t shortest_row = UINT64_MAX;  ///< of those that are transposed
};
/// `limit` says how many weights a chunk of a type may have.
[[nodiscard]] EncodingNeeds needs_of(const Plan& plan, const Codings& codings,
                                     const std::function<std::uint64_t(DType)>& limit);

}  // namespace nibble
