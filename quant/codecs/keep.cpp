#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>

#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

class KeepDecoder final : public Decoder {
 public:
  explicit KeepDecoder(DType dtype) : dtype_(dtype) {}

  using Decoder::decode;
  void decode(std::uint64_t, std::span<const std::byte> codes, std::span<float> out) const override {
    for_each_tile(dtype_, codes, [&](std::size_t i, std::span<const float> weights) {
      std::copy(weights.begin(), weights.end(), out.begin() + static_cast<std::ptrdiff_t>(i));
    });
  }

 private:
  std::uint64_t code_bytes(std::uint64_t n) const override { return byte_count(dtype_, n); }

  DType dtype_;
};

// Any tensor, byte for byte; its weights are not looked at.
class Keep final : public Codec {
 public:
  std::string_view name() const noexcept override { return "keep"; }
  std::string_view summary() const noexcept override { return "The tensor as it is, of any type"; }
  bool accepts(const TensorInfo&) const override { return true; }
  double normal_sqnr_db(const TensorInfo&) const override { return std::numeric_limits<double>::infinity(); }
  std::vector<Plane> planes(const TensorInfo& tensor) const override {
    return {{PlaneRole::codes, tensor.dtype, tensor.shape}};
  }
  std::uint64_t code_bytes(const TensorInfo& tensor, std::uint64_t n) const override {
    return byte_count(tensor.dtype, n);
  }
  std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                   std::span<const std::span<const std::byte>>) const override {
    if (!is_weight_type(tensor.dtype))
      throw Error(Errc::usage, "tensor '" + printable(tensor.name) + "': type " +
                                   std::string(traits(tensor.dtype).name) + " cannot be decoded to fp32");
    return std::make_unique<KeepDecoder>(tensor.dtype);
  }
};

}  // namespace

std::unique_ptr<const Codec> make_keep(const CodecOptions&) { return std::make_unique<Keep>(); }

}  // namespace nibble
