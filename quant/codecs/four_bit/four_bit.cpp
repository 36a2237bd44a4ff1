// Blocks of weights with one absmax each: sizes and decoding.

#include "quant/codecs/four_bit/four_bit.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "nibble/error.hpp"
#include "nibble/nested.hpp"
#include "quant/codecs/codecs.hpp"

namespace nibble {
namespace {

template <class T> std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The absmax values of a tensor, as stored. With double quantization they are decoded on demand, which takes a quarter
// of the memory and next to no time.
struct StoredAbsmax {
  std::vector<float> plain;
  std::vector<std::uint8_t> codes;
  std::vector<float> nested_absmax;
  std::vector<float> codebook;
  float offset = 0;

  // Of blocks [first, first + n), n at most max_blocks; `room` may take them.
  static constexpr std::size_t max_blocks = 1024;
  std::span<const float> read(std::size_t first, std::size_t n, std::span<float> room) const {
    if (codes.empty()) return std::span(plain).subspan(first, n);
    nested::decode_slice(first, codes, nested_absmax, std::span<const float, 256>(codebook), offset, room.first(n));
    return room.first(n);
  }
};

class FourBitDecoder final : public Decoder {
 public:
  FourBitDecoder(const FourBitTables& tables, std::size_t blocksize, StoredAbsmax absmax)
      : tables_(tables), blocksize_(blocksize), absmax_(std::move(absmax)) {}

  void decode(std::uint64_t first, std::span<const std::byte> codes, std::span<float> out) const override {
    for_each_piece(first, codes, out.size(), [&](std::size_t i, std::size_t n, auto packed, auto absmax) {
      decode_four_bit(tables_, packed, absmax, blocksize_, out.subspan(i, n));
    });
  }

  void decode(std::uint64_t first, std::span<const std::byte> codes, DType to,
              std::span<std::byte> out) const override {
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(out.data()) % alignof(std::uint16_t) == 0;
    if ((to != DType::bf16 && to != DType::f16) || !is_aligned) return Decoder::decode(first, codes, to, out);
    const std::span<std::uint16_t> weights(reinterpret_cast<std::uint16_t*>(out.data()), out.size() / 2);
    for_each_piece(first, codes, weights.size(), [&](std::size_t i, std::size_t n, auto packed, auto absmax) {
      decode_four_bit(tables_, packed, absmax, blocksize_, to, weights.subspan(i, n));
    });
  }

  [[nodiscard]] std::uint64_t step() const noexcept override { return blocksize_; }

 private:
  // Calls f(i, n, packed, absmax) for weights [i, i + n) of those asked for.
  template <class F>
  void for_each_piece(std::uint64_t first, std::span<const std::byte> codes, std::size_t weights, F&& f) const {
    const std::span<const std::uint8_t> packed(reinterpret_cast<const std::uint8_t*>(codes.data()), codes.size());
    std::array<float, StoredAbsmax::max_blocks> room;
    const std::size_t piece = blocksize_ * room.size();
    for (std::size_t i = 0; i < weights; i += piece) {
      const std::size_t n = std::min(piece, weights - i);
      f(i, n, packed.subspan(i / 2, ceil_div(n, 2)),
        absmax_.read((first + i) / blocksize_, ceil_div(n, blocksize_), room));
    }
  }

  std::uint64_t code_bytes(std::uint64_t n) const override { return ceil_div(n, 2); }

  const FourBitTables& tables_;
  std::size_t blocksize_;
  StoredAbsmax absmax_;
};

}  // namespace

std::vector<Plane> FourBitCodec::planes(const TensorInfo& tensor) const {
  const std::uint64_t n = tensor.elements(), blocks = ceil_div(n, blocksize_);
  std::vector<Plane> planes{{PlaneRole::codes, DType::u8, {ceil_div(n, 2), 1}},
                            {PlaneRole::absmax, double_quant_ ? DType::u8 : DType::f32, {blocks}}};
  if (double_quant_)
    planes.insert(planes.end(), {{PlaneRole::nested_absmax, DType::f32, {ceil_div(blocks, nested::blocksize)}},
                                 {PlaneRole::nested_codebook, DType::f32, {nested::codebook.size()}},
                                 {PlaneRole::nested_offset, DType::f32, {1}}});
  return planes;
}

// The last code of an odd number has a byte to itself.
std::uint64_t FourBitCodec::code_bytes(const TensorInfo&, std::uint64_t n) const { return ceil_div(n, 2); }

std::unique_ptr<Decoder> FourBitCodec::decoder(const TensorInfo& tensor,
                                               std::span<const std::span<const std::byte>> rest) const {
  check_planes(*this, tensor, rest);
  StoredAbsmax absmax;
  if (double_quant_)
    absmax = {{},
              values_of<std::uint8_t>(rest[0]),
              values_of<float>(rest[1]),
              values_of<float>(rest[2]),
              values_of<float>(rest[3]).front()};
  else
    absmax.plain = values_of<float>(rest[0]);
  return std::make_unique<FourBitDecoder>(tables_, blocksize_, std::move(absmax));
}

double FourBitCodec::normal_sqnr_db(const TensorInfo&) const {
  return normal_sqnr_.at(static_cast<std::size_t>(absmax_choice_))
      .at(static_cast<std::size_t>(std::countr_zero(blocksize_ / min_blocksize)));
}

CodecSpec four_bit_spec(std::string_view name, std::uint64_t blocksize, bool double_quant) {
  return CodecSpec(name)
      .with(blocksize_option, std::to_string(blocksize))
      .with(double_quant_option, yes_or_no[double_quant ? 0 : 1]);
}

void check_four_bit_sizes(std::size_t weights, std::size_t blocksize, std::size_t packed, std::size_t absmax) {
  if (!std::has_single_bit(blocksize) || blocksize < min_blocksize || blocksize > FourBitTables::max_blocksize)
    throw Error(Errc::usage, "blocksize is " + std::to_string(blocksize) + ", not one of 32, 64, ..., 4096");
  if (packed != weights / 2 + weights % 2 || absmax != weights / blocksize + (weights % blocksize != 0))
    throw Error(Errc::usage, std::to_string(weights) + " weights in blocks of " + std::to_string(blocksize) +
                                 " do not fit " + std::to_string(packed) + " packed bytes and " +
                                 std::to_string(absmax) + " absmax values");
}

}  // namespace nibble
