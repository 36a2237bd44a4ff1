#include <gtest/gtest.h>

#include "quant/quantizers/quantizer.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::quantizers_registry_test {
namespace {

// A codec of a kind that no quantizer knows.
class Unknown final : public Codec {
 public:
  Unknown() : Codec("int8") {}
  Granularity granularity() const noexcept override { return Granularity::row; }
  std::vector<Plane> planes(const TensorInfo& tensor) const override {
    return {{PlaneRole::codes, DType::u8, tensor.shape}};
  }
  std::uint64_t code_bytes(const TensorInfo&, std::uint64_t n) const override { return n; }
  std::unique_ptr<Decoder> decoder(const TensorInfo&, std::span<const std::span<const std::byte>>) const override {
    return nullptr;
  }
};

TEST(Quantizers, EveryRegisteredCodecHasOne) {
  for (const std::string_view name : codec_names()) EXPECT_NE(make_quantizer(*make_codec(name)), nullptr) << name;
}

TEST(Quantizers, AnUnknownKindOfCodecHasNone) {
  EXPECT_EQ(test::error_of([] { (void)make_quantizer(Unknown()); }, Errc::usage), "codec int8 has no quantizer");
}

}  // namespace
}  // namespace nibble::quantizers_registry_test
