// For every block the absmax of least squared error. Double quantization does not need the mean of all of them: they
// have both signs, so its offset is 0, and a nested block is encoded as soon as its 256 blocks are there. Codes are
// chosen for the absmax as it will be read back.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/errors/four_bit_error.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "quant/quantizers/search/scale_search.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

constexpr std::size_t unit_blocks = nested::blocksize;  // encoded at a time

// The values are (x + 7 |x| x) / 8 for x = -1, -126/127, ..., 1: of these polynomials, the one with which the matrices of
// a real model lose least. Most values are in two humps, one of each sign, at some distance from 0; but a few that are
// much larger must not leave the others with too few codes. Code 255 is a second 1, and is not used.
constexpr std::array<float, 256> nested_codebook = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int x = code < 255 ? code - 127 : 127, magnitude = x < 0 ? -x : x;
    values[static_cast<std::size_t>(code)] = static_cast<float>(x * (127 + 7 * magnitude)) / (8 * 127 * 127);
  }
  return values;
}();
static_assert(nested_codebook[nested::code_of_zero] == 0);

// NaN as 0 and infinities as the largest finite magnitude of their block.
std::vector<float> finite_weights(DType source, std::span<const std::byte> weights, std::size_t blocksize) {
  std::vector<float> finite(weights.size() / (traits(source).bits / 8));
  for_each_tile(source, weights, [&](std::size_t i, std::span<const float> tile) {
    for (std::size_t first = 0; first < tile.size(); first += blocksize) {
      const auto block = tile.subspan(first, std::min(blocksize, tile.size() - first));
      float largest = 0;
      for (const float weight : block)
        if (std::isfinite(weight)) largest = std::max(largest, std::abs(weight));
      std::ranges::transform(block, finite.begin() + static_cast<std::ptrdiff_t>(i + first), [&](float weight) {
        return std::isnan(weight) ? 0 : std::clamp(weight, -largest, largest);
      });
    }
  });
  return finite;
}

// The bytes of an encoder's scratch: the absmax of each block as it is read back and, with double quantization, its
// code and the nested absmax of all whole nested blocks.
struct Layout {
  std::uint64_t blocks;
  bool nested;

  [[nodiscard]] std::uint64_t absmax(std::uint64_t block) const { return block * sizeof(float); }
  [[nodiscard]] std::uint64_t nested_absmax(std::uint64_t block) const {
    return absmax(blocks) + block / nested::blocksize * sizeof(float);
  }
  [[nodiscard]] std::uint64_t codes(std::uint64_t block) const {
    return absmax(blocks) + ceil_div(blocks, nested::blocksize) * sizeof(float) + block;
  }
  [[nodiscard]] std::uint64_t end() const { return nested ? codes(blocks) : absmax(blocks); }
};

class SearchEncoder final : public Encoder {
 public:
  SearchEncoder(const FourBitCodec& codec, const QuantizerOptions& options, const TensorInfo& tensor, Scratch& scratch)
      : codec_(codec),
        search_(codec.tables(), codec.blocksize(), codec.absmax_choice()),
        sums_errors_(options.sums_errors),
        tensor_(tensor),
        layout_{ceil_div(tensor.elements(), codec.blocksize()), codec.double_quant()},
        scratch_(scratch) {}

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> codes,
                  std::vector<ErrorSums>* errors) override {
    const std::size_t size = traits(tensor_.dtype).bits / 8, n = weights.size() / size;
    const std::span packed(reinterpret_cast<std::uint8_t*>(codes.data()), codes.size());
    Findings findings;
    for (std::size_t unit = unit_blocks * codec_.blocksize(), i = 0; i < n; i += unit) {
      const std::size_t count = std::min(unit, n - i);
      findings.add(encode_unit(first + i, weights.subspan(i * size, count * size),
                               packed.subspan(i / 2, ceil_div(count, 2)), errors));
    }
    return findings;
  }

  EncodingError late_error() const override { return late_; }

  void finish(PlaneSink& sink) override {
    if (sums_errors_)
      for_each_piece(0, layout_.absmax(layout_.blocks), [&](std::span<const std::byte> bytes) {
        std::vector<float> magnitudes(bytes.size() / sizeof(float));
        std::memcpy(magnitudes.data(), bytes.data(), bytes.size());
        for (float& value : magnitudes) value = std::abs(value);
        late_.absmax.add(magnitudes);
      });
    const auto pass = [&](std::size_t plane, std::uint64_t begin, std::uint64_t end) {
      for_each_piece(begin, end, [&](std::span<const std::byte> bytes) { sink.write(plane, bytes); });
    };
    if (!layout_.nested) return pass(1, 0, layout_.end());
    pass(1, layout_.codes(0), layout_.end());
    pass(2, layout_.nested_absmax(0), layout_.codes(0));
    sink.write(3, std::as_bytes(std::span(nested_codebook)));
    sink.write(4, std::as_bytes(std::span(&nested_offset, 1)));
  }

 private:
  static constexpr float nested_offset = 0;

  Findings encode_unit(std::uint64_t first, std::span<const std::byte> weights, std::span<std::uint8_t> packed,
                       std::vector<ErrorSums>* errors) {
    std::array<float, unit_blocks> room;
    const std::size_t n = weights.size() / (traits(tensor_.dtype).bits / 8);
    const auto absmax = std::span(room).first(ceil_div(n, codec_.blocksize()));
    Findings findings;
    if (search_.find(tensor_.dtype, weights, absmax)) {
      encode_found(first, tensor_.dtype, weights, absmax, packed);
    } else {
      findings = count_nonfinite(tensor_.dtype, weights, first);
      const std::vector<float> finite = finite_weights(tensor_.dtype, weights, codec_.blocksize());
      const auto bytes = std::as_bytes(std::span(finite));
      (void)search_.find(DType::f32, bytes, absmax);
      encode_found(first, DType::f32, bytes, absmax, packed);
    }
    scratch_.write(layout_.absmax(first / codec_.blocksize()), std::as_bytes(absmax));
    if (errors != nullptr) sum_errors(weights, packed, absmax, *errors);
    return findings;
  }

  // Replaces absmax by what is read back, if it is double-quantized, and then encodes.
  void encode_found(std::uint64_t first, DType dtype, std::span<const std::byte> weights, std::span<float> absmax,
                    std::span<std::uint8_t> packed) {
    if (layout_.nested) {
      std::array<std::uint8_t, unit_blocks> room;
      const auto codes = std::span(room).first(absmax.size());
      const float nested_absmax = nest(dtype, weights, absmax, codes);
      const std::uint64_t block = first / codec_.blocksize();
      scratch_.write(layout_.codes(block), std::as_bytes(codes));
      scratch_.write(layout_.nested_absmax(block), std::as_bytes(std::span(&nested_absmax, 1)));
    }
    search_.encode(dtype, weights, absmax, packed);
  }

  // Of the two codes around an absmax, takes the one with the smaller error.
  float nest(DType dtype, std::span<const std::byte> weights, std::span<float> absmax, std::span<std::uint8_t> codes) {
    float largest = 0;
    for (const float value : absmax) largest = std::max(largest, std::abs(value));
    std::array<float, unit_blocks> room, lower_gains, upper_gains;
    const auto value_of = [&](std::size_t code) { return nested_codebook[code] * largest + nested_offset; };
    for (std::size_t b = 0; b < absmax.size(); ++b) {
      const float v = largest == 0 ? 0.0f : absmax[b] / largest;
      const auto above = std::ranges::upper_bound(nested_codebook, v) - nested_codebook.begin();
      codes[b] = static_cast<std::uint8_t>(std::clamp<std::ptrdiff_t>(above - 1, 0, 253));
      room[b] = value_of(codes[b]);
    }
    const std::size_t n = absmax.size();
    search_.gains(dtype, weights, std::span(room).first(n), std::span(lower_gains).first(n));
    for (std::size_t b = 0; b < n; ++b) room[b] = value_of(codes[b] + std::size_t{1});
    search_.gains(dtype, weights, std::span(room).first(n), std::span(upper_gains).first(n));
    for (std::size_t b = 0; b < n; ++b) {
      if (absmax[b] != 0 && upper_gains[b] > lower_gains[b]) ++codes[b];
      absmax[b] = value_of(codes[b]);
    }
    return largest;
  }

  void sum_errors(std::span<const std::byte> weights, std::span<const std::uint8_t> packed,
                  std::span<const float> absmax, std::vector<ErrorSums>& errors) const {
    const std::size_t size = traits(tensor_.dtype).bits / 8, n = weights.size() / size, blocksize = codec_.blocksize();
    alignas(64) std::array<float, tile_weights> room;
    for (std::size_t i = 0; i < n; i += tile_weights) {
      const std::size_t count = std::min(tile_weights, n - i);
      const auto stored = weights.subspan(i * size, count * size);
      const bool is_f64 = tensor_.dtype == DType::f64;
      const auto tile = is_f64 ? std::as_bytes(widen(DType::f64, stored, room)) : stored;
      sum_four_bit_errors(
          codec_.tables(), is_f64 ? DType::f32 : tensor_.dtype, tile, packed.subspan(i / 2, ceil_div(count, 2)),
          absmax.subspan(i / blocksize, ceil_div(count, blocksize)), blocksize, {}, errors.emplace_back());
    }
  }

  template <class F> void for_each_piece(std::uint64_t begin, std::uint64_t end, F&& f) const {
    constexpr std::uint64_t piece = std::uint64_t{1} << 18;
    std::vector<std::byte> room;
    for (std::uint64_t at = begin; at < end; at += piece)
      f(scratch_.view(at, static_cast<std::size_t>(std::min(end - at, piece)), room));
  }

  const FourBitCodec& codec_;
  ScaleSearch search_;
  bool sums_errors_;
  TensorInfo tensor_;
  Layout layout_;
  Scratch& scratch_;
  EncodingError late_;
};

class SearchOfBlocks final : public Quantizer {
 public:
  SearchOfBlocks(const FourBitCodec& codec, const QuantizerOptions& options) : codec_(codec), options_(options) {}

  Chunking chunking(const TensorInfo&, std::uint64_t limit) const override {
    // Whole nested blocks; pieces of errors are not cut either.
    const std::uint64_t blocksize = codec_.blocksize();
    const std::uint64_t unit = codec_.double_quant()  ? nested::blocksize * blocksize
                               : limit < tile_weights ? blocksize
                                                      : tile_weights;
    return {std::max(limit - limit % unit, unit), false};
  }

  std::uint64_t scratch_bytes(const TensorInfo& tensor) const override {
    return Layout{ceil_div(tensor.elements(), codec_.blocksize()), codec_.double_quant()}.end();
  }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking&, Scratch& scratch) const override {
    return std::make_unique<SearchEncoder>(codec_, options_, tensor, scratch);
  }

 private:
  const FourBitCodec& codec_;
  QuantizerOptions options_;
};

}  // namespace

std::unique_ptr<const Quantizer> make_search_blocks_quantizer(const Codec& codec, const QuantizerOptions& options) {
  const auto* const four_bit = dynamic_cast<const FourBitCodec*>(&codec);
  return four_bit == nullptr || four_bit->absmax_choice() == AbsmaxChoice::max
             ? nullptr
             : std::make_unique<SearchOfBlocks>(*four_bit, options);
}

}  // namespace nibble
