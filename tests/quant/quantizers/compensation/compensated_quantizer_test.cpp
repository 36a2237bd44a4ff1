#include "quant/quantizers/compensation/compensated_quantizer.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <utility>

#include "quant/codecs/codecs.hpp"

namespace nibble::compensated_quantizer_test {
namespace {

TEST(CompensatedQuantizer, ColumnsAreThoseOfABlockOrOne) {
  for (const auto& [spec, columns] : std::initializer_list<std::pair<const char*, std::optional<std::size_t>>>{
           {"nf4", 64}, {"nf4:block-size=128", 128}, {"fp4", 64}, {"int8", 1}, {"fp8", std::nullopt}, {"bf16", {}}}) {
    const auto codec = make_codec(spec);
    EXPECT_EQ(compensated_columns(*codec), columns) << spec;
    EXPECT_EQ(make_compensated_quantizer(*codec, {}, nullptr) != nullptr, columns.has_value()) << spec;
  }
}

TEST(CompensatedQuantizer, TakesMatricesOfWholeBlocks) {
  const auto nf4 = make_codec("nf4"), int8 = make_codec("int8"), fp8 = make_codec("fp8");
  const auto can_be = [](const auto& codec, const Shape& shape) {
    return can_be_compensated(*codec, {"w", DType::f32, shape});
  };
  EXPECT_TRUE(can_be(nf4, {3, 128}));
  EXPECT_FALSE(can_be(nf4, {128, 3}));
  EXPECT_FALSE(can_be(nf4, {64, 100}));
  EXPECT_FALSE(can_be(nf4, {128}));
  EXPECT_FALSE(can_be(nf4, {2, 3, 128}));
  EXPECT_TRUE(can_be(int8, {128, 3}));
  EXPECT_FALSE(can_be(fp8, {128, 128}));
}

}  // namespace
}  // namespace nibble::compensated_quantizer_test
