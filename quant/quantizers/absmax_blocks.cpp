// The absmax of every block of a tensor. Double quantization then quantizes blocks of these values, for which it needs
// all of them.

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "nibble/error.hpp"
#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/errors/four_bit_error.hpp"
#include "quant/quantizers/device.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

class BlockEncoder final : public Encoder {
 public:
  BlockEncoder(const FourBitCodec& codec, const QuantizerOptions& options, const TensorInfo& tensor, Scratch& scratch)
      : tables_(codec.tables()),
        blocksize_(codec.blocksize()),
        nested_(codec.double_quant()),
        sums_errors_(options.sums_errors),
        keeps_errors_(nested_ && sums_errors_),
        device_(options.device),
        tensor_(tensor),
        blocks_(ceil_div(tensor.elements(), blocksize_)),
        scratch_(scratch) {}

  // In tiles of 4096 weights. Chunks begin at tiles.
  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> codes,
                  std::vector<ErrorSums>* errors) override {
    const std::span<std::uint8_t> packed(reinterpret_cast<std::uint8_t*>(codes.data()), codes.size());
    const std::size_t size = traits(tensor_.dtype).bits / 8, n = weights.size() / size;
    const std::uint64_t first_block = first / blocksize_;
    std::vector<std::byte> absmax_room, errors_room;
    const auto absmax = lend<float>(first_block * sizeof(float), ceil_div(n, blocksize_), absmax_room);
    const auto block_errors = lend<FourBitError>(errors_at() + first_block * sizeof(FourBitError),
                                                 errors != nullptr && keeps_errors_ ? absmax.size() : 0, errors_room);
    // Weights that are not finite are counted here, so they are encoded here, too.
    const bool on_device =
        device_ != nullptr &&
        DeviceEncoder(*device_).encode_four_bit(tables_.codebook, tensor_.dtype, weights, blocksize_, packed, absmax);
    Findings findings;
    alignas(64) std::array<float, tile_weights> widened;
    for (std::size_t i = 0; i < n && !(on_device && errors == nullptr); i += tile_weights) {
      const std::size_t count = std::min(tile_weights, n - i);
      const auto stored = weights.subspan(i * size, count * size);
      const auto tile = tensor_.dtype == DType::f64 ? std::as_bytes(widen(DType::f64, stored, widened)) : stored;
      const DType dtype = tensor_.dtype == DType::f64 ? DType::f32 : tensor_.dtype;
      const auto packed_tile = packed.subspan(i / 2, ceil_div(count, 2));
      const auto scales = absmax.subspan(i / blocksize_, ceil_div(count, blocksize_));
      const auto of_blocks = block_errors.empty() ? block_errors : block_errors.subspan(i / blocksize_, scales.size());
      std::size_t nonfinite = 0;
      if (on_device)
        sum_four_bit_errors(tables_, dtype, tile, packed_tile, scales, blocksize_, of_blocks, errors->emplace_back());
      else if (errors != nullptr)
        nonfinite = encode_and_compare_four_bit(tables_, dtype, tile, blocksize_, packed_tile, scales, of_blocks,
                                                errors->emplace_back());
      else
        nonfinite = encode_four_bit(tables_, dtype, tile, blocksize_, packed_tile, scales);
      if (nonfinite != 0) findings.add(count_nonfinite(tensor_.dtype, stored, first + i));
    }
    scratch_.write(first_block * sizeof(float), std::as_bytes(absmax));
    scratch_.write(errors_at() + first_block * sizeof(FourBitError), std::as_bytes(block_errors));
    return findings;
  }

  EncodingError late_error() const override { return late_; }

  void finish(PlaneSink& sink) override {
    if (sums_errors_)
      for_each_piece([&](std::uint64_t, std::span<const float> absmax) {
        std::array<Spread, piece_groups> spreads;
        for_each_group(absmax,
                       [&](std::size_t g, std::size_t, std::span<const float> values) { spreads[g].add(values); });
        for (const Spread& spread : spreads) late_.absmax.add(spread);
      });
    if (nested_) {
      const float offset = mean();
      encode_nested(offset, sink);
      sink.write(3, std::as_bytes(std::span(nested::codebook)));
      sink.write(4, std::as_bytes(std::span(&offset, 1)));
    } else {
      for_each_piece([&](std::uint64_t, std::span<const float> absmax) {
        // In pieces as large as those of double quantization, whose memory is accounted for.
        const std::span<const std::byte> bytes = std::as_bytes(absmax);
        for (std::size_t first = 0; first < bytes.size(); first += piece) {
          const auto part = bytes.subspan(first, std::min(piece, bytes.size() - first));
          sink.fill(1, part.size(), [&](std::span<std::byte> room) { std::ranges::copy(part, room.begin()); });
        }
      });
    }
  }

 private:
  template <class T> std::span<T> lend(std::uint64_t offset, std::size_t n, std::vector<std::byte>& room) {
    return {reinterpret_cast<T*>(scratch_.lend(offset, n * sizeof(T), room).data()), n};
  }

  // Absmax values in memory at a time while the tensor is finished: 1 MiB, enough for 16 threads.
  static constexpr std::size_t piece_groups = 16;
  static constexpr std::size_t piece = piece_groups * nested::group;
  static_assert(nested::group % nested::blocksize == 0, "groups begin with a nested block");

  template <class F> void for_each_piece(F&& f) const {
    std::vector<std::byte> room;
    for (std::uint64_t first = 0; first < blocks_; first += piece) {
      const std::size_t n = std::min<std::uint64_t>(blocks_ - first, piece);
      const auto absmax = scratch_.view(first * sizeof(float), n * sizeof(float), room);
      f(first, std::span(reinterpret_cast<const float*>(absmax.data()), n));
    }
  }

  // Calls f(group, its first value, its values) for the groups of a piece, side by side.
  template <class F> static void for_each_group(std::span<const float> absmax, F&& f) {
    const auto call = [&](std::size_t g) {
      const std::size_t first = g * nested::group;
      f(g, first, absmax.subspan(first, std::min(nested::group, absmax.size() - first)));
    };
    const std::size_t groups = ceil_div(absmax.size(), nested::group);
    if (groups == 1) return call(0);
    // Isolated: a waiting thread must not start a chunk of the pipeline meanwhile.
    tbb::this_task_arena::isolate([&] { tbb::parallel_for(std::size_t{0}, groups, call); });
  }

  // As nested::offset().
  float mean() const {
    double sum = 0;
    for_each_piece([&](std::uint64_t, std::span<const float> absmax) {
      std::array<double, piece_groups> sums{};
      for_each_group(absmax, [&](std::size_t g, std::size_t, std::span<const float> values) {
        sums[g] = nested::group_sum(values);
      });
      for (std::size_t g = 0; g < ceil_div(absmax.size(), nested::group); ++g) sum += sums[g];
    });
    return blocks_ == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(blocks_));
  }

  void encode_nested(float offset, PlaneSink& sink) {
    for_each_piece([&](std::uint64_t at, std::span<const float> absmax) {
      std::array<ErrorSums, piece_groups> changes{};
      std::vector<float> nested_absmax(ceil_div(absmax.size(), nested::blocksize));
      sink.fill(1, absmax.size(), [&](std::span<std::byte> room) {
        const std::span codes(reinterpret_cast<std::uint8_t*>(room.data()), room.size());
        for_each_group(absmax, [&](std::size_t g, std::size_t first, std::span<const float> values) {
          const auto group_codes = codes.subspan(first, values.size());
          const auto group_absmax =
              std::span(nested_absmax).subspan(first / nested::blocksize, ceil_div(values.size(), nested::blocksize));
          nested::encode(values, offset, group_codes, group_absmax);
          check_finite(group_codes, group_absmax, offset);
          if (keeps_errors_) changes[g] = change_of_error(at + first, values, group_codes, group_absmax, offset);
        });
      });
      for (const ErrorSums& change : changes) late_.sums.add(change);
      sink.write(2, std::as_bytes(std::span(nested_absmax)));
    });
  }

  void check_finite(std::span<const std::uint8_t> codes, std::span<const float> nested_absmax, float offset) const {
    if (!nested::decodes_to_finite(codes, nested_absmax, offset))
      throw Error(Errc::bad_input,
                  "tensor '" + printable(tensor_.name) +
                      "': its weights are so close to the largest fp32 value that double quantization would turn them "
                      "into infinities",
                  Remedy::Kind::no_double_quant);
  }

  // By how much the sums change when absmax a becomes a' (four_bit_error.hpp has the formulas).
  ErrorSums change_of_error(std::uint64_t first, std::span<const float> absmax, std::span<const std::uint8_t> codes,
                            std::span<const float> nested_absmax, float offset) const {
    std::vector<std::byte> room;
    const auto errors =
        scratch_.view(errors_at() + first * sizeof(FourBitError), absmax.size() * sizeof(FourBitError), room);
    return change_of_errors({reinterpret_cast<const FourBitError*>(errors.data()), absmax.size()}, absmax, codes,
                            nested_absmax, offset);
  }

  [[nodiscard]] std::uint64_t errors_at() const { return blocks_ * sizeof(float); }

  const FourBitTables& tables_;
  std::size_t blocksize_;
  bool nested_;
  bool sums_errors_;
  bool keeps_errors_;  // until double quantization is done
  Device* device_;
  TensorInfo tensor_;
  std::uint64_t blocks_;
  Scratch& scratch_;  // the fp32 absmax of the whole tensor, 4 / blocksize bytes per weight; after them the errors
  EncodingError late_;
};

class AbsmaxOfBlocks final : public Quantizer {
 public:
  AbsmaxOfBlocks(const FourBitCodec& codec, const QuantizerOptions& options) : codec_(codec), options_(options) {}

  Chunking chunking(const TensorInfo&, std::uint64_t limit) const override {
    // Pieces of errors are not cut.
    const std::uint64_t blocksize = codec_.blocksize(), unit = limit < tile_weights ? blocksize : tile_weights;
    return {std::max<std::uint64_t>(limit - limit % unit, blocksize), false};
  }

  // The fp32 absmax of every block: double quantization needs all of them before the first can be stored. Its effect on
  // the errors follows from two sums of each block.
  std::uint64_t scratch_bytes(const TensorInfo& tensor) const override {
    const bool keeps_errors = codec_.double_quant() && options_.sums_errors;
    const std::uint64_t each = sizeof(float) + (keeps_errors ? sizeof(FourBitError) : 0);
    return each * ceil_div(tensor.elements(), codec_.blocksize());
  }

  bool uses_device(const TensorInfo& tensor) const override { return DeviceEncoder::takes(tensor.dtype); }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking&, Scratch& scratch) const override {
    return std::make_unique<BlockEncoder>(codec_, options_, tensor, scratch);
  }

 private:
  const FourBitCodec& codec_;
  QuantizerOptions options_;
};

}  // namespace

std::unique_ptr<const Quantizer> make_absmax_blocks_quantizer(const Codec& codec, const QuantizerOptions& options) {
  const auto* const four_bit = dynamic_cast<const FourBitCodec*>(&codec);
  return four_bit == nullptr || four_bit->absmax_choice() != AbsmaxChoice::max
             ? nullptr
             : std::make_unique<AbsmaxOfBlocks>(*four_bit, options);
}

}  // namespace nibble
