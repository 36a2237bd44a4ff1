#include "quant/quantizers/quantizer.hpp"

#include <algorithm>

namespace nibble {
namespace {

// Byte for byte.
class KeepEncoder final : public Encoder {
 public:
  Findings encode(std::uint64_t, std::span<const std::byte> weights, std::span<std::byte> codes,
                  std::vector<ErrorSums>* /*errors*/) override {
    std::copy(weights.begin(), weights.end(), codes.begin());
    return {};
  }
};

class Keeper final : public Quantizer {
 public:
  Chunking chunking(const TensorInfo&, std::uint64_t limit) const override {
    return {std::max<std::uint64_t>(limit - limit % 8, 8), false};  // whole bytes for 4 and 6 bits too
  }
  std::unique_ptr<Encoder> encoder(const TensorInfo&, const Chunking&, Scratch&) const override {
    return std::make_unique<KeepEncoder>();
  }
};

}  // namespace

std::unique_ptr<const Quantizer> make_keep_quantizer(const Codec& codec, const QuantizerOptions& /*options*/) {
  return codec.quantizes() || codec.cast_type() ? nullptr : std::make_unique<Keeper>();
}

}  // namespace nibble
