#include "quant/quantizers/compensation/compensated_blocks.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <vector>

#include "nibble/nested.hpp"
#include "quant/errors/four_bit_error.hpp"
#include "quant/quantizers/compensation/compensation.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

class CompensatedEncoder final : public Encoder {
 public:
  CompensatedEncoder(const FourBitCodec& codec, const QuantizerOptions& options, const InputFactor& factor,
                     const TensorInfo& tensor, Scratch& scratch)
      : codec_(codec),
        compensation_(codec, factor),
        sums_errors_(options.sums_errors),
        tensor_(tensor),
        columns_(factor.columns()),
        blocks_(tensor.elements() / codec.blocksize()),
        scratch_(scratch),
        largest_(codec.double_quant() ? blocks_ : 0) {
    assert(tensor.shape.size() == 2 && tensor.shape[1] == columns_);
  }

  void scan(std::uint64_t first, std::span<const std::byte> weights) override {
    const std::size_t blocksize = codec_.blocksize();
    for_each_tile(tensor_.dtype, weights, [&](std::size_t i, std::span<const float> tile) {
      for (std::size_t at = 0; at < tile.size(); at += blocksize) {
        float largest = 0;
        for (const float w : tile.subspan(at, blocksize))
          if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
        largest_[(first + i + at) / blocksize] = largest;
      }
    });
  }

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> codes,
                  std::vector<ErrorSums>* errors) override {
    if (codec_.double_quant()) std::call_once(has_range_, [&] { range_.emplace(largest_, codec_.absmax_choice()); });
    const std::span packed(reinterpret_cast<std::uint8_t*>(codes.data()), codes.size());
    std::vector<float> finite(weights.size() / (traits(tensor_.dtype).bits / 8));
    const bool is_finite = widen_all(weights, finite);
    const std::size_t blocks = finite.size() / codec_.blocksize();
    const std::uint64_t first_block = first / codec_.blocksize();
    std::vector<float> absmax(blocks);
    std::vector<std::uint8_t> absmax_codes(range_ ? blocks : 0);
    compensation_.encode(first / columns_, finite, range_ ? &*range_ : nullptr, {packed, absmax, absmax_codes});
    scratch_.write(first_block * sizeof(float), std::as_bytes(std::span(absmax)));
    if (range_) scratch_.write(blocks_ * sizeof(float) + first_block, std::as_bytes(std::span(absmax_codes)));
    if (errors != nullptr)
      add_four_bit_errors(codec_.tables(), tensor_.dtype, weights, packed, absmax, codec_.blocksize(), *errors);
    return is_finite ? Findings() : count_nonfinite(tensor_.dtype, weights, first);
  }

  EncodingError late_error() const override { return late_; }

  void finish(PlaneSink& sink) override {
    if (sums_errors_)
      scratch_.for_each_piece(0, blocks_ * sizeof(float), [&](std::span<const std::byte> bytes) {
        std::vector<float> magnitudes(bytes.size() / sizeof(float));
        std::memcpy(magnitudes.data(), bytes.data(), bytes.size());
        for (float& value : magnitudes) value = std::abs(value);
        late_.absmax.add(magnitudes);
      });
    const std::uint64_t begin = range_ ? blocks_ * sizeof(float) : 0;
    scratch_.for_each_piece(begin, begin + blocks_ * (range_ ? 1 : sizeof(float)),
                            [&](std::span<const std::byte> bytes) { sink.write(1, bytes); });
    if (!range_) return;
    sink.write(2, std::as_bytes(std::span(range_->nested_absmax)));
    sink.write(3, std::as_bytes(range_->codebook));
    sink.write(4, std::as_bytes(std::span(&range_->offset, 1)));
  }

 private:
  // Whether all weights are finite. Blocks that are not are repaired.
  bool widen_all(std::span<const std::byte> weights, std::span<float> to) const {
    const std::size_t blocksize = codec_.blocksize();
    bool all = true;
    for_each_tile(tensor_.dtype, weights, [&](std::size_t i, std::span<const float> tile) {
      std::ranges::copy(tile, to.begin() + static_cast<std::ptrdiff_t>(i));
      if (std::ranges::all_of(tile, [](float w) { return std::isfinite(w); })) return;
      all = false;
      for (std::size_t at = 0; at < tile.size(); at += blocksize) {
        const auto block = repaired(tile.subspan(at, blocksize));
        std::copy_n(block.begin(), blocksize, to.begin() + static_cast<std::ptrdiff_t>(i + at));
      }
    });
    return all;
  }

  const FourBitCodec& codec_;
  FourBitCompensation compensation_;
  bool sums_errors_;
  TensorInfo tensor_;
  std::uint64_t columns_, blocks_;
  Scratch& scratch_;            // the absmax of each block as it is read back, then their codes
  std::vector<float> largest_;  // of each block, if there is double quantization
  std::once_flag has_range_;
  std::optional<NestedRange> range_;
  EncodingError late_;
};

class CompensatedBlocks final : public Quantizer {
 public:
  CompensatedBlocks(const FourBitCodec& codec, const QuantizerOptions& options, const InputFactor* factor)
      : codec_(codec), options_(options), factor_(factor) {}

  // Whole groups of rows, and whole pieces of errors.
  Chunking chunking(const TensorInfo& tensor, std::uint64_t limit) const override {
    const std::uint64_t unit = std::lcm<std::uint64_t>(row_group::rows * tensor.shape.at(1), tile_weights);
    return {std::max(limit - limit % unit, unit), codec_.double_quant()};
  }

  std::uint64_t scratch_bytes(const TensorInfo& tensor) const override {
    return tensor.elements() / codec_.blocksize() * (sizeof(float) + (codec_.double_quant() ? 1 : 0));
  }

  std::uint64_t scan_bytes(const TensorInfo& tensor) const override {
    return codec_.double_quant() ? tensor.elements() / codec_.blocksize() * sizeof(float) : 0;
  }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking&, Scratch& scratch) const override {
    assert(factor_ != nullptr);
    return std::make_unique<CompensatedEncoder>(codec_, options_, *factor_, tensor, scratch);
  }

 private:
  const FourBitCodec& codec_;
  QuantizerOptions options_;
  const InputFactor* factor_;
};

}  // namespace

std::unique_ptr<const Quantizer> make_compensated_blocks_quantizer(const FourBitCodec& codec,
                                                                   const QuantizerOptions& options,
                                                                   const InputFactor* factor) {
  return std::make_unique<CompensatedBlocks>(codec, options, factor);
}

}  // namespace nibble
