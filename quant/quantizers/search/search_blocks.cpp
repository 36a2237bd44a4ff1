// For every block the absmax of least squared error. Double quantization has an offset of 0, not the mean of all absmax
// values, so a nested block is encoded as soon as its 256 blocks are there. Codes are chosen for the absmax as it will
// be read back.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/errors/four_bit_error.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "quant/quantizers/search/codes_around.hpp"
#include "quant/quantizers/search/scale_search.hpp"
#include "quant/quantizers/search/signed_codebook.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

constexpr std::size_t unit_blocks = nested::blocksize;  // encoded at a time

// The bytes of an encoder's scratch: the absmax of each block as it is read back, if it is stored or its spread is
// asked for, and with double quantization the nested absmax and then the codes.
struct Layout {
  std::uint64_t blocks;
  bool nested, sums_errors;

  [[nodiscard]] bool has_absmax() const { return !nested || sums_errors; }
  [[nodiscard]] std::uint64_t absmax(std::uint64_t block) const { return has_absmax() ? block * sizeof(float) : 0; }
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
        tensor_(tensor),
        layout_{ceil_div(tensor.elements(), codec.blocksize()), codec.double_quant(), options.sums_errors},
        scratch_(scratch) {}

  void weigh(ColumnWeights&& columns) override { columns_ = std::move(columns); }

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
    if (layout_.sums_errors)
      scratch_.for_each_piece(0, layout_.absmax(layout_.blocks), [&](std::span<const std::byte> bytes) {
        std::vector<float> magnitudes(bytes.size() / sizeof(float));
        std::memcpy(magnitudes.data(), bytes.data(), bytes.size());
        for (float& value : magnitudes) value = std::abs(value);
        late_.absmax.add(magnitudes);
      });
    const auto pass = [&](std::size_t plane, std::uint64_t begin, std::uint64_t end) {
      scratch_.for_each_piece(begin, end, [&](std::span<const std::byte> bytes) { sink.write(plane, bytes); });
    };
    if (!layout_.nested) return pass(1, 0, layout_.end());
    pass(1, layout_.codes(0), layout_.end());
    pass(2, layout_.nested_absmax(0), layout_.codes(0));
    sink.write(3, std::as_bytes(std::span(signed_codebook)));
    sink.write(4, std::as_bytes(std::span(&nested_offset, 1)));
  }

 private:
  static constexpr float nested_offset = 0;

  // A unit of the tensor, its columns, and its blocks that are not finite.
  struct Unit {
    std::span<const std::byte> weights;
    ColumnsFrom columns;
    std::vector<std::size_t> nonfinite;
  };

  Findings encode_unit(std::uint64_t first, std::span<const std::byte> weights, std::span<std::uint8_t> packed,
                       std::vector<ErrorSums>* errors) {
    std::array<float, unit_blocks> room;
    const std::size_t n = weights.size() / (traits(tensor_.dtype).bits / 8);
    const auto absmax = std::span(room).first(ceil_div(n, codec_.blocksize()));
    Unit unit{weights, {columns_.empty() ? nullptr : &columns_, first}, {}};
    SearchedBlocks blocks(search_, tensor_.dtype, weights, unit.columns, layout_.nested);
    blocks.find(absmax);
    for (std::size_t b = 0; b < absmax.size(); ++b)
      if (std::isnan(absmax[b])) unit.nonfinite.push_back(b);
    for_each_repaired(unit, [&](std::size_t b, std::span<const std::byte> block) {
      SearchedBlocks(search_, DType::f32, block, unit.columns.after(b * codec_.blocksize())).find(absmax.subspan(b, 1));
    });

    const std::uint64_t first_block = first / codec_.blocksize();
    if (layout_.nested) {
      std::array<std::uint8_t, unit_blocks> code_room;
      const auto codes = std::span(code_room).first(absmax.size());
      const float nested_absmax = nest(unit, blocks, absmax, codes);
      scratch_.write(layout_.codes(first_block), std::as_bytes(codes));
      scratch_.write(layout_.nested_absmax(first_block), std::as_bytes(std::span(&nested_absmax, 1)));
    }
    if (layout_.has_absmax()) scratch_.write(layout_.absmax(first_block), std::as_bytes(absmax));

    const std::size_t blocksize = codec_.blocksize();
    encode_four_bit_for(codec_.tables(), tensor_.dtype, weights, blocksize, absmax, packed);
    for_each_repaired(unit, [&](std::size_t b, std::span<const std::byte> block) {
      const auto codes = packed.subspan(b * blocksize / 2, ceil_div(block.size() / sizeof(float), 2));
      encode_four_bit_for(codec_.tables(), DType::f32, block, blocksize, absmax.subspan(b, 1), codes);
    });
    if (errors != nullptr)
      add_four_bit_errors(codec_.tables(), tensor_.dtype, weights, packed, absmax, codec_.blocksize(), *errors);
    return unit.nonfinite.empty() ? Findings() : count_nonfinite(tensor_.dtype, weights, first);
  }

  // Calls f(b, block) for the blocks that are not finite, in fp32, with NaN as 0 and infinities as the largest finite
  // magnitude.
  template <class F> void for_each_repaired(const Unit& unit, F&& f) const {
    const std::size_t block_bytes = codec_.blocksize() * traits(tensor_.dtype).bits / 8;
    std::array<float, tile_weights> room;
    for (const std::size_t b : unit.nonfinite) {
      const std::size_t begin = b * block_bytes, size = std::min(block_bytes, unit.weights.size() - begin);
      const auto block = widen(tensor_.dtype, unit.weights.subspan(begin, size), room);
      const auto finite = repaired(block);
      f(b, std::as_bytes(std::span(finite).first(block.size())));
    }
  }

  // Replaces absmax by what is read back: of the two codes around each, the one that leaves less error; the nearer one,
  // if both leave the same or the block is not searched. Returns the nested absmax.
  float nest(const Unit& unit, SearchedBlocks& blocks, std::span<float> absmax, std::span<std::uint8_t> codes) const {
    float largest = 0;
    for (const float value : absmax) largest = std::max(largest, std::abs(value));
    std::array<float, unit_blocks> room;
    std::array<std::uint8_t, unit_blocks> other_codes;
    const auto others = std::span(room).first(absmax.size());
    for (std::size_t b = 0; b < absmax.size(); ++b) {
      const float v = largest == 0 ? 0.0f : absmax[b] / largest;
      const CodesAround around = codes_.around(v);
      codes[b] = around.nearest;
      other_codes[b] = around.other;
      absmax[b] = value_of(codes[b], largest);
      others[b] = value_of(other_codes[b], largest);
    }
    blocks.take_better(absmax, others);
    for_each_repaired(unit, [&](std::size_t b, std::span<const std::byte> block) {
      SearchedBlocks(search_, DType::f32, block, unit.columns.after(b * codec_.blocksize()))
          .take_better(absmax.subspan(b, 1), others.subspan(b, 1));
    });
    for (std::size_t b = 0; b < absmax.size(); ++b)
      if (absmax[b] != value_of(codes[b], largest)) codes[b] = other_codes[b];
    return largest;
  }

  // As nested::decode().
  static float value_of(std::uint8_t code, float nested_absmax) {
    return signed_codebook[code] * nested_absmax + nested_offset;
  }

  const FourBitCodec& codec_;
  ScaleSearch search_;
  CodesByValue codes_{used_signed_values};
  ColumnWeights columns_;
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
    return Layout{ceil_div(tensor.elements(), codec_.blocksize()), codec_.double_quant(), options_.sums_errors}.end();
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
