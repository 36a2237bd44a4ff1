#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/error_sums.hpp"
#include "nibble/scratch.hpp"
#include "nibble/tensor.hpp"

namespace nibble {

class Device;
class Reader;

/// What a cast does with finite values beyond the largest of its type (65504 for fp16).
enum class OnOverflow : std::uint8_t {
  automatic,  ///< error for fp16, keep for bf16 and fp32
  error,
  clamp,  ///< store the largest
  keep,   ///< store infinity
};

/// What a codec is made with. Each codec reads the fields that concern it.
struct CodecOptions {
  std::uint32_t blocksize = 64;                    ///< weights per absmax: 32, 64, ..., 4096 (nf4, fp4)
  bool double_quant = true;                        ///< absmax in 8 bits, 256 to a nested absmax (nf4, fp4)
  OnOverflow on_overflow = OnOverflow::automatic;  ///< (fp16, bf16, fp32)
  bool sums_errors = false;                        ///< encode() will be asked for errors
  Device* device = nullptr;  ///< encodes the chunks that it can, to the same bytes (nf4, fp4, int8)
};

/// What a codec met in the weights it encoded. Sums over chunks, so independent of how a tensor was cut.
struct Findings {
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
  std::uint64_t overflow = 0;                  ///< finite, beyond the largest finite value of the stored type
  std::uint64_t overflow_fp32 = 0;             ///< those of them that fp32 cannot hold either (from F64)
  std::uint64_t underflow = 0;                 ///< not zero, stored as zero (casts only)
  std::uint64_t subnormal = 0;                 ///< stored as a subnormal number (casts only)
  std::uint64_t first_nonfinite = UINT64_MAX;  ///< index of the first NaN, infinity or overflow

  void add(const Findings& other) noexcept {
    nan += other.nan;
    inf += other.inf;
    overflow += other.overflow;
    overflow_fp32 += other.overflow_fp32;
    underflow += other.underflow;
    subnormal += other.subnormal;
    first_nonfinite = first_nonfinite < other.first_nonfinite ? first_nonfinite : other.first_nonfinite;
  }
  bool operator==(const Findings&) const = default;
};

/// How a tensor is cut for an encoder.
struct Chunking {
  std::uint64_t weights = 0;  ///< per chunk, but the last may have fewer; takes whole bytes in the first part
  bool scan = false;          ///< every chunk goes through scan() before the first encode()
};

/// Takes the parts of a tensor that follow its first.
class PartSink {
 public:
  virtual ~PartSink() = default;
  /// Appends bytes to part `part` (1, 2, ... of Codec::parts()); parts may take turns.
  virtual void write(std::size_t part, std::span<const std::byte> bytes) = 0;
  /// Appends `size` bytes, which `make` puts into the sink's own memory.
  virtual void fill(std::size_t part, std::size_t size, const std::function<void(std::span<std::byte>)>& make) {
    std::vector<std::byte> bytes(size);
    make(bytes);
    write(part, bytes);
  }
};

/// One tensor on its way through a codec. Calls of scan() and of encode() may run concurrently as long as their
/// ranges are disjoint; finish() comes last.
class Encoder {
 public:
  virtual ~Encoder() = default;

  /// A first look at weights [first, first + n), for codecs whose Chunking asks for it.
  virtual void scan(std::uint64_t first, std::span<const std::byte> weights);

  /// Encodes weights [first, first + n), given as the source type stores them, into the bytes that they take in
  /// the first part. `first` is a multiple of Chunking::weights. Casts keep NaN and infinities; elsewhere NaN counts
  /// as 0 and an infinity as the largest finite magnitude of its block or row, and int8 takes what fp16 cannot hold
  /// as +-65504. The caller decides by the findings whether that may stand. Neither span needs alignment.
  ///
  /// Appends sums over the errors to `errors`, unless it is null. Each is of weights that do not depend on how the
  /// tensor is cut, if chunks have 4096 weights or more, so adding them up in order gives the same for any chunks.
  /// Nothing for codecs that are exact.
  virtual Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out,
                          std::vector<ErrorSums>* errors) = 0;

  /// After finish(): what that added to the errors (double quantization changes every absmax), and how absmax is
  /// spread.
  [[nodiscard]] virtual EncodingError late_error() const { return {}; }

  /// Hands out the other parts, all of their bytes. Large ones go in pieces, and are made on all threads of the
  /// oneTBB arena that calls. Call once.
  virtual void finish(PartSink& /*sink*/) {}
};

/// The way back, for one tensor. Thread-safe.
class Decoder {
 public:
  virtual ~Decoder() = default;

  /// Decodes the weights [first, first + out.size()) from the bytes they take in the first part; `first` is a
  /// multiple of Chunking::weights.
  virtual void decode(std::uint64_t first, std::span<const std::byte> in, std::span<float> out) const = 0;

  /// The same to F32, BF16 or F16, rounded to nearest even. `out` needs no alignment.
  virtual void decode(std::uint64_t first, std::span<const std::byte> in, DType to, std::span<std::byte> out) const;
};

/// The entries of config.json's quantization_config by which transformers sees this codec.
struct BnbConfig {
  int bits = 4;                    ///< load_in_4bit or load_in_8bit
  std::string quant_type = "fp4";  ///< bnb_4bit_quant_type; for 8 bits the default that transformers writes
  bool double_quant = false;       ///< bnb_4bit_use_double_quant
};

/// A tensor that a codec has stored, found among those of a checkpoint.
struct StoredTensor {
  TensorInfo info;                 ///< as it was before
  CodecOptions options;            ///< what the codec has to be made with
  std::vector<std::size_t> parts;  ///< indices into Reader::tensors(), as Codec::parts() has them
};

/// The index of a tensor of this name in a checkpoint.
using FindTensor = std::function<std::optional<std::size_t>(std::string_view)>;

/// A number format. Stateless and thread-safe; made by make_codec().
class Codec {
 public:
  virtual ~Codec() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// One sentence for people: what is stored.
  [[nodiscard]] virtual std::string_view summary() const noexcept = 0;

  /// Whether this codec can store such a tensor. By default any of the weight types, of any shape.
  [[nodiscard]] virtual bool accepts(const TensorInfo& tensor) const { return is_weight_type(tensor.dtype); }

  /// What is stored for a tensor: names, types and shapes follow from its header alone. The first part has its
  /// bytes in the order of the weights and is filled chunk by chunk; the others come from Encoder::finish().
  [[nodiscard]] virtual std::vector<TensorInfo> parts(const TensorInfo& tensor) const = 0;

  /// How to cut a tensor so that a chunk has at most `limit` weights (rounded up to what the codec needs at least).
  [[nodiscard]] virtual Chunking chunking(const TensorInfo& tensor, std::uint64_t limit) const = 0;

  /// Bytes that an encoder of this tensor keeps from encode() to finish() where the caller says. Beside them it needs
  /// little: a sixteenth of a chunk in every encode(), 2 MiB in finish(), 8 bytes for every row that is scanned.
  [[nodiscard]] virtual std::uint64_t scratch_bytes(const TensorInfo& /*tensor*/) const { return 0; }

  /// `scratch` has room for scratch_bytes() and must outlive the encoder.
  [[nodiscard]] virtual std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking& chunking,
                                                         Scratch& scratch) const = 0;

  /// What tensor `first` of a checkpoint stands for, if a codec of this name stored it and it is the first part,
  /// whoever wrote it and with whatever options. Throws Error(bad_input) if its parts contradict each other or are
  /// missing.
  [[nodiscard]] virtual std::optional<StoredTensor> recognize(const Reader& /*in*/, std::size_t /*first*/,
                                                              const FindTensor& /*find*/) const {
    return std::nullopt;
  }

  /// `rest` holds the bytes of parts()[1...]. Throws Error(bad_input) if they contradict the tensor.
  [[nodiscard]] virtual std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                                         std::span<const std::span<const std::byte>> rest) const = 0;

  /// Nothing for codecs whose result transformers loads as plain weights.
  [[nodiscard]] virtual std::optional<BnbConfig> bnb_config() const { return std::nullopt; }

  /// The type of the stored values, for codecs that only cast: what config.json calls dtype.
  [[nodiscard]] virtual std::optional<DType> cast_type() const { return std::nullopt; }

  /// The SQNR in dB of independent, normally distributed weights in a tensor of this shape, to which measured figures
  /// are held: infinite where nothing is lost, NaN where nobody has measured it. Each codec names the source.
  [[nodiscard]] virtual double normal_sqnr_db(const TensorInfo& /*tensor*/) const {
    return std::numeric_limits<double>::quiet_NaN();
  }
};

/// Names of all registered codecs, in the order of the registry.
[[nodiscard]] std::span<const std::string_view> codec_names();

/// Throws Error(usage) if there is no such codec, or an option is outside its range.
[[nodiscard]] std::unique_ptr<const Codec> make_codec(std::string_view name, const CodecOptions& options = {});

}  // namespace nibble
