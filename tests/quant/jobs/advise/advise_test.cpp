// Recipes for a size, from errors that are made up and from measured ones. One file, because nearly all tests compare
// what is advised with the plan that it makes, by the same check().

#include "nibble/advise.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>

#include "nibble/error.hpp"
#include "tests/support/calibration.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/memory_checkpoint.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::advise_test {
namespace {

using test::error_of;
using test::MemoryReader;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

MemoryReader llama(DType dtype = DType::bf16) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM", false);
  in.add_normal("model.embed_tokens.weight", dtype, {32, 128});
  for (int layer = 0; layer < 3; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    in.add_normal(at + "self_attn.q_proj.weight", dtype, {128, 128});
    in.add_normal(at + "mlp.down_proj.weight", dtype, {128, 256});
    in.add_normal(at + "input_layernorm.weight", dtype, {128});
  }
  in.add_normal("lm_head.weight", dtype, {32, 128});
  return in;
}

// A measurement in which each tensor has this relative squared error where a codec changes it.
using RelativeError = std::function<double(const std::string& name, const CodecSpec& codec)>;

Measurement made_up(const std::vector<Candidate>& formats, const RelativeError& error) {
  Measurement measurement;
  for (const PlannedTensor& planned : formats.front().plan->tensors)
    measurement.tensors.emplace_back().info = planned.info;
  for (const Candidate& format : formats) {
    MeasuredCandidate& candidate = measurement.candidates.emplace_back();
    for (const PlannedTensor& planned : format.plan->tensors) {
      MeasuredError& measured = candidate.tensors.emplace_back().emplace();
      const auto cast_type = make_codec(planned.codec)->cast_type();
      measured.form = cast_type ? StoredForm(*cast_type) : StoredForm(planned.codec);
      measured.bytes = planned.stored_bytes;
      measured.stats.count = planned.info.elements();
      measured.stats.reference = 4 * static_cast<double>(planned.info.elements());
      if (planned.codec != "keep")
        measured.stats.square = measured.stats.reference * error(planned.info.name, planned.codec);
    }
  }
  return measurement;
}

// The smallest first.
std::vector<Candidate> formats_of(const Reader& in, bool allow_nibble_only) {
  static const std::vector<CodecSpec> codecs{"nf4", "fp4", "int8", "bf16", "fp16"};
  return advice_formats(in, allow_nibble_only, codecs);
}

// Errors that differ from layer to layer.
double uneven(const std::string& name, const CodecSpec& codec) {
  const double base = codec == "nf4" ? 8e-3 : codec == "fp4" ? 1.2e-2 : codec == "int8" ? 1e-4 : 1e-6;
  return base * (1 + static_cast<double>(std::hash<std::string>()(name) % 100) / 50);
}

Advice advise(const Reader& in, std::uint64_t max_bytes, bool allow_nibble_only = false,
              const RelativeError& error = uneven) {
  const std::vector<Candidate> formats = formats_of(in, allow_nibble_only);
  return advise(in, formats, made_up(formats, error), {max_bytes, allow_nibble_only});
}

auto has_codec(const CodecSpec& codec) { return testing::Field(&AdvisedTensor::codec, codec); }

// What convert would do with the members that advise() sets is what was advised.
Plan check(const Reader& in, const Advice& advice) {
  Recipe recipe;
  recipe.to = advice.recipe.to;
  recipe.embeddings = advice.recipe.embeddings;
  recipe.skips = advice.recipe.skips;
  recipe.rules = advice.recipe.rules;
  recipe.allow_nibble_only = advice.recipe.allow_nibble_only;
  Plan plan = make_plan(in, recipe);
  EXPECT_EQ(plan.stored_bytes(), advice.chosen.bytes);
  EXPECT_EQ(advice.tensors.size(), in.tensors().size());
  for (const PlannedTensor& planned : plan.tensors)
    EXPECT_EQ(planned.codec, advice.tensors[planned.source].codec) << planned.info.name;
  EXPECT_EQ(plan.nibble_only, advice.recipe.allow_nibble_only);
  return plan;
}

// A recipe of a codec and skips, and of nothing else.
void expect_skips(const Recipe& recipe, const CodecSpec& to, const std::vector<std::string>& skips) {
  EXPECT_EQ(recipe.to, to);
  EXPECT_EQ(recipe.skips, skips);
  EXPECT_TRUE(recipe.rules.empty());
  EXPECT_EQ(recipe.embeddings, "keep");
  EXPECT_FALSE(recipe.allow_nibble_only);
}

struct Least {
  double cost = std::numeric_limits<double>::infinity();
  double largest_step = 0;  // what one tensor can save
};

// All assignments of {the codec, keep} to what the plan of a format quantizes.
Least min_cost(const MemoryReader& in, const Candidate& format, std::uint64_t limit) {
  std::uint64_t fixed = 0;
  std::vector<PlannedTensor> items;
  for (const PlannedTensor& planned : format.plan->tensors) {
    if (planned.quantized)
      items.push_back(planned);
    else
      fixed += planned.stored_bytes;
  }
  Least least;
  for (std::size_t set = 0; set < std::size_t{1} << items.size(); ++set) {
    std::uint64_t bytes = fixed;
    double cost = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const double own = static_cast<double>(items[i].info.elements()) * uneven(items[i].info.name, items[i].codec);
      least.largest_step = std::max(least.largest_step, own);
      const bool keeps = (set >> i & 1U) != 0;
      bytes += keeps ? in.tensors().bytes(items[i].source) : items[i].stored_bytes;
      if (!keeps) cost += own;
    }
    if (bytes <= limit) least.cost = std::min(least.cost, cost);
  }
  return least;
}

TEST(Advise, IsNearTheBestOfAllAssignments) {
  const MemoryReader in = llama();
  const std::vector<Candidate> formats = formats_of(in, false);
  std::uint64_t all = 0;
  for (std::size_t t = 0; t < in.tensors().size(); ++t) all += in.tensors().bytes(t);
  const std::uint64_t smallest = formats.front().plan->stored_bytes();
  ASSERT_EQ(formats.front().name, "nf4");
  std::set<std::string> bases;
  for (std::uint64_t limit = smallest; limit < all + 2000; limit += 1000) {
    const Advice advice = nibble::advise(in, formats, made_up(formats, uneven), {limit, false});
    check(in, advice);
    EXPECT_LE(advice.chosen.bytes, limit);
    EXPECT_FALSE(advice.recipe.allow_nibble_only);
    Least best;
    for (const Candidate& format : formats) {
      const Least of_format = min_cost(in, format, limit);
      if (of_format.cost < best.cost) best = of_format;
    }
    EXPECT_GE(advice.chosen.cost, best.cost * (1 - 1e-12));
    EXPECT_LE(advice.chosen.cost, best.cost + best.largest_step);
    bases.insert(advice.recipe.to.text());
  }
  EXPECT_THAT(bases, ElementsAre("int8", "nf4"));
}

// bitsandbytes holds GPT-2's Conv1D, and compressed-tensors does not.
TEST(Advise, CodecsWithWhichTheModelCouldNotBeLoadedAreNoChoice) {
  MemoryReader gpt2;
  gpt2.set_architecture("GPT2LMHeadModel", true);
  gpt2.add_normal("h.0.attn.c_attn.weight", DType::f32, {64, 192});
  std::vector<std::string> names;
  for (const Candidate& format : advice_formats(gpt2, false)) names.push_back(format.name);
  EXPECT_THAT(names, ElementsAre("int8", "nf4", "fp4"));
  const std::vector<CodecSpec> asked{"fp8"};
  EXPECT_THROW((void)advice_formats(gpt2, false, asked), Error);
}

// Of an FP8 model, the advice is that for the weights it stands for.
TEST(Advise, TakesFp8) {
  const MemoryReader plain = llama();
  const MemoryReader fp8 = test::converted(plain, test::recipe("fp8")).reader;
  const std::vector<Candidate> of_plain = advice_formats(plain, false), of_fp8 = advice_formats(fp8, false);
  const auto error = [](const std::string&, const CodecSpec& codec) { return codec == "int8" ? 0.0001 : 0.01; };
  for (const std::uint64_t bytes : {of_plain[0].plan->stored_bytes(), of_plain[1].plan->stored_bytes()}) {
    const Advice expected = nibble::advise(plain, of_plain, made_up(of_plain, error), {bytes, false});
    const Advice found = nibble::advise(fp8, of_fp8, made_up(of_fp8, error), {bytes, false});
    EXPECT_EQ(found.weights, expected.weights);
    EXPECT_EQ(found.chosen.bytes, expected.chosen.bytes);
    EXPECT_EQ(found.recipe.to, expected.recipe.to);
    EXPECT_EQ(found.recipe.skips, expected.recipe.skips);
  }
}

// Everything that quantizes, or what was asked for.
TEST(Advise, ChoosesAmongTheCodecsThatItIsGiven) {
  const MemoryReader in = llama();
  std::vector<std::string> names;
  for (const Candidate& format : advice_formats(in, false)) names.push_back(format.name);
  std::vector<std::string> expected;
  for (const std::string_view name : codec_names())
    if (make_codec(name)->quantizes()) expected.emplace_back(name);
  EXPECT_EQ(names, expected);

  const std::vector<CodecSpec> codecs{"nf4:block-size=32,double-quant=no", "nf4:block-size=128"};
  const std::vector<Candidate> formats = advice_formats(in, false, codecs);
  ASSERT_EQ(formats.size(), 2U);
  const auto error = [](const std::string&, const CodecSpec& codec) {
    return codec == "nf4:block-size=128" ? 0.01 : 0.001;
  };
  const std::uint64_t small = formats[1].plan->stored_bytes(), large = formats[0].plan->stored_bytes();
  ASSERT_LT(small, large);
  for (const auto& [limit, to] : {std::pair{small, codecs[1]}, {large, codecs[0]}}) {
    const Advice advice = nibble::advise(in, formats, made_up(formats, error), {limit, false});
    check(in, advice);
    EXPECT_EQ(advice.recipe.to, to);
  }
}

TEST(Advise, CurveHasTheBestOfEverySize) {
  const MemoryReader in = llama();
  const std::vector<Candidate> formats = formats_of(in, false);
  const Advice some = advise(in, formats.front().plan->stored_bytes());
  EXPECT_EQ(some.recipe.to, "nf4");
  EXPECT_EQ(some.curve.size(), 7u);  // six matrices
  EXPECT_EQ(some.curve.front().bytes, some.chosen.bytes);
  EXPECT_EQ(some.curve.back().cost, 0);
  EXPECT_TRUE(std::isinf(some.curve.back().sqnr_db));
  for (const AdvicePoint& point : some.curve)
    EXPECT_NEAR(point.cost, min_cost(in, formats.front(), point.bytes).cost, 1e-9);
  double square = 0;
  double reference = 0;
  double weights = 0;
  for (const PlannedTensor& planned : formats.front().plan->tensors) {
    weights += static_cast<double>(planned.info.elements());
    if (!planned.quantized) continue;
    reference += static_cast<double>(planned.info.elements());  // what is kept is no part of the ratio
    square += static_cast<double>(planned.info.elements()) * uneven(planned.info.name, planned.codec);
  }
  EXPECT_NEAR(some.chosen.cost, square, 1e-9);
  EXPECT_NEAR(some.chosen.sqnr_db, 10 * std::log10(reference / square), 1e-9);
  EXPECT_EQ(some.weights, static_cast<std::uint64_t>(weights));
  EXPECT_NEAR(some.bits_per_weight(some.chosen.bytes), 8 * static_cast<double>(some.chosen.bytes) / weights, 1e-12);
}

TEST(Advise, CurveHasAtMost64Points) {
  MemoryReader in;
  for (int layer = 0; layer < 150; ++layer)
    in.add_normal("l." + std::to_string(layer) + ".weight", DType::bf16, {64, 64});
  const Advice advice = advise(in, 800'000);
  check(in, advice);
  EXPECT_GE(advice.curve.size(), 60u);
  EXPECT_LE(advice.curve.size(), 64u);
  EXPECT_EQ(advice.curve.back().cost, 0);
  for (std::size_t i = 1; i < advice.curve.size(); ++i) {
    EXPECT_GT(advice.curve[i].bytes, advice.curve[i - 1].bytes);
    EXPECT_LT(advice.curve[i].cost, advice.curve[i - 1].cost);
  }
}

TEST(Advise, SkipsTheWorst) {
  const MemoryReader in = llama();
  std::uint64_t limit = formats_of(in, false).front().plan->stored_bytes() + 100'000;  // two of the larger ones
  const auto error = [](const std::string& name, const CodecSpec&) {
    return name.find(".1.mlp") != std::string::npos || name.find(".2.mlp") != std::string::npos ? 1e-2 : 5e-3;
  };
  const Advice advice = advise(in, limit, false, error);
  expect_skips(advice.recipe, "nf4", {R"(model\.layers\.(1|2)\.mlp\.down_proj\.weight)"});
  check(in, advice);
}

TEST(Advise, EqualTensorsGoInOrder) {
  const MemoryReader in = llama();
  const std::uint64_t limit = formats_of(in, false).front().plan->stored_bytes() + 55'000;
  const Advice advice = advise(in, limit, false, [](const std::string&, const CodecSpec&) { return 1e-2; });
  EXPECT_THAT(advice.recipe.skips, ElementsAre(R"(model\.layers\.(0|1)\.self_attn\.q_proj\.weight)"));
  EXPECT_EQ(advice.tensors[1].codec, "keep");
}

TEST(Advise, SizeThatCannotBeReached) {
  const MemoryReader in = llama();
  const std::uint64_t smallest = formats_of(in, false).front().plan->stored_bytes();
  EXPECT_THAT(
      error_of([&] { (void)advise(in, smallest - 1); }, Errc::usage),
      testing::MatchesRegex("/: cannot become smaller than 100[.]79 kB .98[.]42 KiB., 5[.][0-9]+ bits per weight; "
                            "100[.]78 kB .98[.]42 KiB. is allowed"));
  EXPECT_EQ(test::remedy_of([&] { (void)advise(in, smallest - 1); }).kind, Remedy::Kind::nibble_only_formats);
  EXPECT_THAT(error_of([&] { (void)advise(in, 5000); }, Errc::usage),
              testing::MatchesRegex(".* than [0-9.]+ kB .[0-9.]+ KiB.,.*; 5[.]00 kB .4[.]88 KiB. is allowed"));
  EXPECT_THAT(error_of([&] { (void)advise(in, 100, true); }, Errc::usage), Not(HasSubstr("without")));
}

// Sizes that read the same are told in bytes.
TEST(Advise, SizesThatLookAlike) {
  MemoryReader in;
  in.add_normal("l.0.weight", DType::bf16, {4096, 512});
  const std::uint64_t smallest = formats_of(in, false).front().plan->stored_bytes();
  EXPECT_THAT(error_of([&] { (void)advise(in, smallest - 1); }, Errc::usage),
              testing::MatchesRegex(".* than " + std::to_string(smallest) + " bytes,.*; " +
                                    std::to_string(smallest - 1) + " bytes is allowed"));
}

// Embeddings of 32 bits are cast where that is what it takes, and transformers still loads the result.
TEST(Advise, EmbeddingsBecomeBf16) {
  MemoryReader in = llama(DType::f32);
  const std::vector<Candidate> formats = formats_of(in, false);
  Progress progress;
  const Measurement measurement = measure(in, formats, {}, progress);
  const std::uint64_t smallest = formats.front().plan->stored_bytes();
  const Advice least = nibble::advise(in, formats, measurement, {smallest, false});
  EXPECT_EQ(least.tensors[0].codec, "bf16");
  EXPECT_EQ(least.recipe.to, "nf4");
  EXPECT_EQ(least.recipe.embeddings, "bf16");
  EXPECT_TRUE(least.recipe.skips.empty());
  EXPECT_TRUE(least.recipe.rules.empty());
  EXPECT_FALSE(check(in, least).nibble_only);
  const std::uint64_t saved = in.tensors().bytes(0) / 2;
  const Advice more = nibble::advise(in, formats, measurement, {smallest + saved, false});
  check(in, more);
  EXPECT_LE(more.chosen.cost, least.chosen.cost);
  // What is cast to bf16 loses next to nothing, and does not count where anything is quantized.
  ErrorSums quantized;
  for (const auto& error : measurement.candidates.front().tensors)
    if (error->form.quantized()) quantized.add(error->stats);
  EXPECT_DOUBLE_EQ(least.chosen.sqnr_db, quantized.sqnr_db());
  // 16 bits are no smaller.
  for (const Candidate& format : formats_of(llama(), false)) EXPECT_EQ(format.plan->recipe.embeddings, "keep");
}

TEST(Advise, EverythingFits) {
  const MemoryReader in = llama();
  const Advice advice = advise(in, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(advice.chosen.cost, 0);
  EXPECT_THAT(advice.tensors, testing::Each(has_codec("keep")));
  expect_skips(advice.recipe, "nf4",
               {R"(model\.layers\.\d+\.self_attn\.q_proj\.weight)", R"(model\.layers\.\d+\.mlp\.down_proj\.weight)"});
  check(in, advice);
}

TEST(Advise, NibbleOnlyMixesCodecs) {
  const MemoryReader in = llama();
  const std::uint64_t limit = formats_of(in, false).front().plan->stored_bytes();
  const Advice advice = advise(in, limit, true);
  check(in, advice);
  EXPECT_TRUE(advice.recipe.allow_nibble_only);
  EXPECT_FALSE(advice.recipe.rules.empty());
  EXPECT_LT(advice.chosen.cost, advise(in, limit).chosen.cost);
  EXPECT_THAT(advice.tensors, Contains(has_codec("int8")));
  EXPECT_THAT(advice.tensors, Contains(has_codec("nf4")));
  for (std::uint64_t bytes = advice.curve.front().bytes; bytes < 320'000; bytes += 5000)
    check(in, advise(in, bytes, true));
}

// A choice that needs no other loader says so.
TEST(Advise, AllowedIsNotNeeded) {
  const MemoryReader in = llama(DType::f32);
  const Advice advice = advise(in, 312'064 + 100, true, [](const std::string&, const CodecSpec& codec) {
    return codec == "bf16" ? 1e-9 : codec == "fp16" ? 2e-9 : 1.0;
  });
  expect_skips(advice.recipe, "bf16", {});
  check(in, advice);
}

TEST(Advise, InfinitiesAndNansStayAsTheyAre) {
  const MemoryReader in = llama(DType::f32);
  const std::vector<Candidate> formats = formats_of(in, true);
  Measurement measurement = made_up(formats, uneven);
  const auto at = [&](const std::string& name) {
    for (std::size_t t = 0; t < in.tensors().size(); ++t)
      if (in.tensors().name(t) == name) return t;
    return std::size_t{0};
  };
  const std::size_t overflows = at("lm_head.weight");
  const std::size_t broken = at("model.layers.1.mlp.down_proj.weight");
  measurement.tensors[broken].stats.nan = 1;
  for (MeasuredCandidate& candidate : measurement.candidates) {
    if (candidate.name == "fp16") candidate.tensors[overflows]->stats.inf = 1;
    candidate.tensors[broken]->stats.nan = 1;  // casts leave it
    if (candidate.name != "fp16" && candidate.name != "bf16") candidate.tensors[broken]->form = CodecSpec();
  }
  for (std::uint64_t limit = 210'000; limit < 700'000; limit += 10'000) {
    const Advice advice = nibble::advise(in, formats, measurement, {limit, true});
    check(in, advice);
    EXPECT_NE(advice.tensors[overflows].codec, "fp16");
    EXPECT_THAT(advice.tensors[broken].codec, testing::AnyOf("keep", "bf16", "fp16"));
  }
}

TEST(Advise, TensorsOfManyKinds) {
  MemoryReader in;
  in.add_normal("a.weight", DType::f64, {64, 64});
  in.add_normal("b.weight", DType::f32, {64, 64});
  in.add_normal("c.weight", DType::bf16, {64, 64});
  in.add_normal("d.weight", DType::f64, {64});
  in.add({"ids", DType::i64, {100}}, std::vector<std::byte>(800));
  in.add({"zeros.weight", DType::f32, {64, 64}}, std::vector<std::byte>(64 * 64 * 4));
  in.add({"none.weight", DType::f32, {0, 64}}, {});
  for (const bool allow : {false, true}) {
    const std::vector<Candidate> formats = formats_of(in, allow);
    Progress progress;
    const Measurement measurement = measure(in, formats, {}, progress);
    std::uint64_t smallest = 0;
    for (std::uint64_t limit = 6000; limit < 100'000; limit += 500) {
      try {
        const Advice advice = nibble::advise(in, formats, measurement, {limit, allow});
        check(in, advice);
        EXPECT_EQ(advice.tensors[4].codec, "keep");
        EXPECT_NE(advice.tensors[3].codec, "keep");
        if (smallest == 0) smallest = limit;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::usage);
        EXPECT_EQ(smallest, 0u);
      }
    }
    EXPECT_GT(smallest, 0u);
  }
}

// From the weights to the plan: what was measured is what convert would store.
TEST(Advise, EndToEnd) {
  MemoryReader in = llama(DType::f32);
  const float large = 3;  // one weight that takes the range of its row, and of its block
  std::memcpy(in.bytes(2).data(), &large, sizeof large);
  for (const bool allow : {false, true}) {
    const std::vector<Candidate> formats = formats_of(in, allow);
    Progress progress;
    const Measurement measurement = measure(in, formats, {}, progress);
    double last = std::numeric_limits<double>::infinity();
    for (std::uint64_t limit = 150'000; limit < 700'000; limit += 50'000) {
      const Advice advice = nibble::advise(in, formats, measurement, {limit, allow});
      const Plan plan = check(in, advice);
      const std::vector<Candidate> again{{"advised", nullptr, plan}};
      const Measurement advised = measure(in, again, {}, progress);
      double cost = 0;
      for (const auto& error : advised.candidates[0].tensors)
        if (error->stats.square > 0)
          cost += static_cast<double>(error->stats.count) * error->stats.square / error->stats.reference;
      EXPECT_NEAR(cost, advice.chosen.cost, 1e-9 * cost);
      EXPECT_LE(cost, last);
      last = cost;
    }
  }
}

// Experts that are one tensor become many, and Conv1D is transposed; the rules name what the file has.
TEST(Advise, FusedAndTransposed) {
  MemoryReader experts;
  experts.set_architecture("GptOssForCausalLM", false);
  experts.add_normal("model.layers.0.self_attn.q_proj.weight", DType::bf16, {64, 64});
  experts.add_normal("model.layers.0.mlp.experts.down_proj", DType::bf16, {4, 64, 64});
  experts.add_normal("model.layers.1.mlp.experts.down_proj", DType::bf16, {4, 64, 64});
  MemoryReader conv;
  conv.set_architecture("GPT2LMHeadModel", true);
  for (int layer = 0; layer < 2; ++layer)
    conv.add_normal("h." + std::to_string(layer) + ".mlp.c_fc.weight", DType::f32, {64, 256});
  for (const MemoryReader* in : {&experts, &conv})
    for (const bool allow : {false, true}) {
      const std::vector<Candidate> formats = formats_of(*in, allow);
      Progress progress;
      const Measurement measurement = measure(*in, formats, {}, progress);
      std::set<CodecSpec> seen;
      for (std::uint64_t limit = 22'000; limit < 150'000; limit += 1000) {
        try {
          const Advice advice = nibble::advise(*in, formats, measurement, {limit, allow});
          check(*in, advice);
          seen.insert(advice.tensors[1].codec);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Errc::usage) << error.what();
        }
      }
      EXPECT_EQ(seen.contains("nf4"), in == &conv || allow);
      EXPECT_TRUE(seen.contains("keep"));
    }
}

// Tensors whose weights lose more than their outputs do.
TEST(Advise, GoesByOutputsWhereTheyAreKnown) {
  const MemoryReader in = llama();
  const std::vector<Candidate> formats = formats_of(in, false);
  const std::string first = "model.layers.0.mlp.down_proj.weight", other = "model.layers.1.mlp.down_proj.weight";
  Measurement measurement = made_up(formats, [&](const std::string& name, const CodecSpec& codec) {
    return codec == "nf4" ? (name == first ? 2e-2 : 1e-2) : 1;
  });
  const std::uint64_t room = formats.front().plan->stored_bytes() + 128 * 256 * 3 / 2;  // for one of them in bf16
  const Advice by_weights = nibble::advise(in, formats, measurement, {room});
  expect_skips(by_weights.recipe, "nf4", {R"(model\.layers\.0\.mlp\.down_proj\.weight)"});
  EXPECT_THAT(by_weights.warnings, testing::IsEmpty());

  std::size_t known = 0;
  for (MeasuredCandidate& candidate : measurement.candidates)
    for (std::size_t t = 0; t < candidate.tensors.size(); ++t) {
      MeasuredError& error = *candidate.tensors[t];
      const std::string& name = measurement.tensors[t].info.name;
      if (name != first && name != other) continue;
      if (name == other && &candidate == &measurement.candidates.back()) continue;  // some of its ways are enough
      error.output.count = error.stats.count;
      error.output.reference = 5;
      error.output.square = 5 * (name == first ? 1e-3 : 3e-2) * (&candidate == measurement.candidates.data() ? 1 : 100);
      ++known;
    }
  EXPECT_GT(known, 2U);
  const Advice by_outputs = nibble::advise(in, formats, measurement, {room});
  expect_skips(by_outputs.recipe, "nf4", {R"(model\.layers\.1\.mlp\.down_proj\.weight)"});
  // One tensor by its output, four by their weights.
  EXPECT_NEAR(by_outputs.chosen.cost, 128 * 256 * (1e-3 + 1e-2) + 3 * 128 * 128 * 1e-2, 1e-6);
  EXPECT_THAT(by_outputs.warnings,
              ElementsAre("4 of 6 tensors have no statistics, so the error of their weights is taken: "
                          "'model.layers.0.self_attn.q_proj.weight', ..."));
}

MemoryReader three_experts() {
  MemoryReader in;
  in.set_architecture("Qwen3MoeForCausalLM", false);
  in.add_normal("model.layers.0.mlp.experts.down_proj", DType::bf16, {3, 64, 128});
  return in;
}

// Each matrix of a tensor has an output of its own, and one without statistics counts by its weights.
TEST(Advise, AddsUpTheOutputsOfExperts) {
  const MemoryReader in = three_experts();
  const std::vector<Candidate> formats = advice_formats(in, true, std::vector<CodecSpec>{"nf4"});
  Measurement measurement = made_up(formats, [](const std::string&, const CodecSpec&) { return 1e-2; });
  auto& errors = measurement.candidates[0].tensors;
  ASSERT_EQ(errors.size(), 3U);
  for (const std::size_t e : {0U, 1U}) {
    errors[e]->output.count = 64 * 128;
    errors[e]->output.reference = e == 0 ? 1 : 1000;  // each is relative to its own
    errors[e]->output.square = e == 0 ? 2e-2 : 30;
  }
  const Advice advice = nibble::advise(in, formats, measurement, {formats[0].plan->stored_bytes(), true});
  EXPECT_NEAR(advice.chosen.cost, 64 * 128 * (2e-2 + 3e-2 + 1e-2), 1e-9);
  EXPECT_THAT(advice.warnings, testing::IsEmpty());
}

// Statistics that list these weights and have these sensitivities.
std::filesystem::path sensitivities(const test::TempDir& dir, const nlohmann::ordered_json& of_weights) {
  test::StatisticsMaker maker;
  maker.add("input", {1.0f});
  for (const auto& [name, value] : of_weights.items()) maker.manifest["weights"][name] = {"input"};
  maker.manifest["sensitivities"] = of_weights;
  return maker.write(dir);
}

// A small tensor that the model's output depends on most is kept first; one with no sensitivity counts by its weights.
TEST(Advise, GoesBySensitivitiesWhereTheyAreKnown) {
  const MemoryReader in = llama();
  const std::vector<Candidate> formats = formats_of(in, false);
  Measurement measurement =
      made_up(formats, [](const std::string&, const CodecSpec& codec) { return codec == "nf4" ? 1e-2 : 1; });
  for (MeasuredCandidate& candidate : measurement.candidates)
    for (auto& error : candidate.tensors) {
      error->output = error->stats;
      error->output.square *= 0.5;
    }
  const test::TempDir dir;
  const std::string layers = "model.layers.";
  AdviseOptions options;
  options.max_bytes = formats.front().plan->stored_bytes() + 128 * 256 * 3 / 2;  // for one of any in bf16
  options.calibration = sensitivities(dir, {{layers + "0.self_attn.q_proj.weight", 1},
                                            {layers + "1.self_attn.q_proj.weight", 40},
                                            {layers + "2.self_attn.q_proj.weight", 0},
                                            {layers + "0.mlp.down_proj.weight", 4},
                                            {layers + "1.mlp.down_proj.weight", 5}});
  const Advice advice = nibble::advise(in, formats, measurement, options);
  EXPECT_TRUE(advice.by_sensitivity);
  EXPECT_FALSE(advice.by_outputs);
  EXPECT_EQ(advice.tensors[4].codec, "keep");  // model.layers.1.self_attn.q_proj.weight
  check(in, advice);
  // All in NF4: N / A of 1e-2 times 50, which is A, and the output of the only one that has no sensitivity.
  const double known = 3 * 128 * 128 + 2 * 128 * 256;
  EXPECT_NEAR(advice.curve.front().cost, known * 1e-2 + 128 * 256 * 0.5e-2, 1e-6);
  EXPECT_THAT(advice.warnings, ElementsAre("1 of 6 tensors have no sensitivity, so the numbers of their weights are "
                                           "taken: 'model.layers.2.mlp.down_proj.weight'"));

  options.calibration = sensitivities(dir, {{layers + "0.mlp.down_proj.weight", 0}});
  const Advice zero = nibble::advise(in, formats, measurement, options);
  EXPECT_NEAR(zero.curve.front().cost, (3 * 128 * 128 + 2 * 128 * 256) * 0.5e-2, 1e-6);

  options.calibration = sensitivities(dir, {{"another.weight", 1}});
  const Advice other = nibble::advise(in, formats, measurement, options);
  EXPECT_FALSE(other.by_sensitivity);
  EXPECT_TRUE(other.by_outputs);
  EXPECT_THAT(other.warnings, testing::IsEmpty());
  const Advice by_weights = nibble::advise(in, formats, made_up(formats, uneven), options);
  EXPECT_FALSE(by_weights.by_outputs);
  EXPECT_THAT(by_weights.warnings,
              ElementsAre(testing::StartsWith("6 of 6 tensors have no statistics, so the error of their weights")));
  EXPECT_EQ(error_of([&] {
              options.calibration = dir.path();
              (void)nibble::advise(in, formats, measurement, options);
            }),
            dir.path().string() + ": has no calibration.json: python -m nibble.calibrate did not write it");
}

// The error of all experts of a tensor together is what its sensitivity was measured for.
TEST(Advise, PoolsTheErrorsOfExpertsForTheirSensitivity) {
  const MemoryReader in = three_experts();
  const std::vector<Candidate> formats = advice_formats(in, true, std::vector<CodecSpec>{"nf4"});
  Measurement measurement = made_up(formats, [](const std::string&, const CodecSpec&) { return 1e-2; });
  auto& errors = measurement.candidates[0].tensors;
  ASSERT_EQ(errors.size(), 3U);
  errors[1]->stats.reference *= 8;
  errors[1]->stats.square *= 80;
  const test::TempDir dir;
  AdviseOptions options{formats[0].plan->stored_bytes(), true};
  options.calibration = sensitivities(dir, {{"model.layers.0.mlp.experts.down_proj", 7}});
  const Advice advice = nibble::advise(in, formats, measurement, options);
  EXPECT_NEAR(advice.chosen.cost, 3 * 64 * 128 * 1e-2 * 82 / 10, 1e-9);
}

// What is measured is the search that the conversion will do.
TEST(Advise, SearchesWithStatistics) {
  const MemoryReader in = llama();
  test::TempDir dir;
  test::StatisticsMaker maker;
  for (int layer = 0; layer < 3; ++layer)
    for (const auto& [name, columns] : {std::pair("self_attn.q_proj", 128), {"mlp.down_proj", 256}}) {
      std::vector<float> squares = test::normal_weights(static_cast<std::size_t>(columns), 1);
      for (float& square : squares) square = std::exp(3 * square);
      maker.add("model.layers." + std::to_string(layer) + "." + name, squares);
    }
  const std::filesystem::path stats = maker.write(dir);
  const std::vector<CodecSpec> codecs{"nf4:absmax=search", "nf4"};
  const std::vector<Candidate> formats = advice_formats(in, false, codecs, stats);
  EXPECT_EQ(formats[0].plan->recipe.calibration, stats);
  EXPECT_EQ(formats[1].plan->recipe.calibration, "");  // a conversion would refuse them
  Progress progress;
  MeasureOptions options;
  options.calibration = stats;
  const Measurement measurement = measure(in, formats, options, progress);
  const Advice searched = nibble::advise(in, formats, measurement, {formats[0].plan->stored_bytes()});
  EXPECT_EQ(searched.recipe.to, codecs[0]);
  EXPECT_EQ(searched.recipe.calibration, stats);
  check(in, searched);
  Recipe recipe = searched.recipe;
  recipe.calibration.clear();
  EXPECT_LT(
      measurement.candidates[0].tensors[1]->output.square,
      measure(in, std::vector{test::plan(in, recipe)}, options, progress).candidates[0].tensors[1]->output.square);
  const Advice kept = nibble::advise(in, formats, measurement, {1'000'000});
  EXPECT_EQ(kept.chosen.cost, 0);
  EXPECT_EQ(kept.recipe.calibration, "");  // nothing is left to search
}

// A conversion would refuse statistics of a tensor that it leaves as it is, and of no other.
TEST(Advise, NamesStatisticsOnlyForSearchesThatTheyKnow) {
  const MemoryReader in = llama();
  test::TempDir dir;
  test::StatisticsMaker maker;
  maker.add("model.layers.0.self_attn.q_proj", test::normal_weights(128, 1));
  const std::vector<Candidate> formats =
      advice_formats(in, false, std::vector<CodecSpec>{"nf4:absmax=search"}, maker.write(dir));
  Measurement measurement = made_up(formats, [](const std::string&, const CodecSpec&) { return 1e-2; });
  for (const double error : {1.0, 1e-3}) {
    ErrorSums& output = measurement.candidates[0].tensors[1]->output;
    output.count = 128 * 128;
    output.reference = 1;
    output.square = error;
    const Advice advice =
        nibble::advise(in, formats, measurement, {formats[0].plan->stored_bytes() + 128 * 128 * 3 / 2});
    const bool is_searched = error < 1e-2;
    EXPECT_EQ(advice.tensors[1].codec, is_searched ? "nf4:absmax=search" : "keep");
    EXPECT_EQ(advice.recipe.calibration, is_searched ? formats[0].plan->recipe.calibration : "");
  }
}

TEST(Advise, HostileNames) {
  MemoryReader in;
  const std::vector<std::string> names{"a.(1|2).weight", "a.1.weight",     "a.2.weight",       "-x=y.weight",
                                       "it's.weight",    "[a-z]+*.weight", "a\nb.0.weight",    "\\d+.weight",
                                       "ü.0.weight",     ".*.weight",      "$(rm).{3}.weight", "a\\.1\\.weight"};
  for (const std::string& name : names) in.add_normal(name, DType::bf16, {64, 64});
  for (std::uint64_t limit = 41'000; limit < 100'000; limit += 3000) {
    check(in, advise(in, limit));
    check(in, advise(in, limit, true));
  }
}

TEST(Advise, NewlinesInEveryName) {
  MemoryReader in;
  in.add_normal("a\nb.weight", DType::bf16, {64, 64});
  check(in, advise(in, 5000, true));
}

// Casts that narrow no tensor leave nothing to choose among.
TEST(Advise, WithoutFormatsThereIsNothingToChoose) {
  const auto refused = [](const Reader& in, const std::vector<CodecSpec>& codecs) {
    return error_of([&] { (void)advice_formats(in, true, codecs); }, Errc::usage);
  };
  const MemoryReader in = llama(), in_f32 = llama(DType::f32), in_f64 = llama(DType::f64);
  EXPECT_EQ(refused(in, {"bf16"}), "/: no tensor is wider than bf16: nothing to choose");
  EXPECT_EQ(refused(in, {"bf16", "fp16"}), "/: no tensor is wider than bf16 or fp16: nothing to choose");
  EXPECT_EQ(refused(in_f32, {"fp32"}), "/: no tensor is wider than fp32: nothing to choose");
  EXPECT_EQ(refused(in_f64, {"fp32"}), "/: no tensor is wider than fp32, except for F64: nothing to choose");
  EXPECT_EQ(error_of(
                [&] {
                  (void)nibble::advise(in, {}, {}, {1'000'000, true});
                },
                Errc::usage),
            "the measurement is not of the formats that advice is asked for");
}

TEST(Advise, AnotherMeasurementIsUsage) {
  const MemoryReader in = llama();
  const std::vector<Candidate> formats = formats_of(in, false);
  Measurement measurement = made_up(formats, uneven);
  const std::string text = "the measurement is not of the formats that advice is asked for";
  const AdviseOptions options{1'000'000, false};
  measurement.tensors[1].info.name = "other";
  EXPECT_EQ(error_of([&] { (void)nibble::advise(in, formats, measurement, options); }, Errc::usage), text);
  EXPECT_EQ(error_of([&] { (void)nibble::advise(in, formats, {}, options); }, Errc::usage), text);
  EXPECT_EQ(error_of([&] { (void)nibble::advise(in, {}, {}, options); }, Errc::usage), text);
  Measurement of_none = made_up(formats, uneven);
  of_none.candidates.clear();
  EXPECT_EQ(error_of([&] { (void)nibble::advise(in, {}, of_none, options); }, Errc::usage), text);
}

}  // namespace
}  // namespace nibble::advise_test
