// One file, because all tests run whole conversions with the same few functions.

#include "quant/jobs/convert/convert.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string_view>

#include "nibble/codec.hpp"
#include "nibble/codec_spec.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/stream/conversion_memory.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::convert_test {
namespace {

using test::MemoryReader;
using test::MemoryWriter;
using test::recipe;
using testing::HasSubstr;

constexpr const char* q_proj = "model.layers.0.self_attn.q_proj.weight";
constexpr const char* up_proj = "model.layers.0.mlp.up_proj.weight";
constexpr const char* norm = "model.norm.weight";

MemoryReader llama(DType dtype = DType::f32) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM");
  in.add_normal("model.embed_tokens.weight", dtype, {50, 192});
  in.add_normal(q_proj, dtype, {192, 192});
  in.add_normal(up_proj, dtype, {515, 192}, 1);
  in.add_normal(norm, dtype, {192}, 1);
  return in;
}

struct Result {
  Report report;
  std::map<std::string, std::vector<std::byte>> parts;
  Finish finish;
  std::string manifest;
  std::size_t begun = 0;
  std::size_t scratches = 0;
};

Result run(const MemoryReader& in, const Recipe& recipe, const Resources& resources = {}) {
  MemoryWriter out;
  Progress progress;
  Report report = convert(in, make_plan(in, recipe), out, resources, progress);
  return {std::move(report), out.parts(), out.finish().value(), out.manifest(), out.begun(), out.scratches()};
}

void set_weight(MemoryReader& in, std::size_t tensor, std::size_t weight, float value) {
  std::memcpy(in.bytes(tensor).data() + 4 * weight, &value, 4);
}

constexpr float infinity = INFINITY;

// The smallest memory makes the smallest chunks, so that every tensor here is cut.
const std::vector<Resources> all_resources{{1, 1'000'000'000}, {2, 1'000'000'000}, {7, 17'000'000}, {64, 29'000'000}};

TEST(Convert, BytesDoNotDependOnThreadsOrChunks) {
  for (const std::string_view to : codec_names()) {
    if (CodecSpec(to).keeps()) continue;
    const MemoryReader in = llama();
    const Result first = run(in, recipe(to), all_resources.front());
    for (const Resources& resources : all_resources) {
      const Result other = run(in, recipe(to), resources);
      EXPECT_EQ(other.parts, first.parts) << to;
      EXPECT_EQ(other.manifest, first.manifest) << to;
    }
  }
}

TEST(Convert, ChunksStayWithinTheMemoryAllowed) {
  MemoryReader in;
  in.add_normal("layer.weight", DType::f32, {1024, 1024});
  run(in, recipe("nf4"), {1, 15'200'000});
  EXPECT_LE(in.largest_read(), 64U << 10U);
  EXPECT_THROW(run(in, recipe("nf4"), {1, 1'000'000}), Error);
}

// What a tensor has kept is used again by those that need no more, and only by them.
TEST(Convert, BytesDoNotDependOnWhetherMemoryIsUsedAgain) {
  MemoryReader in;
  for (std::uint64_t i = 1; i <= 24; ++i) in.add_normal(fmt::format("{:02}.weight", i), DType::bf16, {i * i * 8, 256});
  for (std::uint64_t i = 1; i <= 24; ++i) in.add_normal(fmt::format("{}.weight", 99 - i), DType::bf16, {64, 64});
  const std::uint64_t enough = conversion_memory(make_plan(in, recipe("nf4")), {2}).total_bytes;
  ASSERT_EQ(conversion_memory(make_plan(in, recipe("nf4")), {2, enough - 1}).spare_bytes, 0U);
  const Result again = run(in, recipe("nf4"), {2}), anew = run(in, recipe("nf4"), {2, enough - 1});
  EXPECT_EQ(again.parts, anew.parts);
  EXPECT_EQ(again.manifest, anew.manifest);
}

// With the least memory that is accepted, the absmax goes to a file.
TEST(Convert, BytesDoNotDependOnWhereTheAbsmaxIsKept) {
  MemoryReader in;
  in.add_normal("a.weight", DType::f32, {1600, 1024});
  in.add_normal("b.weight", DType::f32, {20'000, 30});
  in.add_normal("c.weight", DType::f32, {128, 64});
  for (const std::string_view to : codec_names()) {
    const auto codec = make_codec(to);
    if (!codec->quantizes()) continue;
    const auto min_resources = [&] {
      const Plan plan = make_plan(in, recipe(to));
      for (Resources resources{2, 14 << 20};; resources.max_memory += 4096) try {
          (void)conversion_memory(plan, resources);
          return resources;
        } catch (const Error&) {
        }
    };
    const Result kept = run(in, recipe(to));
    const Result spilled = run(in, recipe(to), min_resources());
    EXPECT_EQ(kept.scratches, 0U);
    // Only the second tensor has enough rows to need a file; of blocks, the first has enough, too.
    EXPECT_EQ(spilled.scratches, codec->granularity() == Granularity::row ? 1U : 2U) << to;
    EXPECT_EQ(spilled.parts, kept.parts) << to;
    EXPECT_EQ(spilled.manifest, kept.manifest) << to;
  }
}

TEST(Convert, KeptTensorsKeepTheirBytes) {
  MemoryReader in = llama(DType::bf16);
  const Result result = run(in, recipe("nf4"));
  EXPECT_EQ(result.parts.at("model.embed_tokens.weight"), in.bytes(0));
  EXPECT_EQ(result.parts.at(norm), in.bytes(3));
  EXPECT_EQ(result.finish.dtype, "bfloat16");
}

// Conv1D stores [in, out]: its bytes are those of the transposed matrix given as a linear layer.
TEST(Convert, TransposesConv1d) {
  constexpr std::size_t rows = 96;
  constexpr std::size_t columns = 288;
  MemoryReader conv;
  conv.set_architecture("GPT2LMHeadModel");
  conv.add_normal("transformer.h.0.attn.c_attn.weight", DType::f32, {rows, columns});
  std::vector<std::byte> transposed(conv.bytes(0).size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c)
      std::memcpy(transposed.data() + 4 * (c * rows + r), conv.bytes(0).data() + 4 * (r * columns + c), 4);
  MemoryReader linear;
  linear.set_architecture("LlamaForCausalLM");
  linear.add({q_proj, DType::f32, {columns, rows}}, transposed);
  for (const char* const to : {"nf4", "int8"}) {
    const Result a = run(conv, recipe(to), {2, 18'000'000});
    const Result b = run(linear, recipe(to));
    EXPECT_EQ(a.parts.at("transformer.h.0.attn.c_attn.weight"), b.parts.at(q_proj)) << to;
  }
}

TEST(Convert, FusedExpertsBecomeOneMatrixEach) {
  MemoryReader fused;
  fused.set_architecture("Qwen3MoeForCausalLM");
  fused.add_normal("model.layers.0.mlp.experts.down_proj", DType::f32, {4, 64, 96});
  Recipe with_experts = recipe("nf4");
  with_experts.experts = "nf4";
  EXPECT_THAT(test::error_of([&] { (void)make_plan(fused, with_experts); }, Errc::usage),
              HasSubstr("transformers could not load the result"));
  with_experts.allow_nibble_only = true;
  const Result result = run(fused, with_experts);

  const std::vector<std::byte>& all = fused.bytes(0);
  for (std::size_t expert = 0; expert < 4; ++expert) {
    const auto slice = static_cast<std::ptrdiff_t>(all.size() / 4);
    MemoryReader one;
    one.set_architecture("LlamaForCausalLM");
    const auto begin = all.begin() + slice * static_cast<std::ptrdiff_t>(expert);
    one.add({q_proj, DType::f32, {64, 96}}, std::vector<std::byte>(begin, begin + slice));
    const std::string name = "model.layers.0.mlp.experts." + std::to_string(expert) + ".down_proj.weight";
    EXPECT_EQ(result.parts.at(name), run(one, recipe("nf4")).parts.at(q_proj));
    EXPECT_TRUE(result.parts.contains(name + ".absmax"));
  }
  EXPECT_THAT(result.finish.quantization_config, HasSubstr(R"("quant_method":"nibble")"));
}

TEST(Convert, NonfiniteTensorRestartsItsShardAndIsKept) {
  MemoryReader in = llama();
  set_weight(in, 1, 777, NAN);
  set_weight(in, 2, 5, -infinity);
  const Result result = run(in, recipe("nf4"));
  EXPECT_EQ(result.begun, 2U);                    // once for all of its tensors
  EXPECT_EQ(result.report.findings, Findings{});  // of what was stored
  EXPECT_EQ(result.report.plan.tensors[1].decided_by, DecidedBy::nonfinite);
  EXPECT_EQ(result.report.plan.tensors[0].decided_by, DecidedBy::model);
  const auto manifest = nlohmann::json::parse(result.manifest);
  EXPECT_EQ(manifest.at("tensors").size(), 4U);
  EXPECT_EQ(manifest.at("tensors").at(1).at("codec"), "keep");
  EXPECT_EQ(manifest.at("warnings").size(), result.report.warnings.size());
  EXPECT_EQ(result.parts.at(q_proj), in.bytes(1));
  EXPECT_EQ(result.parts.at(up_proj), in.bytes(2));
  EXPECT_FALSE(result.parts.contains(std::string(q_proj) + ".absmax"));
  EXPECT_THAT(test::texts(result.report.warnings),
              testing::Contains(HasSubstr("q_proj.weight' is kept as F32: 1 NaN")));
}

// Quantized, cast and kept tensors are counted apart, and what a restart drops is in no sum.
TEST(Convert, TotalsAreApart) {
  MemoryReader in = llama();
  Recipe how = recipe("nf4");
  how.embeddings = "bf16";
  for (const ErrorReport report : {ErrorReport::none, ErrorReport::basic, ErrorReport::full}) {
    how.error_report = report;
    set_weight(in, 1, 777, 0);
    const ByOutcome<Totals> totals = run(in, how).report.totals;
    EXPECT_EQ(totals.quantized.tensors, 2U);
    EXPECT_EQ(totals.quantized.weights, 192U * 192 + 515 * 192);
    EXPECT_EQ(totals.cast.tensors, 1U);
    EXPECT_EQ(totals.cast.weights, 50U * 192);
    EXPECT_EQ(totals.kept.tensors, 1U);
    EXPECT_EQ(totals.kept.error, ErrorSums{});
    set_weight(in, 1, 777, NAN);
    const ByOutcome<Totals> restarted = run(in, how).report.totals;
    EXPECT_EQ(restarted.quantized.tensors, 1U);
    EXPECT_EQ(restarted.cast.tensors, 1U);
    EXPECT_EQ(restarted.cast.error, totals.cast.error);
    EXPECT_EQ(restarted.kept.tensors, 2U);
    if (report == ErrorReport::none) {
      EXPECT_EQ(totals.quantized.error, ErrorSums{});
    } else {
      EXPECT_NEAR(totals.quantized.error.sqnr_db(), 20.7, 0.3);
      EXPECT_NEAR(restarted.quantized.error.sqnr_db(), 20.7, 0.3);
      EXPECT_NEAR(totals.cast.error.sqnr_db(), 55.6, 0.5);
    }
  }
}

TEST(Convert, KeptForNonfiniteIsListedAsSkipped) {
  MemoryReader in = llama();
  set_weight(in, 1, 777, NAN);
  const auto config = nlohmann::json::parse(run(in, recipe("int8")).finish.quantization_config);
  EXPECT_EQ(config.at("llm_int8_skip_modules"), (nlohmann::json{"lm_head", "model.layers.0.self_attn.q_proj"}));
}

TEST(Convert, NonfiniteErrorNamesTensorAndPlace) {
  MemoryReader in = llama();
  set_weight(in, 2, 123, infinity);
  Recipe strict = recipe("nf4");
  strict.nonfinite = Nonfinite::error;
  EXPECT_EQ(
      test::error_of([&] { run(in, strict); }),
      "/file1: tensor 'model.layers.0.mlp.up_proj.weight': 0 NaN and 1 infinite of 98880 weights, the first at 123; "
      "none is allowed");
  EXPECT_EQ(test::remedy_of([&] { run(in, strict); }).kind, Remedy::Kind::nonfinite);
}

// Absmax values of 3.3e38 and more: what double quantization rounds up is infinite.
TEST(Convert, WhatDoubleQuantizationWouldMakeInfiniteIsRefused) {
  const auto convert = [](float largest, bool double_quant) {
    std::mt19937 random(1);
    std::vector<float> weights(256 * 1024);
    for (float& weight : weights) weight = (static_cast<float>(random()) * 0x1p-31f - 1) * largest;
    MemoryReader in;
    const auto bytes = std::as_bytes(std::span(weights));
    in.add({"a.weight", DType::f32, {256, 1024}}, {bytes.begin(), bytes.end()});
    return run(in, recipe(four_bit_spec("nf4", 32, double_quant)));
  };
  EXPECT_THAT(test::error_of([&] { (void)convert(3.4028e38f, true); }),
              HasSubstr(": tensor 'a.weight': its weights are so close to the largest fp32 value"));
  EXPECT_EQ(test::remedy_of([&] { (void)convert(3.4028e38f, true); }).kind, Remedy::Kind::no_double_quant);
  EXPECT_EQ(convert(3.4028e38f, false).report.findings, Findings{});
  EXPECT_EQ(convert(3e38f, true).report.findings, Findings{});
}

// The largest fp32 number alone does it if the mean a, in units of its last bit, is half of an odd number: the
// difference is rounded up, and so is the sum, to 2^128. The mean is far from that bound here.
TEST(Convert, OneAbsmaxAtTheEndOfFp32IsRefused) {
  std::vector<float> weights(8 * 64);
  weights[0] = std::numeric_limits<float>::max();
  weights[64] = 13 * 0x1p104f;
  MemoryReader in;
  in.add({"a.weight", DType::f32, {8, 64}}, test::stored_as(DType::f32, weights));
  EXPECT_THAT(test::error_of([&] { (void)run(in, recipe("nf4")); }),
              HasSubstr(": tensor 'a.weight': its weights are so close to the largest fp32 value"));
}

TEST(Convert, NonfiniteQuantizedHarmsOnlyItself) {
  MemoryReader in = llama();
  Recipe tolerant = recipe("nf4");
  tolerant.nonfinite = Nonfinite::quantize;
  const std::vector<std::byte> before = run(in, tolerant).parts.at(q_proj);
  set_weight(in, 1, 6400, NAN);
  const std::vector<std::byte> after = run(in, tolerant).parts.at(q_proj);
  for (std::size_t i = 0; i < before.size(); ++i)
    if (i / 32 != 100) {  // 32 bytes to a block of 64
      ASSERT_EQ(after[i], before[i]) << "byte " << i;
    }
}

TEST(Convert, RowThatOverflowsFp16IsKeptFromInt8) {
  MemoryReader in = llama();
  set_weight(in, 1, 3, 70000.0F);
  EXPECT_EQ(run(in, recipe("int8")).parts.at(q_proj), in.bytes(1));
}

TEST(Convert, Fp16OverflowFollowsItsPolicy) {
  MemoryReader in = llama();
  set_weight(in, 1, 3, 70000.0F);
  EXPECT_THAT(test::error_of([&] { run(in, recipe("fp16")); }),
              HasSubstr("1 of 36864 weights exceed 65504, the largest fp16, the first at 3"));
  const auto stored = [&](OnOverflow policy) {
    Recipe r = recipe("fp16");
    r.on_overflow = policy;
    std::uint16_t bits = 0;
    std::memcpy(&bits, run(in, r).parts.at(q_proj).data() + 6, 2);
    return bits;
  };
  EXPECT_EQ(stored(OnOverflow::clamp), 0x7bff);
  EXPECT_EQ(stored(OnOverflow::keep), 0x7c00);
}

TEST(Convert, ShardsAreCutBySizeAndByInput) {
  Recipe by_size = recipe("fp32");
  by_size.max_shard_bytes = 200'000;
  EXPECT_EQ(run(llama(), by_size).report.plan.shard_ends, (std::vector<std::size_t>{2, 3, 4}));
  Recipe by_input = recipe("fp32");
  by_input.keep_shards = true;
  EXPECT_EQ(run(llama(), by_input).report.plan.shard_ends, (std::vector<std::size_t>{2, 4}));
}

// A shard may be as large as the limit.
TEST(Convert, ShardsReachTheLimit) {
  MemoryReader in = llama();
  const std::uint64_t two = in.bytes(0).size() + in.bytes(1).size();
  const auto first_end = [&](std::uint64_t limit) {
    Recipe how = recipe("fp32");
    how.max_shard_bytes = limit;
    return make_plan(in, how).shard_ends.front();
  };
  EXPECT_EQ(first_end(two), 2U);
  EXPECT_EQ(first_end(two - 1), 1U);
}

// By libxxhash, in one go.
std::vector<std::string> hashes_of(std::span<const std::byte> bytes) {
  std::vector<std::string> hashes;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<std::size_t>(bytes.size(), 1 << 20))) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), std::min<std::size_t>(bytes.size(), 1 << 20));
    hashes.push_back(fmt::format("{:016x}{:016x}", hash.high64, hash.low64));
  }
  return hashes;
}

TEST(Convert, ManifestAgreesWithTheParts) {
  const Result result = run(llama(), recipe("nf4"));
  const auto manifest = nlohmann::json::parse(result.manifest);
  EXPECT_EQ(manifest.at("schema_version"), 2);
  std::size_t parts = 0;
  for (const auto& tensor : manifest.at("tensors")) {
    EXPECT_FALSE(tensor.at("reason").get<std::string>().empty());
    for (const auto& part : tensor.at("parts")) {
      EXPECT_EQ(part.at("bytes").get<std::size_t>(), result.parts.at(part.at("name")).size());
      EXPECT_EQ(part.at("xxh3_128"), hashes_of(result.parts.at(part.at("name"))));
      ++parts;
    }
  }
  EXPECT_EQ(parts, result.parts.size());
}

// Rows and blocks that do not end where a hash chunk does, an absmax of several chunks, and a tensor without weights.
TEST(Convert, HashesAreThoseOfEveryMiB) {
  MemoryReader in;
  in.add_normal("long.weight", DType::f32, {1100, 2003});
  in.add_normal("narrow.weight", DType::bf16, {600'000, 3});
  in.add({"empty", DType::f32, {0}}, {});
  for (const char* const to : {"nf4", "int8", "fp16", "keep"})
    for (const Resources& resources : all_resources) {
      const Result result = run(in, recipe(to), resources);
      const auto manifest = nlohmann::json::parse(result.manifest);
      ASSERT_EQ(manifest.at("hash_chunk_bytes"), 1 << 20);
      for (const auto& tensor : manifest.at("tensors"))
        for (const auto& part : tensor.at("parts"))
          ASSERT_EQ(part.at("xxh3_128"), hashes_of(result.parts.at(part.at("name"))))
              << to << ", " << resources.threads << " threads, " << part.at("name");
    }
}

TEST(Convert, CancelledConversionCommitsNothing) {
  class Stopped final : public Progress {
    [[nodiscard]] bool cancelled() const override { return true; }
  } stopped;
  const MemoryReader in = llama();
  MemoryWriter out;
  EXPECT_EQ(test::error_of([&] { convert(in, make_plan(in, recipe("nf4")), out, {}, stopped); }, Errc::interrupted),
            "interrupted: no output was written");
  EXPECT_FALSE(out.finish());
}

// All weights are encoded by then, and nothing but the commit is left.
TEST(Convert, CancelledAtTheEndCommitsNothing) {
  class Late final : public Progress {
   public:
    explicit Late(bool when_ready) : when_ready_(when_ready) {}
    void advance(std::string_view /*tensor*/, std::uint64_t done, std::uint64_t total) override {
      if (!when_ready_ && done == total) is_cancelled_ = true;
    }
    void ready(const Report& /*report*/) override { is_cancelled_ = true; }
    [[nodiscard]] bool cancelled() const override { return is_cancelled_; }

   private:
    bool when_ready_;
    std::atomic<bool> is_cancelled_ = false;
  };
  for (const bool when_ready : {false, true}) {
    Late late(when_ready);
    const MemoryReader in = llama();
    MemoryWriter out;
    EXPECT_EQ(test::error_of([&] { convert(in, make_plan(in, recipe("nf4")), out, {}, late); }, Errc::interrupted),
              "interrupted: no output was written");
    EXPECT_FALSE(out.is_committed()) << when_ready;
  }
}

TEST(Convert, ProgressEndsAtTheTotal) {
  class Last final : public Progress {
   public:
    void advance(std::string_view /*tensor*/, std::uint64_t done, std::uint64_t total) override {
      EXPECT_GE(done, done_);
      done_ = done, total_ = total;
    }
    std::uint64_t done_ = 0;
    std::uint64_t total_ = 0;
  } last;
  const MemoryReader in = llama();
  MemoryWriter out;
  convert(in, make_plan(in, recipe("nf4")), out, {}, last);
  EXPECT_EQ(last.done_, last.total_);
  EXPECT_EQ(last.total_, 4U * (50 * 192 + 192 * 192 + 515 * 192 + 192));
}

}  // namespace
}  // namespace nibble::convert_test
