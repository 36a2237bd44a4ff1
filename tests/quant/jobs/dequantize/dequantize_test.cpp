#include "nibble/dequantize.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/nf4.hpp"
#include "quant/jobs/convert/convert.hpp"
#include "quant/jobs/plan/plan.hpp"
#include "quant/stream/conversion_memory.hpp"
#include "tests/quant/schemes/scheme_support.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::dequantize_test {
namespace {

using test::Bytes;
using test::error_of;
using test::MemoryReader;
using test::MemoryWriter;
using test::recipe;

constexpr std::string_view types[]{"fp32", "bf16", "fp16"};
constexpr const char* quantized_by[]{"nf4",
                                     "nf4:double-quant=no,block-size=128",
                                     "fp4:block-size=32",
                                     "int8",
                                     "fp8",
                                     "fp8:scales=tensor",
                                     "fp8:scales=block"};

DType type_of(std::string_view codec) { return make_codec(codec)->cast_type().value(); }

struct Dequantized {
  std::map<std::string, Bytes> parts;
  Report report;
  Finish finish;
};

Dequantized dequantize(const MemoryReader& in, const Recipe& recipe, const Resources& resources = {}) {
  MemoryWriter out;
  Progress progress;
  Report report = convert(in, make_plan(in, recipe), out, resources, progress);
  return {out.parts(), std::move(report), out.finish().value()};
}
std::map<std::string, Bytes> parts_of(const MemoryReader& in, std::string_view to) {
  return dequantize(in, dequantization(to)).parts;
}

// The parts of a matrix of normal weights of this type, and what they stand for in fp32.
struct Coded {
  Coded(const CodecSpec& spec, const TensorInfo& tensor, float scale = 1) {
    const auto codec = make_codec(spec);
    const Bytes weights = test::stored_as(tensor.dtype, test::normal_weights(tensor.elements(), 1, scale));
    const test::Encoded encoded = test::encode(*codec, tensor, weights);
    parts = test::stored(*codec, tensor, encoded);
    decoded = test::decode(*codec, tensor, encoded);
  }
  test::StoredParts parts;
  std::vector<float> decoded;
};

const TensorInfo layer{"model.layers.0.self_attn.q_proj.weight", DType::bf16, {192, 195}};

TEST(Dequantize, RoundsTheProductOnceToAnyType) {
  for (const char* const codec : quantized_by) {
    const Coded coded(codec, layer);
    const MemoryReader in = test::reader_of(coded.parts);
    for (const std::string_view to : types) {
      const std::map<std::string, Bytes> expected{{layer.name, test::stored_as(type_of(to), coded.decoded)}};
      EXPECT_EQ(parts_of(in, to), expected) << codec << " to " << to;
      EXPECT_EQ(dequantize(in, dequantization(to), {3, 29'000'000}).parts, expected) << codec << " to " << to;
    }
  }
}

// What bitsandbytes wrote (tests/golden), by the formula itself.
TEST(Dequantize, IsTheFormulaOfBitsandbytes) {
  const test::Golden golden;
  for (const std::string name : {"nf4.float32", "nf4.bfloat16", "nf4.32", "nf4.4096", "nf4.edges"}) {
    MemoryReader in;
    for (const char* const part : {"", ".absmax", ".quant_map", ".quant_state.bitsandbytes__nf4"})
      in.add(golden.info(name + part), golden.bytes(name + part));
    const auto absmax = test::values_of<float>(golden.bytes(name + ".absmax"));
    const std::uint64_t n = golden.info(name + ".input").elements();
    const std::uint64_t blocksize = name == "nf4.32" ? 32 : name == "nf4.4096" ? 4096 : 64;
    std::vector<float> weights;
    for (std::uint64_t i = 0; i < n; ++i) {
      const auto pair = std::to_integer<unsigned>(golden.bytes(name)[i / 2]);
      weights.push_back(nf4::codebook.value[i % 2 == 0 ? pair >> 4 : pair & 15] * absmax[i / blocksize]);
    }
    for (const std::string_view to : {"fp32", "bf16"})
      EXPECT_EQ(parts_of(in, to).at(name), test::stored_as(type_of(to), weights)) << name << " to " << to;
  }
  for (const std::string name : {"int8.float32", "int8.float16"}) {
    MemoryReader in;
    TensorInfo codes = golden.info(name), scb = golden.info(name + ".SCB");
    codes.name = "l.weight", scb.name = "l.SCB";
    in.add(codes, golden.bytes(name));
    in.add(scb, golden.bytes(name + ".SCB"));
    const auto rows = test::values_of<float>(golden.bytes(name + ".SCB"));
    std::vector<float> weights;
    for (std::uint64_t i = 0; i < codes.elements(); ++i) {
      const float product = static_cast<float>(std::to_integer<std::int8_t>(golden.bytes(name)[i])) * rows[i / 100];
      weights.push_back(product * 7.874015718698502e-3F);
    }
    for (const std::string_view to : {"fp32", "fp16"})
      EXPECT_EQ(parts_of(in, to).at("l.weight"), test::stored_as(type_of(to), weights)) << name << " to " << to;
  }
}

// quant_storage only sees the same bytes as another type.
TEST(Dequantize, PackedBytesMayHaveAnyType) {
  Coded coded("nf4", layer);
  const auto expected = parts_of(test::reader_of(coded.parts), "bf16");
  for (const DType storage : {DType::bf16, DType::f32, DType::f64, DType::i8}) {
    TensorInfo& packed = coded.parts[0].first;
    packed.shape = {coded.parts[0].second.size() * 8 / traits(storage).bits, 1};
    packed.dtype = storage;
    ASSERT_EQ(packed.bytes(), coded.parts[0].second.size());
    EXPECT_EQ(parts_of(test::reader_of(coded.parts), "bf16"), expected) << traits(storage).name;
  }
}

MemoryReader model_of(const char* architecture, const std::vector<TensorInfo>& tensors) {
  MemoryReader in;
  in.set_architecture(architecture, false);
  for (const TensorInfo& tensor : tensors) in.add_normal(tensor.name, tensor.dtype, tensor.shape);
  return in;
}

MemoryReader quantized(const MemoryReader& in, Recipe recipe) {
  recipe.allow_nibble_only = true;
  test::Converted made = test::converted(in, recipe);
  made.reader.set_architecture(in.config()->architecture, false);
  made.reader.set_quant_method(made.plan.nibble_only ? "nibble" : "bitsandbytes");
  return std::move(made.reader);
}

// A plain model from what was written.
MemoryReader reader_of(const Dequantized& out, const MemoryReader& model) {
  MemoryReader reader;
  reader.set_architecture(model.config()->architecture, false);
  for (const PlannedTensor& tensor : out.report.plan.tensors)
    reader.add({tensor.info.name, type_of(tensor.codec.name()), tensor.info.shape}, out.parts.at(tensor.info.name));
  return reader;
}

// FP4 has two codes for 0, and a weight of 0 gets the first.
Bytes with_one_zero(Bytes packed) {
  for (std::byte& pair : packed) {
    if ((pair & std::byte{0xF0}) == std::byte{0x80}) pair &= std::byte{0x0F};
    if ((pair & std::byte{0x0F}) == std::byte{0x08}) pair &= std::byte{0xF0};
  }
  return packed;
}

std::map<std::string, Shape> shapes_of(const MemoryReader& in) {
  std::map<std::string, Shape> shapes;
  for (const TensorInfo& tensor : in.tensors()) shapes[tensor.name] = tensor.shape;
  return shapes;
}

const MemoryReader llama =
    model_of("LlamaForCausalLM",
             {{"model.embed_tokens.weight", DType::bf16, {64, 64}}, layer, {"model.norm.weight", DType::bf16, {192}}});
const MemoryReader gpt2 = model_of("GPT2LMHeadModel", {{"transformer.h.0.attn.c_attn.weight", DType::bf16, {96, 288}}});
const MemoryReader gpt_oss =
    model_of("GptOssForCausalLM", {{"model.layers.0.mlp.experts.down_proj", DType::bf16, {12, 64, 96}},
                                   {"model.layers.0.self_attn.q_proj.weight", DType::bf16, {64, 64}}});

// The names and shapes of the model that was quantized; quantized again, its codes.
TEST(Dequantize, CodesComeBack) {
  std::size_t compared = 0;
  for (const MemoryReader* const model : {&llama, &gpt2, &gpt_oss})
    for (const char* const codec : {"nf4", "nf4:double-quant=no", "fp4", "int8"}) {
      Recipe to = test::with_experts(codec);
      if (model != &gpt_oss) to.experts = "keep";
      const MemoryReader coded = quantized(*model, to);
      for (const char* const type : {"bf16", "fp32"}) {
        const Dequantized plain = dequantize(coded, dequantization(type));
        const MemoryReader back = reader_of(plain, *model);
        EXPECT_EQ(shapes_of(back), shapes_of(*model));
        const MemoryReader again = quantized(back, to);
        ASSERT_EQ(again.tensors().size(), coded.tensors().size());
        for (std::size_t part = 0; part < coded.tensors().size(); ++part) {
          const std::string_view name = again.tensors().name(part);
          ASSERT_EQ(name, coded.tensors().name(part));
          if (!name.ends_with(".weight") || coded.tensors().dtype(part) == DType::bf16) continue;
          Bytes before(coded.tensors().bytes(part)), after(again.tensors().bytes(part));
          coded.read(part, 0, before);
          again.read(part, 0, after);
          if (std::string_view(codec) == "fp4") before = with_one_zero(before);
          EXPECT_TRUE(before == after) << codec << " by way of " << type << ": " << name;
          ++compared;
        }
      }
    }
  EXPECT_EQ(compared, (1U + 1 + 13) * 4 * 2);
}

// Conv1D and fused experts have the weights of the matrices that were quantized, in their own places.
TEST(Dequantize, TransposesAndPutsTogether) {
  for (const MemoryReader* const model : {&gpt2, &gpt_oss}) {
    const MemoryReader coded = quantized(*model, model == &gpt2 ? recipe("int8") : test::with_experts("int8"));
    const Dequantized out = dequantize(coded, dequantization("fp32"));
    const std::string name(model->tensors().name(0));
    const auto weights = test::values_of<float>(out.parts.at(name));
    const auto original = test::numbers_of(DType::bf16, const_cast<MemoryReader*>(model)->bytes(0));
    ASSERT_EQ(weights.size(), original.size());
    for (std::size_t i = 0; i < weights.size(); ++i) ASSERT_NEAR(weights[i], original[i], 0.025) << name << " " << i;
    EXPECT_EQ(dequantize(coded, dequantization("fp32"), {3, 29'000'000}).parts, out.parts);
  }
}

// Experts with NaN were kept in 16 bits. Those beside them are exact all the same, whichever comes first.
TEST(Dequantize, SlicesMayBePlainBesideOthers) {
  constexpr std::size_t slice_weights = 64 * 64;
  const std::string name = "model.layers.0.mlp.experts.down_proj";
  for (const std::size_t plain : {0U, 1U}) {
    MemoryReader model = model_of("GptOssForCausalLM", {{name, DType::bf16, {3, 64, 64}}});
    Bytes& weights = model.bytes(0);
    weights[2 * plain * slice_weights + 10] = std::byte{0xC0},
                                        weights[2 * plain * slice_weights + 11] = std::byte{0x7F};
    const auto all = test::numbers_of(DType::bf16, weights);
    const Dequantized out = dequantize(quantized(model, test::with_experts("nf4")), dequantization("fp32"));
    const auto found = test::values_of<float>(out.parts.at(name));
    ASSERT_EQ(found.size(), 3 * slice_weights);
    std::array<std::size_t, 3> same{}, in_16_bits{};
    for (std::size_t i = 0; i < found.size(); ++i) {
      same[i / slice_weights] += static_cast<double>(found[i]) == all[i] ? 1U : 0U;
      in_16_bits[i / slice_weights] += (std::bit_cast<std::uint32_t>(found[i]) & 0xFFFFU) == 0 ? 1U : 0U;
    }
    EXPECT_EQ(same[plain], slice_weights - 1);  // NaN is equal to nothing
    EXPECT_LT(same[2], slice_weights / 2);
    EXPECT_LT(in_16_bits[2], slice_weights);
    EXPECT_EQ(out.report.findings.nan, 1U);
  }
}

TEST(Dequantize, SlicesThatDoNotMakeATensorAreRefused) {
  const MemoryReader coded = quantized(gpt_oss, test::with_experts("int8"));
  const auto refusal = [&](const std::function<bool(TensorInfo&, Bytes&)>& change) {
    MemoryReader in;
    in.set_architecture("GptOssForCausalLM", false);
    in.set_quant_method("nibble");
    for (std::size_t t = 0; t < coded.tensors().size(); ++t) {
      TensorInfo info = coded.tensors()[t];
      Bytes bytes(info.bytes());
      coded.read(t, 0, bytes);
      if (change(info, bytes)) in.add(info, bytes);
    }
    return error_of([&] { (void)make_plan(in, dequantization("bf16")); });
  };
  EXPECT_EQ(refusal([](auto&, auto&) { return true; }), "");
  EXPECT_EQ(refusal([](const TensorInfo& info, auto&) { return info.name.find(".3.") == std::string::npos; }),
            "/file0: tensor 'model.layers.0.mlp.experts.4.down_proj.weight' is an expert, cut out of "
            "'model.layers.0.mlp.experts.down_proj' by nibble, but 'model.layers.0.mlp.experts.3.down_proj.weight' is "
            "missing");
  EXPECT_EQ(refusal([](TensorInfo& info, Bytes& bytes) {
              if (info.name == "model.layers.0.mlp.experts.5.down_proj.weight") {
                info.shape[1] = 48;
                bytes.resize(64 * 48);
              }
              return true;
            }),
            "/file0: tensor 'model.layers.0.mlp.experts.5.down_proj.weight' is an expert, cut out of "
            "'model.layers.0.mlp.experts.down_proj' by nibble, but it is 64 x 48, and "
            "'model.layers.0.mlp.experts.0.down_proj.weight' is 64 x 96");
}

TEST(Dequantize, ConfigIsCleaned) {
  const Dequantized out = dequantize(quantized(llama, recipe("nf4")), dequantization("fp16"));
  EXPECT_TRUE(out.finish.was_decoded);
  EXPECT_EQ(out.finish.quantization_config, "");
  EXPECT_EQ(out.finish.dtype, "float16");
  EXPECT_EQ(out.finish.parameters, 64U * 64 + 192 * 195 + 192);
  EXPECT_EQ(out.report.plan.dtype, DType::f16);
  EXPECT_FALSE(out.report.plan.nibble_only);
  EXPECT_TRUE(out.report.warnings.empty());
}

// Decoded to fp16 at once, such weights would be infinite, and nobody would know.
TEST(Dequantize, OverflowIsNoticed) {
  const MemoryReader in = test::reader_of(Coded("nf4", layer, 1e5F).parts);
  EXPECT_NE(error_of([&] { (void)parts_of(in, "fp16"); }).find("exceed 65504, the largest fp16"), std::string::npos);
  Recipe clamped = dequantization("fp16");
  clamped.on_overflow = OnOverflow::clamp;
  EXPECT_GT(dequantize(in, clamped).report.findings.overflow, 0U);
  EXPECT_EQ(dequantize(in, dequantization("bf16")).report.findings.overflow, 0U);
}

TEST(Dequantize, TakesWhatIsQuantized) {
  EXPECT_EQ(error_of([] { (void)make_plan(llama, dequantization("bf16")); }),
            "/: has no quantized tensor: there is nothing to dequantize");
  Recipe any = dequantization("bf16");
  any.intake = Intake::any;
  EXPECT_EQ(make_plan(llama, any).tensors.size(), 3U);
  EXPECT_EQ(make_plan(quantized(llama, recipe("nf4")), any).tensors.size(), 3U);
  EXPECT_EQ(error_of([] { (void)dequantization("nf4"); }, Errc::usage), "codec nf4 is no type of plain weights");
}

// From one format to another on one way, as if the weights had been there.
TEST(Dequantize, CodesBecomeOtherCodes) {
  const MemoryReader coded = quantized(llama, recipe("nf4"));
  Recipe direct = recipe("int8");
  direct.intake = Intake::any;
  direct.decoded_as = DType::f32;
  const Dequantized plain = dequantize(coded, dequantization("fp32"));
  const auto expected = dequantize(reader_of(plain, llama), recipe("int8")).parts;
  const auto parts = dequantize(coded, direct).parts;
  for (const char* const name : {layer.name.c_str(), "model.layers.0.self_attn.q_proj.SCB"})
    EXPECT_EQ(parts.at(name), expected.at(name)) << name;
}

// They would be taken for weights.
TEST(Dequantize, PartsThatBelongToNothingAreRefused) {
  const auto refusal = [](std::string_view codec, std::string_view without, const char* method) {
    MemoryReader in;
    for (const auto& [info, bytes] : Coded(CodecSpec(codec), layer).parts)
      if (!info.name.ends_with(without)) in.add(info, bytes);
    for (const auto& [info, bytes] : Coded("nf4", {"good.weight", DType::bf16, {64, 64}}).parts) in.add(info, bytes);
    if (method != nullptr) in.set_quant_method(method);
    const std::string text = error_of([&] { (void)make_plan(in, dequantization("bf16")); });
    const std::string start = "/file0: tensor 'model.layers.0.self_attn.q_proj";
    return text.starts_with(start) ? text.substr(start.size()) : text;
  };
  for (const char* const method : {"bitsandbytes", "nibble"}) {
    EXPECT_EQ(refusal("nf4", "nothing", method), "");
    EXPECT_EQ(refusal("nf4", "__nf4", method),
              ".weight' is quantized by bitsandbytes, but its quant_state is missing or of a type that nibble does not "
              "decode");
    EXPECT_EQ(refusal("int8", ".SCB", method), ".weight' is codes in I8, but their SCB is missing");
  }
  const std::string orphan = "' is a part of a tensor that bitsandbytes quantized, but no codes go with it";
  for (const char* const method : {"bitsandbytes", static_cast<const char*>(nullptr)}) {
    EXPECT_EQ(refusal("int8", "q_proj.weight", method), ".SCB" + orphan);
    EXPECT_EQ(refusal("nf4", "q_proj.weight", method), ".weight.quant_state.bitsandbytes__nf4" + orphan);
  }
}

TEST(Dequantize, ManifestSaysWhereWeightsComeFrom) {
  MemoryWriter out;
  Progress progress;
  const MemoryReader in = test::reader_of(Coded("nf4", layer).parts);
  (void)convert(in, make_plan(in, dequantization("bf16")), out, {}, progress);
  EXPECT_NE(out.manifest().find(R"("intake":"quantized","decoded_as":"float32")"), std::string::npos);
  EXPECT_NE(out.manifest().find("; the input has it as nf4"), std::string::npos);
}

}  // namespace
}  // namespace nibble::dequantize_test
