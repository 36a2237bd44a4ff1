// Tensors without elements, in files: every command takes them; they are cast like others, and never quantized.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "nibble/checkpoint.hpp"
#include "nibble/codec.hpp"
#include "nibble/codec_spec.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::cli::empty_tensors_test {
namespace {

using nlohmann::json;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* full = "model.layers.0.mlp.up_proj.weight";

const std::map<std::string, std::tuple<DType, Shape>> empty{
    {"model.layers.0.mlp.down_proj.weight", {DType::f32, {0, 64}}},
    {"model.layers.1.mlp.down_proj.weight", {DType::bf16, {64, 0}}},
    {"model.layers.2.mlp.experts.down_proj", {DType::f16, {0, 64, 64}}},
    {"model.layers.3.mlp.up_proj.weight", {DType::f64, {0, 0}}},
    {"model.embed_tokens.weight", {DType::f32, {0, 64}}},
    {"model.norm.weight", {DType::f32, {0}}},
    {"ids", {DType::i64, {3, 0}}},
};

class EmptyTensors : public testing::Test {
 protected:
  EmptyTensors() {
    json header{{full, {{"dtype", "F32"}, {"shape", {64, 64}}, {"data_offsets", {0, 16384}}}}};
    for (const auto& [name, tensor] : empty)
      header[name] = {{"dtype", traits(std::get<DType>(tensor)).name},
                      {"shape", std::get<Shape>(tensor)},
                      {"data_offsets", {16384, 16384}}};
    (void)root_.write("w.safetensors", test::safetensors_file(header.dump(), std::string(16384, '\x3c')));
  }

  [[nodiscard]] test::Outcome run(const std::string& arguments) const {
    return test::run_program(root_.path(), arguments);
  }
  [[nodiscard]] std::map<std::string, std::tuple<DType, Shape>> empty_in(const std::string& file) const {
    std::map<std::string, std::tuple<DType, Shape>> found;
    const auto in = open_checkpoint(root_.path() / file, {.accept_quantized = true});
    for (std::size_t t = 0; t < in->tensors().size(); ++t)
      if (const TensorInfo tensor = in->tensors()[t]; tensor.elements() == 0)
        found[tensor.name] = {tensor.dtype, tensor.shape};
    return found;
  }

  test::TempDir root_;
};

// As the codec casts them, or without F64 if it quantizes others.
std::map<std::string, std::tuple<DType, Shape>> expected_of(const Codec& codec) {
  auto expected = empty;
  for (auto& [name, tensor] : expected) {
    DType& dtype = std::get<DType>(tensor);
    if (!is_floating_point(dtype)) continue;
    if (codec.cast_type())
      dtype = *codec.cast_type();
    else if (dtype == DType::f64)
      dtype = DType::f32;
  }
  return expected;
}

TEST_F(EmptyTensors, AreWrittenByEveryCodec) {
  for (const std::string_view codec : codec_names()) {
    if (CodecSpec(codec).keeps()) continue;
    const std::string to(codec);
    const bool quantizes = make_codec(CodecSpec(codec))->quantizes();
    for (const std::string& rules :
         {std::string(), " --no-default-skips --tensor '.*proj.*=" + to + "' --allow-nibble-only"}) {
      if (!rules.empty() && !quantizes) continue;
      SCOPED_TRACE(to + rules);
      const test::Outcome converted =
          run("convert w.safetensors out.safetensors --overwrite --json --to " + to + rules);
      ASSERT_EQ(converted.code, 0) << converted.err;
      EXPECT_EQ(empty_in("out.safetensors"), expected_of(*make_codec(CodecSpec(codec))));
      EXPECT_EQ(run("inspect out.safetensors").code, 0);
      const test::Outcome measured = run("measure w.safetensors out.safetensors --json");
      ASSERT_EQ(measured.code, 0) << measured.err;
      EXPECT_THAT(measured.err, Not(HasSubstr("missing")));
    }
  }
}

TEST_F(EmptyTensors, AreMeasuredAndAdvisedAbout) {
  const test::Outcome measured = run("measure w.safetensors --to nf4 --to int8 --to fp8 --to fp16 --worst 0");
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_THAT(measured.out, Not(HasSubstr("nan")));
  const test::Outcome advised = run("measure w.safetensors --advise 9bits --json");
  ASSERT_EQ(advised.code, 0) << advised.err;
  const json advice = json::parse(advised.out);
  for (const json& tensor : advice.at("tensors"))
    if (tensor.at("name") != full) {
      EXPECT_THAT(tensor.at("codec"), AnyOf("keep", "fp32")) << tensor;
    }
}

// In a model, where a role says what embeddings are. Nothing is cast because of embeddings without elements, others are
// cast although there are such, and the command names none of them.
TEST_F(EmptyTensors, OfEmbeddingsDoNotDecideAboutEmbeddings) {
  const std::filesystem::path model = root_.path() / "gpt2";
  std::filesystem::create_directory(model);
  (void)root_.write("gpt2/config.json", R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2"})");
  const auto command = [&](std::size_t positions) {
    test::WeightsFile file;
    file.add_bytes("transformer.h.0.attn.c_attn.weight", DType::f32, {64, 192}, test::Bytes(49152, std::byte{0x3c}));
    file.add_bytes("transformer.wpe.weight", DType::f32, {positions, 64},
                   test::Bytes(positions * 256, std::byte{0x3c}));
    file.add_bytes("transformer.wte.weight", DType::f32, {0, 64}, {});
    (void)root_.write("gpt2/model.safetensors", file.bytes());
    const test::Outcome advised = run("measure gpt2 --advise 24kB");
    EXPECT_EQ(advised.code, 0) << advised.err;
    return advised.out.substr(0, advised.out.find('\n'));
  };
  EXPECT_EQ(command(0), "nibble convert gpt2 OUT --to nf4");
  EXPECT_EQ(command(128), "nibble convert gpt2 OUT --to nf4 --embeddings bf16");
}

TEST_F(EmptyTensors, AreListed) {
  const test::Outcome table = run("inspect w.safetensors");
  EXPECT_THAT(table.out, HasSubstr("0 x 64 x 64"));
  EXPECT_EQ(json::parse(run("inspect w.safetensors --json").out).at("tensors").size(), 1 + empty.size());
  EXPECT_THAT(run("convert w.safetensors out.safetensors --to nf4 --dry-run").out, HasSubstr("has no elements"));
}

}  // namespace
}  // namespace nibble::cli::empty_tensors_test
