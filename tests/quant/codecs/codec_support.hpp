#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "nibble/bf16.hpp"
#include "nibble/codec.hpp"
#include "nibble/fp16.hpp"
#include "nibble/target.hpp"
#include "quant/quantizers/quantizer.hpp"

namespace nibble::test {

/// A codec with its defaults, and with each other value of each of its options.
inline std::vector<CodecSpec> variants(std::string_view name) {
  std::vector<CodecSpec> variants{name};
  for (const CodecOption& option : variants.front().info().options)
    for (const std::string_view value : option.values)
      if (const CodecSpec other = variants.front().with(option.name, value); other != variants.front())
        variants.push_back(other);
  return variants;
}

/// The codec that a tensor is read with: options that are not stored have their defaults.
inline CodecSpec as_read(CodecSpec spec) {
  for (const CodecOption& option : spec.info().options)
    if (!option.is_stored) spec = spec.with(option.name, option.values[option.default_value]);
  return spec;
}

using Bytes = std::vector<std::byte>;

template <class T> Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

template <class T> std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

inline std::vector<float> normal_weights(std::size_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> weights(n);
  for (float& weight : weights) weight = normal(random);
  return weights;
}

/// The names of all codecs as lists in messages have them, "keep" first unless it is left out.
inline std::string listed_codecs(std::string_view separator = ", ", bool with_keep = true) {
  std::string text;
  for (const std::string_view name : codec_names())
    if (with_keep || name != "keep") text += (text.empty() ? "" : std::string(separator)) + std::string(name);
  return text;
}

/// fp32 weights as another type stores them.
inline Bytes stored_as(DType dtype, const std::vector<float>& weights) {
  std::vector<std::uint16_t> half(weights.size());
  switch (dtype) {
    case DType::f64:
      return bytes_of(std::vector<double>(weights.begin(), weights.end()));
    case DType::f16:
      std::transform(weights.begin(), weights.end(), half.begin(), fp16::from_float);
      break;
    case DType::bf16:
      std::transform(weights.begin(), weights.end(), half.begin(), bf16::from_float);
      break;
    default:
      return bytes_of(weights);
  }
  return bytes_of(half);
}

/// fp64, F32, BF16 or F16 weights, one by one.
inline std::vector<double> numbers_of(DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> numbers;
  if (dtype == DType::f64) return values_of<double>(bytes);
  if (dtype == DType::f32)
    for (const float value : values_of<float>(bytes)) numbers.push_back(value);
  else
    for (const std::uint16_t value : values_of<std::uint16_t>(bytes))
      numbers.push_back(dtype == DType::f16 ? fp16::to_float(value) : bf16::to_float(value));
  return numbers;
}

/// All planes of an encoded tensor, in the order of Codec::planes().
struct Encoded {
  std::vector<Bytes> planes;
  Findings findings;
  bool operator==(const Encoded&) const = default;

  /// What Codec::decoder() asks for: those that follow the codes.
  [[nodiscard]] std::vector<std::span<const std::byte>> rest() const { return {planes.begin() + 1, planes.end()}; }
};

/// Calls `call` once for each of so many chunks: in any order, from any threads.
using ChunkOrder = std::function<void(std::size_t chunks, const std::function<void(std::size_t chunk)>& call)>;

inline void in_order(std::size_t chunks, const std::function<void(std::size_t)>& call) {
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) call(chunk);
}

inline void backwards(std::size_t chunks, const std::function<void(std::size_t)>& call) {
  for (std::size_t chunk = chunks; chunk-- > 0;) call(chunk);
}

/// How encode() does it, and what it tells beside the planes.
struct EncodeOptions {
  std::uint64_t limit = std::uint64_t{1} << 20;  ///< weights per chunk, as Quantizer::chunking() takes it
  ChunkOrder order = in_order;                   ///< of scan(), then of encode()
  QuantizerOptions quantizer = {};
  const Quantizer* by = nullptr;             ///< null: the codec's own, with these options
  ColumnWeights columns = {};                ///< for Encoder::weigh()
  Scratch* scratch = nullptr;                ///< null: in memory
  std::vector<ErrorSums>* errors = nullptr;  ///< unless null: what encode() appends, in the order of the weights
  EncodingError* late = nullptr;             ///< unless null: Encoder::late_error()
};

inline Encoded encode(const Codec& codec, const TensorInfo& tensor, std::span<const std::byte> weights,
                      const EncodeOptions& options = {}) {
  const auto own = options.by == nullptr ? make_quantizer(codec, options.quantizer) : nullptr;
  const Quantizer* const quantizer = own ? own.get() : options.by;
  const Chunking chunking = quantizer->chunking(tensor, options.limit);
  MemoryScratch memory(options.scratch == nullptr ? quantizer->scratch_bytes(tensor) : 0);
  Scratch& scratch = options.scratch == nullptr ? memory : *options.scratch;
  const auto encoder = quantizer->encoder(tensor, chunking, scratch);
  encoder->weigh(ColumnWeights(options.columns));

  struct Chunk {
    std::uint64_t first, end;
    Findings findings;
    std::vector<ErrorSums> errors;
  };
  const std::uint64_t n = tensor.elements();
  std::vector<Chunk> chunks;
  for (std::uint64_t first = 0; first < n; first += chunking.weights)
    chunks.push_back({first, std::min(n, first + chunking.weights), {}, {}});
  const auto source = [&](const Chunk& chunk) {
    return weights.subspan(byte_count(tensor.dtype, chunk.first), byte_count(tensor.dtype, chunk.end - chunk.first));
  };
  Encoded out;
  out.planes.resize(codec.planes(tensor).size());
  out.planes[0].resize(codec.code_bytes(tensor, n));
  if (chunking.scan)
    options.order(chunks.size(), [&](std::size_t c) { encoder->scan(chunks[c].first, source(chunks[c])); });
  options.order(chunks.size(), [&](std::size_t c) {
    Chunk& chunk = chunks[c];
    const std::uint64_t at = codec.code_bytes(tensor, chunk.first);
    const auto codes = std::span(out.planes[0]).subspan(at, codec.code_bytes(tensor, chunk.end) - at);
    chunk.findings =
        encoder->encode(chunk.first, source(chunk), codes, options.errors == nullptr ? nullptr : &chunk.errors);
  });
  for (const Chunk& chunk : chunks) {
    out.findings.add(chunk.findings);
    if (options.errors != nullptr)
      options.errors->insert(options.errors->end(), chunk.errors.begin(), chunk.errors.end());
  }
  class Collect final : public PlaneSink {
   public:
    explicit Collect(std::vector<Bytes>& to) : to_(to) {}
    void write(std::size_t plane, std::span<const std::byte> bytes) override {
      to_.at(plane).insert(to_.at(plane).end(), bytes.begin(), bytes.end());
    }

   private:
    std::vector<Bytes>& to_;
  } rest(out.planes);
  encoder->finish(rest);
  if (options.late != nullptr) *options.late = encoder->late_error();
  return out;
}

inline Encoded encode(const Codec& codec, const TensorInfo& tensor, std::span<const std::byte> weights,
                      std::uint64_t limit) {
  return encode(codec, tensor, weights, {.limit = limit});
}

inline std::vector<float> decode(const Codec& codec, const TensorInfo& tensor, const Encoded& encoded,
                                 std::uint64_t limit = std::uint64_t{1} << 20) {
  const auto decoder = codec.decoder(tensor, encoded.rest());
  const Chunking chunking = make_quantizer(codec)->chunking(tensor, limit);
  std::vector<float> out(tensor.elements());
  for (std::uint64_t first = 0; first < out.size(); first += chunking.weights) {
    const std::uint64_t end = std::min<std::uint64_t>(out.size(), first + chunking.weights);
    const std::uint64_t at = codec.code_bytes(tensor, first);
    const auto codes = std::span(encoded.planes[0]).subspan(at, codec.code_bytes(tensor, end) - at);
    decoder->decode(first, codes, std::span(out).subspan(first, end - first));
  }
  return out;
}

/// A codec's fp32 round trip of a matrix.
inline std::vector<float> round_trip(const Codec& codec, const std::vector<float>& weights, const Shape& shape) {
  const TensorInfo tensor{"m.weight", DType::f32, shape};
  return decode(codec, tensor, encode(codec, tensor, bytes_of(weights)));
}

/// What the tests of all codecs have to know of each. Its own test says it, by an object of this type at namespace
/// level.
struct CodecFacts {
  /// How far from a weight its round trip may be, in a tensor whose largest magnitude is absmax: the format's own
  /// bound.
  using Bound = double (*)(double weight, double absmax);

  CodecFacts(std::string_view codec, Bound bound);

  Bound bound;
};
[[nodiscard]] const CodecFacts& facts_of(std::string_view codec);

/// What digest_test.cpp compares: hashes of all planes that a codec makes of its input, and of the weights that come
/// back, from F32, BF16, F16 and F64. An object at namespace level of the codec's own test.
struct CodecDigests {
  std::string id;
  CodecSpec codec;
  OnOverflow on_overflow;
  std::array<std::string_view, 4> encoded, decoded;

  friend void PrintTo(const CodecDigests& each, std::ostream* out) { *out << each.id; }
};
struct GiveDigests {
  explicit GiveDigests(std::initializer_list<CodecDigests> digests);
};
[[nodiscard]] std::vector<CodecDigests>& all_digests();

/// Runs f once for every CPU target that this machine has and this program was compiled for.
template <class F> void for_each_target(F&& f) {
  for (const std::string_view target : cpu_targets()) {
    force_cpu_target(target);
    f(std::string(target));
  }
  force_cpu_target({});
}

/// tests/golden/codecs.safetensors: what bitsandbytes and torch wrote (make_golden.py). Read without nibble's reader,
/// so that these tests stand on their own.
class Golden {
 public:
  Golden();

  const TensorInfo& info(const std::string& name) const { return tensors_.at(name).info; }
  const Bytes& bytes(const std::string& name) const { return tensors_.at(name).data; }

 private:
  struct Tensor {
    TensorInfo info;
    Bytes data;
  };
  std::map<std::string, Tensor> tensors_;
};

}  // namespace nibble::test
