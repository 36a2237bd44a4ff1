#include <array>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "nibble/error.hpp"
#include "quant/codecs/codecs.hpp"

namespace nibble {
namespace {

// Any tensor, byte for byte; its weights are not looked at.
class Keep final : public Codec {
 public:
  explicit Keep(const CodecSpec& spec) : Codec(spec) {}

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
    return make_plain_decoder(tensor.dtype);
  }
};

constexpr std::array<std::string_view, 1> keep_synonyms{"none"};

}  // namespace

extern const RegisteredCodec keep_codec;
const RegisteredCodec keep_codec{{"keep", "The tensor as it is, of any type", {}}, &make_of_spec<Keep>, keep_synonyms};

}  // namespace nibble
