#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nibble/codec.hpp"
#include "nibble/error_sums.hpp"
#include "nibble/findings.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "quant/stream/source.hpp"

namespace nibble {

/// Runs an encoder over the weights of a source, chunk by chunk. scan() and encode() may be called concurrently for
/// ranges of whole chunks that do not overlap.
class Encoding {
 public:
  /// `tensor` is the source's tensor in the shape that the plan gives it. `scratch` has room for
  /// Quantizer::scratch_bytes(). `columns` is for Encoder::weigh(). Source and codec must outlive it.
  Encoding(const WeightSource& source, const TensorInfo& tensor, const Codec& codec, const Quantizer& quantizer,
           const Chunking& chunking, std::unique_ptr<Scratch> scratch, ColumnWeights columns = {});

  /// The offset of weight `weight` among the codes: the first weight of a chunk, or the end.
  [[nodiscard]] std::uint64_t offset(std::uint64_t weight) const { return codec_.code_bytes(tensor_, weight); }

  /// The first pass over weights [first, first + n), if Chunking::scan asks for one.
  void scan(std::uint64_t first, std::uint64_t n);

  /// Puts the codes of these weights into `codes`. `encoded` is called with the codes of each chunk while they are in
  /// the cache. An Error(bad_input) without a subject names the tensor.
  Findings encode(
      std::uint64_t first, std::uint64_t n, std::span<std::byte> codes, std::vector<ErrorSums>* errors,
      const std::function<void(std::span<const std::byte> codes)>& encoded = [](auto) {});

  [[nodiscard]] Encoder& encoder() { return *encoder_; }
  [[nodiscard]] const Chunking& chunking() const { return chunking_; }

  /// Ends the encoder and gives the scratch back.
  [[nodiscard]] std::unique_ptr<Scratch> end();

 private:
  // Calls f(first, end, weights) for the chunks of a range, read in turn.
  template <class F> void for_each_chunk(std::uint64_t first, std::uint64_t n, F&& f);

  const WeightSource& source_;
  TensorInfo tensor_;
  const Codec& codec_;
  Chunking chunking_;
  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<Encoder> encoder_;
};

}  // namespace nibble
