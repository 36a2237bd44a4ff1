// What files of DeepSeek-V3 and of compressed-tensors have in common. Each is tested as a whole in
// fp8_blocks_test.cpp and compressed_tensors_test.cpp.

#include "quant/schemes/fp8_parts.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/quant/schemes/scheme_support.hpp"

namespace nibble::fp8_parts_test {
namespace {

using test::MemoryReader;

// With a suffix that no other scheme has.
class Parts final : public Fp8Parts {
 public:
  explicit Parts(DType otherwise = DType::f32) : Fp8Parts("_by", otherwise, suffixes) {}
  static constexpr std::array<std::string_view, 2> suffixes{".in_by", ".out_by"};
  [[nodiscard]] std::string_view quant_method() const noexcept override { return "parts"; }
};

MemoryReader file(DType codes, const Shape& shape, DType scales, const Shape& scale_shape) {
  MemoryReader in;
  in.add_normal("a.weight", codes, shape);
  in.add_normal("a.weight_by", scales, scale_shape);
  return in;
}

// As StoredWeights looks for parts.
FindTensor finder(const MemoryReader& in) {
  return [&in](std::string_view name) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < in.tensors().size(); ++i)
      if (in.tensors().name(i) == name) return i;
    return std::nullopt;
  };
}

std::optional<StoredTensor> recognized(const MemoryReader& in, DType otherwise = DType::f32) {
  return Parts(otherwise).recognize(in, 0, finder(in));
}

// F32 scales do not tell: config.json does, and where that does not, the scheme.
TEST(Fp8Parts, TheTypeBeforeIsThatOfTheScalesOrOfTheModel) {
  const auto before = [](DType scales, const char* dtype, DType otherwise) {
    MemoryReader in = file(DType::f8_e4m3, {3, 4}, scales, {1});
    if (dtype != nullptr) in.set_dtype(dtype);
    const auto found = recognized(in, otherwise);
    EXPECT_TRUE(found);
    return found->info.dtype;
  };
  EXPECT_EQ(before(DType::f32, "float16", DType::f32), DType::f16);
  EXPECT_EQ(before(DType::f32, "bfloat16", DType::f32), DType::bf16);
  EXPECT_EQ(before(DType::f32, "float32", DType::bf16), DType::f32);
  EXPECT_EQ(before(DType::f32, "float8_e4m3fn", DType::bf16), DType::bf16);
  EXPECT_EQ(before(DType::f32, "", DType::f32), DType::f32);
  EXPECT_EQ(before(DType::f32, nullptr, DType::bf16), DType::bf16);
  EXPECT_EQ(before(DType::f16, "bfloat16", DType::f32), DType::f16);
  EXPECT_EQ(before(DType::bf16, nullptr, DType::f32), DType::bf16);
}

// Decoded to fp16, they would be infinite, and no --on-overflow would be asked.
TEST(Fp8Parts, WeightsBeyondFp16WereNotFp16) {
  const auto before = [](DType codes, DType scales, float largest) {
    MemoryReader in;
    in.add({"a.weight", codes, {2, 4}}, test::Bytes(8, std::byte{0x38}));
    in.add({"a.weight_by", scales, {2, 1}}, test::stored_as(scales, std::vector<float>{0.5f, largest}));
    in.set_dtype("float16");
    const auto found = recognized(in);
    const auto codec = make_codec(found->codec);
    const auto planes = Parts().read_planes(in, *codec, *found);
    const std::vector<std::span<const std::byte>> rest(planes.begin(), planes.end());
    std::vector<float> weights(8);
    codec->decoder(found->info, rest)->decode(0, in.bytes(0), weights);
    EXPECT_EQ(weights[0], codes == DType::f8_e4m3 ? 0.5f : 0.25f);
    return found->info.dtype;
  };
  for (const DType scales : {DType::f32, DType::f16}) {
    EXPECT_EQ(before(DType::f8_e4m3, scales, 146.0f), DType::f16);
    EXPECT_EQ(before(DType::f8_e4m3, scales, 146.25f), DType::f32);  // 448 * 146.25 = 65520
    EXPECT_EQ(before(DType::f8_e4m3, scales, -1000), DType::f32);
    EXPECT_EQ(before(DType::f8_e5m2, scales, 1), DType::f16);
    EXPECT_EQ(before(DType::f8_e5m2, scales, 2), DType::f32);
    EXPECT_EQ(before(DType::f8_e5m2, scales, std::numeric_limits<float>::quiet_NaN()), DType::f16);
  }
  EXPECT_EQ(before(DType::f8_e4m3, DType::bf16, 1000), DType::bf16);
}

TEST(Fp8Parts, CodesThatAreNoMatrixOrHaveNoScalesAreLeft) {
  EXPECT_TRUE(recognized(file(DType::f8_e5m2, {3, 4}, DType::f32, {1})));
  EXPECT_FALSE(recognized(file(DType::f8_e5m2, {12}, DType::f32, {1})));
  EXPECT_FALSE(recognized(file(DType::f8_e5m2, {3, 4, 5}, DType::f32, {1})));
  EXPECT_FALSE(recognized(file(DType::u8, {3, 4}, DType::f32, {1})));
  EXPECT_FALSE(recognized(file(DType::f8_e5m2, {3, 4}, DType::f64, {1})));
  MemoryReader alone;
  alone.add_normal("a.weight", DType::f8_e5m2, {3, 4});
  EXPECT_FALSE(recognized(alone));
}

// A matrix of one row, or of one tile, fits several: the fewest scales are asked for first.
TEST(Fp8Parts, ShapesThatFitSeveralKindsOfScales) {
  const auto codec = [](const Shape& codes, const Shape& scales) {
    const auto found = recognized(file(DType::f8_e4m3, codes, DType::f32, scales));
    return found ? std::string(found->codec.text()) : "none";
  };
  EXPECT_EQ(codec({1, 64}, {1}), "fp8:scales=tensor");
  EXPECT_EQ(codec({1, 64}, {1, 1}), "fp8");
  EXPECT_EQ(codec({100, 64}, {1, 1}), "fp8:scales=block");
  EXPECT_EQ(codec({128, 129}, {1, 2}), "fp8:scales=block");
  // Groups of a row, and not blocks of 128 x 128.
  EXPECT_EQ(codec({1, 64}, {1, 4}), "none");
}

TEST(Fp8Parts, PlanesAreTheScalesAlone) {
  MemoryReader in = file(DType::f8_e4m3, {3, 4}, DType::bf16, {3, 1});
  in.add_normal("a.in_by", DType::f32, {1});
  in.add_normal("a.out_by", DType::f32, {2});  // not one number for all outputs
  in.add_normal("a.k_scale", DType::f32, {1});
  const auto found = recognized(in);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->parts, (std::vector<std::size_t>{0, 1, 2}));
  const auto planes = Parts().read_planes(in, *make_codec(found->codec), *found);
  ASSERT_EQ(planes.size(), 1U);
  EXPECT_EQ(planes[0], in.bytes(1));
}

// Scales of the KV cache belong to a module without weights of its own.
TEST(Fp8Parts, NumbersForActivationsAreLeftOver) {
  MemoryReader in;
  for (const char* const name : {"a.in_by", "b.a.out_by", "attn.k_scale", "attn.v_scale", "attn.q_scale"})
    in.add_normal(name, DType::bf16, {1});
  in.add_normal("a.k_scales", DType::bf16, {1});
  in.add_normal("b.k_scale", DType::bf16, {2});
  in.add_normal("k_scale", DType::bf16, {1});
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(Parts().is_left_over(in, i), i < 5) << in.tensors().name(i);
}

// What lies beside codes of this kind, or in a model that says to be of it, cannot be decoded; the rest may be.
TEST(Fp8Parts, WhatItCannotDecode) {
  const auto says = [](const MemoryReader& in) {
    const std::string text = Parts().undecodable(in, 0, finder(in));
    return text.substr(0, text.find(" in a form"));
  };
  const std::string why = ": quantized already by parts";
  EXPECT_EQ(says(file(DType::i8, {3, 4}, DType::f32, {3, 1})), "I8 3 x 4" + why);
  EXPECT_EQ(says(file(DType::i8, {12}, DType::f32, {1})), "I8 12" + why);
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::boolean})
    EXPECT_EQ(says(file(type, {3, 4}, DType::f32, {3, 1})), "") << traits(type).name;
  MemoryReader packed;
  packed.add_normal("a.weight_packed", DType::i32, {3, 4});
  EXPECT_EQ(says(packed), "");
  packed.add_normal("a.weight_by", DType::f32, {3, 1});
  EXPECT_EQ(says(packed), "I32 3 x 4" + why);
  // A declared model: its matrices, but not its vectors.
  MemoryReader declared;
  declared.add_normal("a.weight", DType::i8, {3, 4});
  EXPECT_EQ(says(declared), "");
  declared.set_quant_method("parts");
  EXPECT_EQ(says(declared), "I8 3 x 4" + why);
  // FP8 of any shape means nothing without its scale.
  for (const Shape& shape : {Shape{12}, Shape{3, 4}, Shape{2, 3, 4}}) {
    MemoryReader alone;
    alone.add_normal("a.weight", DType::f8_e4m3, shape);
    EXPECT_EQ(says(alone), "");
    alone.set_quant_method("parts");
    EXPECT_EQ(says(alone), "F8_E4M3 " + to_string(shape) + ", but its scale 'a.weight_by' is missing");
  }
  MemoryReader experts = file(DType::f8_e4m3, {2, 3, 4}, DType::f32, {2, 3, 1});
  EXPECT_EQ(says(experts), "F8_E4M3 2 x 3 x 4" + why);
  MemoryReader steps;
  steps.add_normal("steps", DType::i32, {4});
  steps.set_quant_method("parts");
  EXPECT_EQ(says(steps), "");
}

// compressed-tensors subtracts a zero point before it multiplies, and a g_idx says which group a column belongs to.
TEST(Fp8Parts, CodesThatAreNotMultiplesOfTheirScalesAreNotDecoded) {
  for (const char* const name : {"a.weight_zero_point", "a.weight_g_idx"}) {
    MemoryReader in = file(DType::f8_e4m3, {3, 4}, DType::bf16, {3, 1});
    in.add_normal(name, DType::bf16, {3, 1});
    EXPECT_FALSE(recognized(in)) << name;
    EXPECT_EQ(Parts().undecodable(in, 0, finder(in)),
              "F8_E4M3 3 x 4, but '" + std::string(name) +
                  "' lies beside it; nibble takes FP8 whose weights are code * scale");
    MemoryReader other = file(DType::f8_e4m3, {3, 4}, DType::bf16, {3, 1});
    other.add_normal("b" + std::string(name), DType::bf16, {3, 1});
    EXPECT_TRUE(recognized(other)) << name;
  }
}

// Kept, it would be taken for a weight.
TEST(Fp8Parts, AScaleIsOfNoUseWithoutItsCodes) {
  const auto says = [](const MemoryReader& in) { return Parts().undecodable(in, 0, finder(in)); };
  MemoryReader alone;
  alone.add_normal("a.weight_by", DType::f32, {1});
  EXPECT_EQ(says(alone), "");
  alone.set_quant_method("parts");
  EXPECT_EQ(says(alone), "a scale, but 'a.weight' is missing");
  alone.add_normal("a.weight", DType::bf16, {3, 4});
  EXPECT_EQ(says(alone), "a scale, but 'a.weight' is not in FP8");
  MemoryReader coded;  // the codes have their own message
  coded.add_normal("a.weight_by", DType::f32, {1});
  coded.add_normal("a.weight", DType::i8, {3, 4});
  coded.set_quant_method("parts");
  EXPECT_EQ(says(coded), "");
  MemoryReader other;
  other.add_normal("step_by", DType::f32, {1});  // not the scale of a weight
  other.set_quant_method("parts");
  EXPECT_EQ(says(other), "");
}

}  // namespace
}  // namespace nibble::fp8_parts_test
