#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/memory/scratch.hpp"
#include "nibble/codec.hpp"
#include "nibble/error_sums.hpp"
#include "nibble/findings.hpp"
#include "nibble/tensor.hpp"
#include "quant/quantizers/column_weights.hpp"

/// How scales and codes are chosen: the passes over a tensor, the data kept between them, and the findings.
namespace nibble {

class Device;

/// The options of a quantizer.
struct QuantizerOptions {
  OnOverflow on_overflow = OnOverflow::automatic;  ///< of casts
  bool sums_errors = false;                        ///< encode() will be asked for errors
  Device* device = nullptr;                        ///< encodes chunks where uses_device() says so, to the same bytes
};

/// How a tensor is cut for an encoder.
struct Chunking {
  std::uint64_t weights = 0;  ///< per chunk, but the last may have fewer; takes whole bytes among the codes
  bool scan = false;          ///< every chunk goes through scan() before the first encode()
};

/// Takes the planes of a tensor that follow the codes.
class PlaneSink {
 public:
  virtual ~PlaneSink() = default;
  /// Appends bytes to plane `plane` (1, 2, ... of Codec::planes()); planes may alternate.
  virtual void write(std::size_t plane, std::span<const std::byte> bytes) = 0;
  /// Appends `size` bytes, which `make` puts into the sink's own memory.
  virtual void fill(std::size_t plane, std::size_t size, const std::function<void(std::span<std::byte>)>& make) {
    std::vector<std::byte> bytes(size);
    make(bytes);
    write(plane, bytes);
  }
};

/// Encodes one tensor. Calls of scan() and of encode() may run concurrently as long as their ranges are disjoint;
/// finish() comes last.
class Encoder {
 public:
  virtual ~Encoder() = default;

  /// How much the errors of the columns count, for encoders that search; without this call they count alike. `columns`
  /// has those of the tensor's last dimension, or is empty. Call it first.
  virtual void weigh(ColumnWeights&& /*columns*/) {}

  /// The first pass over weights [first, first + n), if Chunking::scan asks for it.
  virtual void scan(std::uint64_t /*first*/, std::span<const std::byte> /*weights*/) {}

  /// Encodes weights [first, first + n), given as the source type stores them, into the bytes that they take among the
  /// codes. `first` is a multiple of Chunking::weights. Casts keep NaN and infinities; elsewhere NaN counts as 0 and an
  /// infinity as the largest finite magnitude of its block or row, and int8 takes what fp16 cannot hold as +-65504. The
  /// caller decides by the findings whether that is acceptable. Neither span needs alignment.
  ///
  /// Appends sums over the errors to `errors`, unless it is null. If chunks have 4096 weights or more, the weights of
  /// each sum do not depend on how the tensor is cut, so adding the sums in order gives the same result for any chunks.
  /// Exact codecs append nothing.
  virtual Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> codes,
                          std::vector<ErrorSums>* errors) = 0;

  /// After finish(): what it added to the errors (double quantization changes every absmax), and the spread of absmax.
  [[nodiscard]] virtual EncodingError late_error() const { return {}; }

  /// Passes on all bytes of the other planes. Large planes come in pieces and are made on all threads of the caller's
  /// oneTBB arena. Call once.
  virtual void finish(PlaneSink& /*sink*/) {}
};

/// Makes the encoders of one codec, which must outlive it. Stateless and thread-safe.
class Quantizer {
 public:
  virtual ~Quantizer() = default;

  /// How to cut a tensor so that a chunk has at most `limit` weights (more if the smallest possible chunk has more).
  [[nodiscard]] virtual Chunking chunking(const TensorInfo& tensor, std::uint64_t limit) const = 0;

  /// Bytes that an encoder of this tensor keeps from encode() to finish(), in the `scratch` of encoder(). It needs
  /// little else: a sixteenth of a chunk in every encode(), 2 MiB in finish(), scan_bytes() if it scans.
  [[nodiscard]] virtual std::uint64_t scratch_bytes(const TensorInfo& /*tensor*/) const { return 0; }

  /// Bytes of memory that an encoder keeps of what it has scanned.
  [[nodiscard]] virtual std::uint64_t scan_bytes(const TensorInfo& /*tensor*/) const { return 0; }

  /// Whether its encoders give chunks of such a tensor to QuantizerOptions::device, if there is one.
  [[nodiscard]] virtual bool uses_device(const TensorInfo& /*tensor*/) const { return false; }

  /// `scratch` has room for scratch_bytes() and must outlive the encoder.
  [[nodiscard]] virtual std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking& chunking,
                                                         Scratch& scratch) const = 0;
};

/// The quantizer that a codec has by default: absmax of blocks or of rows, a cast, a copy. Throws Error(usage) if there
/// is none for this codec.
[[nodiscard]] std::unique_ptr<const Quantizer> make_quantizer(const Codec& codec, const QuantizerOptions& options = {});

}  // namespace nibble
