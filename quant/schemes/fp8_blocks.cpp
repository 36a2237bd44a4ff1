// FP8 as DeepSeek-V3's files have it, which transformers calls fine-grained: blocks of 128 x 128 weights, and scales
// that are called inverse because they undo the division. nibble reads it and writes compressed-tensors instead.

#include "quant/schemes/fp8_parts.hpp"

namespace nibble {
namespace {

constexpr std::string_view scale_inv_suffix = "_scale_inv";  // of the weight's name

class Fp8Blocks final : public Scheme {
 public:
  std::string_view quant_method() const noexcept override { return "fp8"; }

  std::optional<StoredTensor> recognize(const Reader& in, std::size_t first, const FindTensor& find) const override {
    return recognize_fp8(in, first, find, scale_inv_suffix, DType::bf16);  // scales are F32, and the models were BF16
  }
  std::vector<std::vector<std::byte>> read_planes(const Reader& in, const Codec& /*codec*/,
                                                  const StoredTensor& tensor) const override {
    return read_fp8_scales(in, tensor);
  }

  bool is_source() const override { return true; }
  std::string undecodable(const Reader& in, std::size_t part, const FindTensor& find) const override {
    return undecodable_fp8(in, part, find, scale_inv_suffix, quant_method());
  }
};

}  // namespace

const Scheme& fp8_blocks_scheme() {
  static const Fp8Blocks scheme;
  return scheme;
}

}  // namespace nibble
