// measure() of whole checkpoints. One file, because all of it is what one call returns: figures, missing tensors,
// errors, and that neither threads nor memory matter.

#include "nibble/measure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "formats/calibration/calibration.hpp"
#include "nibble/error.hpp"
#include "quant/schemes/scheme.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/calibration.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::measure_test {
namespace {

using test::checkpoint;
using test::Converted;
using test::converted;
using test::error_of;
using test::MemoryReader;
using test::plan;
using test::recipe;
using test::with_experts;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::size_t unit_weights = 1 << 17;  // measure() adds up sums of as many
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

constexpr const char* q_proj = "model.layers.0.self_attn.q_proj.weight";
constexpr const char* up_proj = "model.layers.1.mlp.up_proj.weight";

void add(MemoryReader& in, const std::string& name, DType dtype, const Shape& shape,
         const std::vector<float>& weights) {
  in.add({name, dtype, shape}, test::stored_as(dtype, weights));
}

// A matrix of several units, one of an odd number of weights, embeddings and a norm, which stay as they are.
MemoryReader llama(DType dtype = DType::f32) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM");
  add(in, "model.embed_tokens.weight", dtype, {50, 192}, test::normal_weights(50 * 192, 1, 0.02f));
  add(in, q_proj, dtype, {700, 400}, test::normal_weights(700 * 400, 2, 0.02f));
  add(in, up_proj, dtype, {515, 193}, test::normal_weights(515 * 193, 3, 0.05f));
  add(in, "model.norm.weight", dtype, {192}, test::normal_weights(192, 4));
  return in;
}

MemoryReader gpt2() {
  MemoryReader in;
  in.set_architecture("GPT2LMHeadModel");
  add(in, "transformer.wte.weight", DType::f32, {60, 96}, test::normal_weights(60 * 96, 5));
  add(in, "transformer.h.0.attn.c_attn.weight", DType::f32, {96, 1500}, test::normal_weights(96 * 1500, 6, 0.02f));
  add(in, "transformer.h.0.attn.c_proj.weight", DType::f32, {96, 96}, test::normal_weights(96 * 96, 7, 0.02f));
  return in;
}

constexpr const char* experts = "model.layers.0.mlp.experts.down_proj";

MemoryReader moe() {
  MemoryReader in;
  in.set_architecture("Qwen3MoeForCausalLM");
  add(in, experts, DType::bf16, {4, 64, 96}, test::normal_weights(4 * 64 * 96, 8, 0.02f));
  add(in, q_proj, DType::bf16, {96, 64}, test::normal_weights(96 * 64, 9, 0.02f));
  return in;
}

Measurement measured(const Reader& in, const std::vector<Candidate>& candidates, const Resources& resources = {}) {
  Progress progress;
  return measure(in, candidates, {.counts = true, .resources = resources}, progress);
}

std::vector<std::string> names(const Measurement& measurement) {
  std::vector<std::string> result;
  for (const MeasuredWeights& tensor : measurement.tensors) result.push_back(tensor.info.name);
  return result;
}

std::vector<float> floats(DType dtype, std::span<const std::byte> bytes) {
  std::vector<float> weights;
  switch (dtype) {
    case DType::f64:
      for (const double weight : test::values_of<double>(bytes)) weights.push_back(static_cast<float>(weight));
      break;
    case DType::f16:
      for (const std::uint16_t weight : test::values_of<std::uint16_t>(bytes))
        weights.push_back(fp16::to_float(weight));
      break;
    case DType::bf16:
      for (const std::uint16_t weight : test::values_of<std::uint16_t>(bytes))
        weights.push_back(bf16::to_float(weight));
      break;
    default:
      weights = test::values_of<float>(bytes);
  }
  return weights;
}

ErrorStats compare_in_units(std::span<const float> reference, std::span<const float> test) {
  ErrorStats stats;
  for (std::size_t i = 0; i < reference.size(); i += unit_weights) {
    const std::size_t n = std::min(unit_weights, reference.size() - i);
    stats.add(compare(reference.subspan(i, n), test.subspan(i, n), i));
  }
  return stats;
}

WeightStats describe_in_units(std::span<const float> weights) {
  WeightStats stats;
  stats.pivot = choose_pivot(weights);
  for (std::size_t i = 0; i < weights.size(); i += unit_weights)
    stats.add(describe(weights.subspan(i, std::min(unit_weights, weights.size() - i)), stats.pivot));
  return stats;
}

void expect_equal(const Counts& a, const Counts& b) {
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.errors, b.errors);
  EXPECT_EQ(a.exact, b.exact);
}

void expect_equal(const MeasuredCandidate& a, const MeasuredCandidate& b) {
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.missing, b.missing);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (std::size_t t = 0; t < a.tensors.size(); ++t) {
    SCOPED_TRACE(t);
    ASSERT_EQ(a.tensors[t].has_value(), b.tensors[t].has_value());
    if (!a.tensors[t]) continue;
    EXPECT_EQ(a.tensors[t]->form, b.tensors[t]->form);
    EXPECT_EQ(a.tensors[t]->bytes, b.tensors[t]->bytes);
    EXPECT_EQ(a.tensors[t]->stats, b.tensors[t]->stats);
    expect_equal(a.tensors[t]->counts, b.tensors[t]->counts);
  }
}

void expect_equal(const Measurement& a, const Measurement& b) {
  EXPECT_EQ(a.bytes, b.bytes);
  ASSERT_EQ(names(a), names(b));
  for (std::size_t t = 0; t < a.tensors.size(); ++t) {
    const MeasuredWeights &x = a.tensors[t], &y = b.tensors[t];
    SCOPED_TRACE(x.info.name);
    EXPECT_EQ(x.info, y.info);
    EXPECT_EQ(x.kind, y.kind);
    EXPECT_EQ(x.layer, y.layer);
    EXPECT_EQ(x.bytes, y.bytes);
    EXPECT_EQ(x.stats, y.stats);
    EXPECT_EQ(x.outlier_columns, y.outlier_columns);
    EXPECT_EQ(x.outlier_energy, y.outlier_energy);
  }
  ASSERT_EQ(a.candidates.size(), b.candidates.size());
  for (std::size_t c = 0; c < a.candidates.size(); ++c) {
    SCOPED_TRACE(a.candidates[c].name);
    expect_equal(a.candidates[c], b.candidates[c]);
  }
}

struct Format {
  std::string id;
  std::string to;
  friend void PrintTo(const Format& format, std::ostream* out) { *out << format.id; }
};
const std::vector<Format> formats{
    {"nf4", "nf4"},
    {"nf4_plain", "nf4:double-quant=no"},
    {"nf4_32", "nf4:block-size=32"},
    {"nf4_4096", "nf4:block-size=4096"},
    {"fp4", "fp4"},
    {"fp4_plain", "fp4:block-size=128,double-quant=no"},
    {"int8", "int8"},
    {"fp16", "fp16"},
    {"bf16", "bf16"},
    {"fp32", "fp32"},
};

class MeasureFormats : public testing::TestWithParam<std::tuple<Format, DType>> {};

TEST_P(MeasureFormats, FiguresAreThoseOfTheDecodedWeights) {
  const auto& [format, dtype] = GetParam();
  const MemoryReader in = llama(dtype);
  const Converted out = converted(in, recipe(format.to));
  const Measurement found = measured(in, {checkpoint(out.reader)});
  ASSERT_EQ(found.tensors.size(), 4U);
  EXPECT_THAT(found.candidates.at(0).missing, IsEmpty());
  EXPECT_EQ(found.bytes, out.plan.source_bytes());
  EXPECT_EQ(found.candidates[0].bytes, out.plan.stored_bytes());
  std::size_t part = 0;
  for (std::size_t t = 0; t < 4; ++t) {
    const PlannedTensor tensor = out.plan.tensors[t];
    SCOPED_TRACE(tensor.info.name);
    const auto codec = make_codec(tensor.codec);
    const std::size_t first = part;
    part += stored_parts(*codec, tensor.info).size();
    test::Bytes packed(out.reader.tensors().bytes(first));
    out.reader.read(first, 0, packed);
    std::vector<std::byte> bytes(tensor.info.bytes());
    in.read(t, 0, bytes);
    const std::vector<float> reference = floats(dtype, bytes);
    const test::Encoded encoded = test::encode(*codec, tensor.info, bytes);
    EXPECT_EQ(encoded.planes[0], packed);
    const std::vector<float> decoded = test::decode(*codec, tensor.info, encoded);
    const MeasuredError& error = found.candidates[0].tensors[t].value();
    EXPECT_EQ(found.tensors[t].info, tensor.info);
    EXPECT_EQ(found.tensors[t].bytes, tensor.info.bytes());
    EXPECT_EQ(found.tensors[t].stats, describe_in_units(reference));
    EXPECT_EQ(error.stats, compare_in_units(reference, decoded));
    EXPECT_EQ(error.bytes, tensor.stored_bytes);
    EXPECT_EQ(error.form == StoredForm(tensor.codec), tensor.quantized) << error.form.text();
    EXPECT_EQ(error.form.quantized(), tensor.quantized);

    std::map<int, std::uint64_t> bins;
    std::uint64_t exact = 0;
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      const double e = std::abs(static_cast<double>(decoded[i] - reference[i]));
      if (e < std::numeric_limits<float>::min())
        ++exact;
      else
        ++bins[static_cast<int>(std::floor(std::log2(e)))];
    }
    EXPECT_EQ(error.counts.errors, (std::vector<std::pair<int, std::uint64_t>>(bins.begin(), bins.end())));
    EXPECT_EQ(error.counts.exact, exact);
    std::vector<std::uint64_t> codes;
    if (tensor.quantized && format.to != "int8") {
      codes.resize(16);
      for (std::size_t i = 0; i < reference.size(); ++i)
        ++codes[static_cast<std::size_t>(packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & std::byte{15})];
    }
    EXPECT_EQ(error.counts.codes, codes);
  }
}

// What is encoded into memory is what convert() writes.
TEST_P(MeasureFormats, PlanIsWhatConvertWrites) {
  const auto& [format, dtype] = GetParam();
  MemoryReader in = llama(dtype);
  add(in, "model.layers.2.nan.up_proj.weight", dtype, {3, 70}, [] {
    std::vector<float> weights(210, 0.5f);
    weights[100] = nan;
    weights[101] = -infinity;
    return weights;
  }());
  // A row that is longer than a unit.
  add(in, "model.layers.2.wide.up_proj.weight", dtype, {2, 150'001}, test::normal_weights(300'002, 5));
  in.add({"model.layers.2.empty.up_proj.weight", dtype, {0, 64}}, {});
  add(in, "model.layers.2.scale", dtype, {}, {0.3f});
  Recipe how = recipe(format.to);
  how.rules.push_back({".*up_proj.*", format.to});
  how.allow_nibble_only = true;
  const Converted out = converted(in, how);
  expect_equal(measured(in, {plan(in, how)}).candidates.at(0), measured(in, {checkpoint(out.reader)}).candidates.at(0));
}

INSTANTIATE_TEST_SUITE_P(All, MeasureFormats,
                         testing::Combine(testing::ValuesIn(formats),
                                          testing::Values(DType::f32, DType::bf16, DType::f16, DType::f64)),
                         [](const auto& each) {
                           return std::get<0>(each.param).id + "_" + std::string(traits(std::get<1>(each.param)).name);
                         });

// ---- names, slices, transpositions -----------------------------------------------------------------------------

TEST(Measure, Conv1dIsComparedAsItIsStored) {
  const MemoryReader in = gpt2();
  for (const char* const to : {"nf4", "int8"}) {
    const Converted out = converted(in, recipe(to));
    const Measurement found = measured(in, {checkpoint(out.reader), plan(in, recipe(to))});
    EXPECT_EQ(names(found), (std::vector<std::string>{"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight",
                                                      "transformer.h.0.attn.c_proj.weight"}));
    EXPECT_EQ(found.tensors[1].info.shape, (Shape{1500, 96}));
    expect_equal(found.candidates[0], found.candidates[1]);
    EXPECT_THAT(found.candidates[0].missing, IsEmpty());
    // As wrong as 4 and 8 bits are, and not as two matrices that have nothing in common.
    for (const std::size_t t : {1U, 2U}) EXPECT_GT(found.candidates[0].tensors[t]->stats.sqnr_db(), 20) << t;

    // The same matrix, transposed beforehand.
    MemoryReader linear;
    std::vector<float> transposed(96 * 1500);
    const std::vector<float> stored = test::normal_weights(96 * 1500, 6, 0.02f);
    for (std::size_t r = 0; r < 96; ++r)
      for (std::size_t c = 0; c < 1500; ++c) transposed[c * 96 + r] = stored[r * 1500 + c];
    linear.set_architecture("LlamaForCausalLM");
    add(linear, q_proj, DType::f32, {1500, 96}, transposed);
    const Measurement expected = measured(linear, {plan(linear, recipe(to))});
    EXPECT_EQ(found.candidates[0].tensors[1]->stats, expected.candidates[0].tensors[0]->stats);
    EXPECT_EQ(found.tensors[1].stats, expected.tensors[0].stats);
    EXPECT_EQ(found.tensors[1].outlier_columns, expected.tensors[0].outlier_columns);
  }
}

// Those that are not quantized keep the shape that they have.
TEST(Measure, Conv1dThatIsCastIsComparedAsItIs) {
  const MemoryReader in = gpt2();
  const Converted out = converted(in, recipe("bf16"));
  const Measurement found = measured(in, {checkpoint(out.reader)});
  EXPECT_EQ(found.tensors[1].info.shape, (Shape{96, 1500}));
  EXPECT_GT(found.candidates[0].tensors[2]->stats.sqnr_db(), 50);
}

TEST(Measure, FusedExpertsAreComparedOneByOne) {
  const MemoryReader in = moe();
  const Converted out = converted(in, with_experts("nf4"));
  const Measurement found = measured(in, {checkpoint(out.reader), plan(in, with_experts("nf4"))});
  ASSERT_EQ(found.tensors.size(), 5U);
  expect_equal(found.candidates[0], found.candidates[1]);
  EXPECT_THAT(found.candidates[0].missing, IsEmpty());
  const std::vector<float> all =
      floats(DType::bf16, test::stored_as(DType::bf16, test::normal_weights(4 * 64 * 96, 8, 0.02f)));
  for (std::size_t e = 0; e < 4; ++e) {
    const std::string name = "model.layers.0.mlp.experts." + std::to_string(e) + ".down_proj.weight";
    EXPECT_EQ(found.tensors[e].info, (TensorInfo{name, DType::bf16, {64, 96}}));
    EXPECT_EQ(found.tensors[e].kind, "mlp.experts.down_proj");
    EXPECT_EQ(found.tensors[e].layer, 0U);
    EXPECT_EQ(found.tensors[e].bytes, 64U * 96 * 2);
    EXPECT_EQ(found.tensors[e].stats, describe_in_units(std::span(all).subspan(e * 64 * 96, 64 * 96)));
    EXPECT_GT(found.candidates[0].tensors[e]->stats.sqnr_db(), 20);
  }
}

TEST(Measure, FusedExpertsThatStayFusedAreComparedAsOne) {
  const MemoryReader in = moe();
  const Converted out = converted(in, recipe("nf4"));
  const Measurement found = measured(in, {checkpoint(out.reader), plan(in, recipe("nf4"))});
  ASSERT_EQ(found.tensors.size(), 2U);
  EXPECT_EQ(found.tensors[0].info.shape, (Shape{4, 64, 96}));
  EXPECT_EQ(found.candidates[0].tensors[0]->stats.square, 0);
  expect_equal(found.candidates[0], found.candidates[1]);
}

// ---- errors of outputs
// -----------------------------------------------------------------------------------------------

std::vector<float> mean_squares(std::size_t columns, unsigned seed) {
  std::vector<float> values = test::normal_weights(columns, seed);
  for (float& value : values) value = std::exp(2 * value);
  return values;
}

class MeasureOutputs : public testing::Test {
 protected:
  [[nodiscard]] Measurement measured(const Reader& in, const std::vector<Candidate>& candidates,
                                     const Resources& resources = {}) const {
    Progress progress;
    return measure(in, candidates, {.resources = resources, .calibration = maker.write(dir)}, progress);
  }
  static void expect_output(const MeasuredError& error, const std::vector<float>& weights,
                            const std::vector<float>& test, const std::function<double(std::size_t)>& mean_square) {
    double square = 0, reference = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double w = weights[i], e = test[i] - w;
      square += mean_square(i) * e * e;
      reference += mean_square(i) * w * w;
    }
    EXPECT_EQ(error.output.count, weights.size());
    EXPECT_NEAR(error.output.square / error.output.reference, square / reference, 1e-5 * square / reference);
  }

  test::TempDir dir;
  test::StatisticsMaker maker;
};

TEST_F(MeasureOutputs, CountErrorsByTheMeanSquaresOfColumns) {
  const MemoryReader in = llama();
  MemoryReader other;
  other.set_architecture("LlamaForCausalLM");
  const std::vector<float> weights = test::normal_weights(700 * 400, 2, 0.02f);
  std::vector<float> changed = weights;
  const std::vector<float> noise = test::normal_weights(weights.size(), 12, 0.003f);
  for (std::size_t i = 0; i < weights.size(); ++i) changed[i] += noise[i] * static_cast<float>(i % 400) / 400;
  add(other, q_proj, DType::f32, {700, 400}, changed);
  add(other, up_proj, DType::f32, {515, 193}, test::normal_weights(515 * 193, 13, 0.05f));
  const std::vector<float> squares = mean_squares(400, 1);
  maker.add("model.layers.0.self_attn.q_proj", squares);
  const Measurement found = measured(in, {checkpoint(other), plan(in, recipe("nf4"))});
  EXPECT_TRUE(found.has_statistics);
  const MeasuredError& error = *found.candidates[0].tensors[1];
  expect_output(error, weights, changed, [&](std::size_t i) { return squares[i % 400]; });
  EXPECT_NE(error.output.square / error.output.reference, error.stats.square / error.stats.reference);
  for (const MeasuredCandidate& candidate : found.candidates)
    EXPECT_EQ(candidate.tensors[2]->output, ErrorSums{});  // no statistics
  const Measurement again = measured(in, {checkpoint(other), plan(in, recipe("nf4"))}, {3, 100'000'000});
  const Measurement alone = measured(in, {checkpoint(other), plan(in, recipe("nf4"))}, {1, 30'000'000});
  for (const std::size_t c : {0U, 1U}) {
    EXPECT_EQ(again.candidates[c].tensors[1]->output, alone.candidates[c].tensors[1]->output);
    EXPECT_EQ(again.candidates[c].tensors[1]->output, found.candidates[c].tensors[1]->output);
  }
}

// Plain Conv1D is [in, out], so all weights of a row have one input; quantized, it is [out, in].
TEST_F(MeasureOutputs, OfConv1dInBothLayouts) {
  const MemoryReader in = gpt2();
  MemoryReader other, linear;
  other.set_architecture("GPT2LMHeadModel");
  linear.set_architecture("LlamaForCausalLM");
  const std::vector<std::pair<std::string, std::size_t>> matrices{{"c_attn", 1500}, {"c_proj", 96}};
  std::map<std::string, std::vector<float>> weights, changed, squares;
  unsigned seed = 6;  // of the matrices, as gpt2() has them
  for (const auto& [name, columns] : matrices) {
    const std::string full = "transformer.h.0.attn." + name;
    weights[name] = test::normal_weights(96 * columns, seed, 0.02f);
    changed[name] = weights[name];
    for (std::size_t i = 0; i < 96 * columns; i += 3) changed[name][i] *= 1 + static_cast<float>(i / columns) / 500;
    add(other, full + ".weight", DType::f32, {96, columns}, changed[name]);
    squares[name] = mean_squares(96, seed++);
    maker.add(full, squares[name]);
    std::vector<float> transposed(96 * columns);
    for (std::size_t r = 0; r < 96; ++r)
      for (std::size_t c = 0; c < columns; ++c) transposed[c * 96 + r] = weights[name][r * columns + c];
    add(linear, "model.layers.0." + name + ".weight", DType::f32, {columns, 96}, transposed);
    maker.add("model.layers.0." + name, squares[name]);
  }
  Recipe all = recipe("nf4");
  all.rules.push_back({"model.layers.0.*", "nf4"});
  all.allow_nibble_only = true;
  const Measurement plain = measured(in, {checkpoint(other)});
  const Converted stored = converted(in, recipe("nf4"));
  const Measurement planned = measured(in, {plan(in, recipe("nf4"))}), read = measured(in, {checkpoint(stored.reader)});
  const Measurement expected = measured(linear, {plan(linear, all)});
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    const auto& [name, columns] = matrices[m];
    expect_output(*plain.candidates[0].tensors[m], weights[name], changed[name],
                  [&, width = columns](std::size_t i) { return squares[name][i / width]; });
    EXPECT_GT(expected.candidates[0].tensors[m]->output.square, 0);
    for (const Measurement* const quantized : {&planned, &read})
      EXPECT_EQ(quantized->candidates[0].tensors[m + 1]->output, expected.candidates[0].tensors[m]->output);
  }
}

// Each expert has its own input. A row may be the weights of one input (Llama 4).
TEST_F(MeasureOutputs, OfExperts) {
  const MemoryReader in = moe();
  MemoryReader other;
  other.set_architecture("Qwen3MoeForCausalLM");
  const std::vector<float> all =
      floats(DType::bf16, test::stored_as(DType::bf16, test::normal_weights(4 * 64 * 96, 8, 0.02f)));
  std::vector<float> changed = all;
  for (std::size_t i = 0; i < all.size(); i += 2) changed[i] *= 1 + static_cast<float>(i % 96) / 300;
  const auto part = [](const std::vector<float>& values, std::size_t e) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(e * 64 * 96);
    return std::vector<float>(begin, begin + 64 * 96);
  };
  for (std::size_t e = 0; e < 4; ++e)
    add(other, "model.layers.0.mlp.experts." + std::to_string(e) + ".down_proj.weight", DType::f32, {64, 96},
        part(changed, e));
  const std::vector<float> columns = mean_squares(96, 1), other_columns = mean_squares(96, 2),
                           rows = mean_squares(64, 3);
  maker.add("columns", columns);
  maker.add("other", other_columns);
  maker.add("rows", rows);
  maker.manifest["weights"] = {{experts, {"columns", "other", "rows", nullptr}}};
  const Measurement found = measured(in, {checkpoint(other)});
  const auto& errors = found.candidates[0].tensors;
  expect_output(*errors[0], part(all, 0), part(changed, 0), [&](std::size_t i) { return columns[i % 96]; });
  expect_output(*errors[1], part(all, 1), part(changed, 1), [&](std::size_t i) { return other_columns[i % 96]; });
  expect_output(*errors[2], part(all, 2), part(changed, 2), [&](std::size_t i) { return rows[i / 96]; });
  EXPECT_EQ(errors[3]->output, ErrorSums{});  // no token reached it
}

TEST_F(MeasureOutputs, RefusesStatisticsOfAnotherModelBeforeItReads) {
  const MemoryReader in = llama();
  const auto refusal = [&] {
    return error_of([&] { (void)measured(in, {plan(in, recipe("nf4"))}); }, Errc::bad_input);
  };
  maker.add("model.layers.7.mlp", mean_squares(64, 1));
  EXPECT_THAT(refusal(), testing::HasSubstr("calibration.json: lists no tensor of '/': is it of another model?"));
  maker.add("model.layers.1.mlp.up_proj", mean_squares(192, 1));
  EXPECT_THAT(refusal(),
              testing::HasSubstr("has 193 columns, its input 'model.layers.1.mlp.up_proj' in the statistics has 192"));
  EXPECT_EQ(in.reads(), 0U);
}

TEST_F(MeasureOutputs, RefusesStatisticsThatChange) {
  const MemoryReader in = llama();
  maker.add("model.layers.0.self_attn.q_proj", mean_squares(400, 1));
  class Changing final : public Progress {
   public:
    explicit Changing(std::filesystem::path path) : path_(std::move(path)) {}
    void advance(std::string_view, std::uint64_t, std::uint64_t) override { std::filesystem::resize_file(path_, 5); }

   private:
    std::filesystem::path path_;
  };
  const std::filesystem::path stats = maker.write(dir);
  Changing progress(stats / "calibration.json");
  EXPECT_THAT(error_of(
                  [&] {
                    (void)measure(in, std::vector{plan(in, recipe("nf4"))}, {.resources = {}, .calibration = stats},
                                  progress);
                  },
                  Errc::input_changed),
              testing::HasSubstr("calibration.json"));
}

TEST_F(MeasureOutputs, TakeMemory) {
  const MemoryReader in = llama();
  maker.add("model.layers.0.self_attn.q_proj", mean_squares(400, 1));
  maker.add("model.layers.1.mlp.up_proj", mean_squares(193, 1));
  const std::filesystem::path stats = maker.write(dir);
  const auto least = [&](const std::filesystem::path& calibration) {
    return test::remedy_of([&] {
             Progress progress;
             (void)measure(in, std::vector{plan(in, recipe("nf4"))},
                           {.resources = {2, 16'000'000}, .calibration = calibration}, progress);
           })
        .bytes;
  };
  EXPECT_EQ(least(stats),
            least({}) + Calibration(stats).memory_bytes() + 3 * 400 * sizeof(float) + 2 * 2 * 4096 * sizeof(float));
}

TEST(Measure, WhatCannotBeComparedIsNamed) {
  MemoryReader in = llama();
  in.add({"model.layers.0.f8.weight", DType::f8_e4m3, {4}}, std::vector<std::byte>(4));
  in.add({"model.positions", DType::i64, {2}}, std::vector<std::byte>(16));
  MemoryReader test;
  add(test, "model.embed_tokens.weight", DType::f32, {50, 193}, std::vector<float>(50 * 193));  // another shape
  add(test, up_proj, DType::f32, {515, 193}, test::normal_weights(515 * 193, 3, 0.05f));
  test.add({"model.norm.weight", DType::i32, {192}}, std::vector<std::byte>(4 * 192));  // no weights
  test.add({"model.layers.0.f8.weight", DType::f8_e4m3, {4}}, std::vector<std::byte>(4));
  add(test, "model.another.weight", DType::f32, {1}, {1});
  const Measurement found = measured(in, {checkpoint(test), checkpoint(in)});
  EXPECT_THAT(found.candidates[0].missing,
              ElementsAre("model.embed_tokens.weight", q_proj, "model.norm.weight", "model.layers.0.f8.weight"));
  EXPECT_THAT(found.candidates[1].missing, ElementsAre("model.layers.0.f8.weight"));
  // Those that one candidate has are measured, and the other has nothing for them.
  ASSERT_EQ(found.tensors.size(), 4U);
  EXPECT_FALSE(found.candidates[0].tensors[1].has_value());
  EXPECT_TRUE(found.candidates[0].tensors[2].has_value());
  EXPECT_EQ(found.candidates[0].tensors[2]->stats.square, 0);
  EXPECT_EQ(found.candidates[0].bytes, 50 * 193 * 4 + 515 * 193 * 4 + 192 * 4 + 4 + 4U);
}

TEST(Measure, NothingInCommon) {
  const MemoryReader in = llama();
  MemoryReader test;
  test.add({"positions", DType::i64, {2}}, std::vector<std::byte>(16));
  const Measurement found = measured(in, {checkpoint(test)});
  EXPECT_EQ(found.tensors.size(), 0U);
  EXPECT_EQ(found.candidates[0].missing.size(), 4U);
  EXPECT_EQ(measured(test, {checkpoint(in)}).tensors.size(), 0U);
}

// ---- quantized references --------------------------------------------------------------------------------------

TEST(Measure, QuantizedReferenceAndPlainTest) {
  const MemoryReader in = llama();
  for (const char* const to : {"nf4", "int8"}) {
    const Converted out = converted(in, recipe(to));
    const Measurement forth = measured(in, {checkpoint(out.reader)});
    const Measurement back = measured(out.reader, {checkpoint(in)});
    ASSERT_EQ(names(back), names(forth));
    for (std::size_t t = 0; t < 4; ++t) {
      const ErrorStats &a = forth.candidates[0].tensors[t]->stats, &b = back.candidates[0].tensors[t]->stats;
      EXPECT_EQ(a.square, b.square);
      EXPECT_EQ(a.max_abs, b.max_abs);
      EXPECT_EQ(a.max_abs_at, b.max_abs_at);
      EXPECT_EQ(back.tensors[t].bytes, forth.candidates[0].tensors[t]->bytes);
      EXPECT_EQ(back.candidates[0].tensors[t]->bytes, forth.tensors[t].bytes);
      EXPECT_EQ(back.tensors[t].info.shape, forth.tensors[t].info.shape);
    }
    EXPECT_EQ(back.bytes, forth.candidates[0].bytes);
  }
}

TEST(Measure, BothQuantized) {
  const MemoryReader in = llama();
  const Converted fine = converted(in, recipe("int8"));
  const Converted coarse = converted(in, recipe("fp4"));
  const Measurement found = measured(fine.reader, {checkpoint(fine.reader), checkpoint(coarse.reader)});
  ASSERT_EQ(found.tensors.size(), 4U);
  for (std::size_t t = 0; t < 4; ++t) EXPECT_EQ(found.candidates[0].tensors[t]->stats.square, 0);
  EXPECT_NEAR(found.candidates[1].tensors[1]->stats.sqnr_db(), 18.2, 0.3);
  EXPECT_EQ(found.candidates[1].tensors[1]->form, CodecSpec("fp4"));
}

// ---- outcomes --------------------------------------------------------------------------------------------------

TEST(Outcome, OfWhatAPlanMakesAndOfWhatIsStored) {
  MemoryReader in = llama(DType::f32);
  Recipe how = recipe("nf4");
  how.embeddings = "bf16";
  how.rules.push_back({".*up_proj.*", "int8"});
  how.allow_nibble_only = true;
  const Converted out = converted(in, how);
  const Measurement found = measured(in, {plan(in, how), checkpoint(out.reader), checkpoint(in)});
  std::map<Outcome, std::size_t> outcomes;
  for (std::size_t t = 0; t < found.tensors.size(); ++t) {
    const PlannedTensor tensor = out.plan.tensors[t];
    const Outcome expected = tensor.quantized         ? Outcome::quantized
                             : tensor.codec == "bf16" ? Outcome::cast
                                                      : Outcome::kept;
    ++outcomes[expected];
    for (const std::size_t c : {0U, 1U})
      EXPECT_EQ(outcome_of(found.tensors[t], *found.candidates[c].tensors[t]), expected) << tensor.info.name;
    EXPECT_EQ(outcome_of(found.tensors[t], *found.candidates[2].tensors[t]), Outcome::kept) << tensor.info.name;
  }
  EXPECT_EQ(outcomes.size(), 3U);
}

// Two NF4 tensors are kept if they are equal, and the plain form of one is a cast.
TEST(Outcome, AgainstAQuantizedReference) {
  const MemoryReader in = llama(DType::f32);
  const Converted nf4 = converted(in, recipe("nf4"));
  MemoryReader changed = llama(DType::f32);
  changed.bytes(1)[3] ^= std::byte{1};
  const Converted other = converted(changed, recipe("nf4"));
  const Measurement found = measured(nf4.reader, {checkpoint(nf4.reader), checkpoint(other.reader), checkpoint(in)});
  const auto outcome = [&](std::size_t c) { return outcome_of(found.tensors[1], *found.candidates[c].tensors[1]); };
  EXPECT_EQ(outcome(0), Outcome::kept);
  EXPECT_EQ(outcome(1), Outcome::quantized);
  EXPECT_EQ(outcome(2), Outcome::cast);
}

// int8 is a codec of a quantized tensor, and the name of a type.
TEST(StoredForm, IsACodecOrAType) {
  const StoredForm codec = CodecSpec("int8"), type = DType::i8;
  EXPECT_TRUE(codec.quantized());
  EXPECT_FALSE(type.quantized());
  EXPECT_NE(codec, type);
  EXPECT_EQ(codec.text(), "int8");
  EXPECT_EQ(type.text(), "int8");
  EXPECT_EQ(StoredForm(CodecSpec("nf4:double_quant=no")).text(), "nf4:double-quant=no");
  EXPECT_EQ(StoredForm(DType::bf16).text(), "bfloat16");
}

// The same weights in another form: options of a codec are a part of its form.
TEST(Outcome, OptionsMakeAnotherForm) {
  MemoryReader in;
  in.add({"up_proj.weight", DType::f32, {4, 64}}, test::bytes_of(std::vector<float>(4 * 64, 0.5f)));
  const Converted tensor = converted(in, recipe("fp8:scales=tensor")), row = converted(in, recipe("fp8:scales=row"));
  const Measurement found = measured(row.reader, {checkpoint(row.reader), checkpoint(tensor.reader)});
  EXPECT_EQ(found.tensors.at(0).form, CodecSpec("fp8"));
  const MeasuredError same = found.candidates[0].tensors.at(0).value(),
                      other = found.candidates[1].tensors.at(0).value();
  EXPECT_EQ(same.form, CodecSpec("fp8"));
  EXPECT_EQ(other.form, CodecSpec("fp8:scales=tensor"));
  EXPECT_FALSE(has_error(found.tensors[0], other));
  EXPECT_EQ(outcome_of(found.tensors[0], same), Outcome::kept);
  EXPECT_EQ(outcome_of(found.tensors[0], other), Outcome::quantized);
  EXPECT_TRUE(std::isnan(same.normal_sqnr_db));
  EXPECT_FALSE(std::isnan(other.normal_sqnr_db));
  // What a plan would write has the same form as what was written.
  EXPECT_EQ(measured(in, {plan(in, recipe("fp8:scales=tensor"))}).candidates.at(0).tensors.at(0)->form, other.form);
}

TEST(Outcome, HeadlinesWhatIsQuantizedThenWhatIsCast) {
  ByOutcome<Totals> totals;
  EXPECT_EQ(totals.headlined(), Outcome::kept);
  totals[Outcome::kept].tensors = 3;
  EXPECT_EQ(&totals.headline(), &totals.kept);
  totals[Outcome::cast].tensors = 2;
  EXPECT_EQ(&totals.headline(), &totals.cast);
  totals[Outcome::quantized].tensors = 1;
  EXPECT_EQ(&totals.headline(), &totals.quantized);
  EXPECT_EQ(totals.headlined(), Outcome::quantized);
}

// ---- figures ---------------------------------------------------------------------------------------------------

TEST(Measure, NonfiniteWeightsAreCounted) {
  MemoryReader in;
  std::vector<float> weights = test::normal_weights(300'000, 1);
  weights[5] = nan;
  weights[200'000] = infinity;
  weights[200'001] = -infinity;
  add(in, "a.weight", DType::f32, {1000, 300}, weights);
  MemoryReader test;
  std::vector<float> other = weights;
  other[5] = 1;
  other[299'999] = nan;
  add(test, "a.weight", DType::f32, {1000, 300}, other);
  const Measurement found = measured(in, {checkpoint(test)});
  const MeasuredError& error = found.candidates[0].tensors[0].value();
  EXPECT_EQ(found.tensors[0].stats.nan, 1U);
  EXPECT_EQ(found.tensors[0].stats.inf, 2U);
  EXPECT_EQ(found.tensors[0].stats.count, 300'000U - 3);
  EXPECT_EQ(error.stats.nan, 1U);
  EXPECT_EQ(error.stats.inf, 2U);
  EXPECT_EQ(error.stats.count, 300'000U - 4);
  EXPECT_EQ(error.stats.square, 0);
  EXPECT_EQ(error.counts.exact, 300'000U - 4);
  EXPECT_THAT(error.counts.errors, IsEmpty());
  EXPECT_TRUE(std::isfinite(found.tensors[0].outlier_energy));
}

// All the way: one weight of 1e300 in a tensor of several tiles, in what convert() writes and in what it would write.
TEST(Measure, NumbersBeyondFp32AreFinite) {
  constexpr std::size_t weights = 10'000, at = 9'000;
  MemoryReader in;
  std::vector<double> values(weights, 0.5);
  values[at] = 1e300;
  values[2] = INFINITY;
  std::vector<std::byte> bytes(weights * sizeof(double));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  in.add({"a.weight", DType::f64, {100, 100}}, bytes);
  for (const char* const to : {"fp32", "fp16", "bf16"}) {
    Recipe how = recipe(to);
    how.on_overflow = OnOverflow::keep;
    const Converted out = converted(in, how);
    const Measurement found = measured(in, {plan(in, how), checkpoint(out.reader), checkpoint(in)});
    EXPECT_EQ(found.tensors[0].stats.inf, 1U) << to;
    EXPECT_EQ(found.tensors[0].stats.beyond_fp32, 1U) << to;
    EXPECT_EQ(found.tensors[0].stats.count, weights - 2) << to;
    for (const std::size_t c : {0U, 1U}) {
      const ErrorStats& stats = found.candidates[c].tensors[0]->stats;
      EXPECT_EQ(stats.lost, 1U) << to;
      EXPECT_EQ(stats.inf, 2U) << to;
      EXPECT_EQ(stats.square, 0) << to;
    }
    EXPECT_EQ(found.candidates[2].tensors[0]->stats.lost, 0U);
    EXPECT_EQ(found.candidates[2].tensors[0]->stats.inf, 1U);
    EXPECT_EQ(outcome_of(found.tensors[0], *found.candidates[2].tensors[0]), Outcome::kept);
  }
}

TEST(Measure, EmptyTensorsAndScalars) {
  MemoryReader in;
  in.add({"empty.weight", DType::f32, {0, 64}}, {});
  in.add({"thin.weight", DType::f32, {64, 0}}, {});
  add(in, "scalar", DType::f32, {}, {2.5f});
  in.add({"none", DType::bf16, {0}}, {});
  const Measurement found = measured(in, {checkpoint(in), plan(in, recipe("fp16"))});
  ASSERT_EQ(names(found), (std::vector<std::string>{"empty.weight", "thin.weight", "scalar", "none"}));
  for (const MeasuredCandidate& candidate : found.candidates) {
    EXPECT_TRUE(std::isnan(candidate.tensors[0]->stats.rmse()));
    EXPECT_EQ(candidate.tensors[2]->stats.count, 1U);
    EXPECT_EQ(candidate.tensors[2]->stats.square, 0);
  }
  EXPECT_FALSE(found.tensors[0].outlier_columns.has_value());
  EXPECT_FALSE(found.tensors[2].outlier_columns.has_value());
}

TEST(Measure, OutlierColumns) {
  MemoryReader in;
  std::vector<double> energy;
  for (const std::size_t columns : {4096U, 701U}) {  // units that end with a row, and units that do not
    const std::size_t rows = (std::size_t{1} << 21) / columns;
    std::vector<float> weights = test::normal_weights(rows * columns, 1);
    double all = 0, outliers = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const bool is_outlier = i % columns == 0 || i % columns == 77 || i % columns == columns - 1;
      if (is_outlier) weights[i] *= 20;
      const double square = static_cast<double>(weights[i]) * weights[i];
      all += square;
      outliers += is_outlier ? square : 0;
    }
    add(in, std::to_string(columns) + ".weight", DType::f32, {rows, columns}, weights);
    energy.push_back(outliers / all);
  }
  add(in, "plain.weight", DType::f32, {300, 700}, test::normal_weights(300 * 700, 2));
  add(in, "vector", DType::f32, {700}, test::normal_weights(700, 2));
  add(in, "wide.weight", DType::f32, {1, 65'537}, std::vector<float>(65'537, 1.0f));
  add(in, "widest.weight", DType::f32, {2, 65'536}, std::vector<float>(2 * 65'536, 1.0f));
  add(in, "zeros.weight", DType::f32, {8, 8}, std::vector<float>(64, 0.0f));
  const Measurement found = measured(in, {checkpoint(in)});
  for (const std::size_t t : {0U, 1U}) {
    EXPECT_EQ(found.tensors[t].outlier_columns, 3U);
    EXPECT_NEAR(found.tensors[t].outlier_energy, energy[t], 1e-6);
  }
  EXPECT_EQ(found.tensors[2].outlier_columns, 0U);
  EXPECT_EQ(found.tensors[2].outlier_energy, 0);
  EXPECT_FALSE(found.tensors[3].outlier_columns.has_value());
  EXPECT_FALSE(found.tensors[4].outlier_columns.has_value());
  EXPECT_EQ(found.tensors[5].outlier_columns, 0U);
  EXPECT_EQ(found.tensors[6].outlier_columns, 0U);
}

// 4 bits of which normal weights use 3.885: the figure is computed from four million weights by others.
TEST(Measure, EntropyOfTheCodesOfNormalWeights) {
  MemoryReader in;
  add(in, "a.q_proj.weight", DType::f32, {1024, 1024}, test::normal_weights(1 << 20, 1));
  const Measurement found = measured(in, {plan(in, recipe("nf4")), plan(in, recipe("int8"))});
  EXPECT_NEAR(found.candidates[0].tensors[0]->counts.entropy(), 3.885, 0.001);
  EXPECT_TRUE(std::isnan(found.candidates[1].tensors[0]->counts.entropy()));
}

TEST(Measure, CountsAreMadeOnRequestOnly) {
  const MemoryReader in = llama();
  Progress progress;
  const Measurement found = measure(in, std::vector{plan(in, recipe("nf4"))}, {}, progress);
  for (const auto& error : found.candidates[0].tensors) {
    EXPECT_THAT(error->counts.codes, IsEmpty());
    EXPECT_THAT(error->counts.errors, IsEmpty());
    EXPECT_EQ(error->counts.exact, 0U);
  }
}

// ---- how it is done must not matter ----------------------------------------------------------------------------

// The first 64 KiB more than is needed at all.
Resources min_memory(const Reader& in, const std::vector<Candidate>& candidates) {
  for (Resources resources{2, 14 << 20};; resources.max_memory += 1 << 16) try {
      (void)measured(in, candidates, resources);
      return resources;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::no_space);
    }
}

// The smallest memory leaves one unit in flight and no room for what is encoded: it goes to a file.
TEST(Measure, FiguresDoNotDependOnThreadsOrMemory) {
  MemoryReader in = llama(DType::bf16);
  for (std::size_t i = 0; i < 60; ++i)
    in.add_normal("model.layers." + std::to_string(i + 2) + ".mlp.up_proj.weight", DType::bf16,
                  {1 + i % 5, 64 * (1 + i % 3)});
  const Converted out = converted(in, recipe("nf4"));
  const std::vector<Candidate> candidates{checkpoint(out.reader), plan(in, recipe("nf4")), plan(in, recipe("int8")),
                                          plan(in, recipe("fp16"))};
  const Measurement first = measured(in, candidates, {1, 1'000'000'000});
  const Resources min = min_memory(in, candidates);
  for (const Resources& resources :
       {Resources{2, 1'000'000'000}, Resources{7, 1'000'000'000}, Resources{64, 400'000'000}, min})
    expect_equal(measured(in, candidates, resources), first);
  EXPECT_LT(min.max_memory, 30'000'000U);
}

// Gathering takes long, so it is done once for all candidates where there is room for the weights. Others are not kept:
// each candidate reads them.
TEST(Measure, TransposedWeightsAreGatheredOnce) {
  const auto reads = [](const MemoryReader& in, const std::vector<Candidate>& candidates, const Resources& resources) {
    const std::uint64_t before = in.reads();
    (void)measured(in, candidates, resources);
    return in.reads() - before;
  };
  const auto expect_reads = [&](const MemoryReader& in, bool once) {
    const std::vector<Candidate> one{plan(in, recipe("nf4"))}, two{plan(in, recipe("nf4")), plan(in, recipe("fp4"))};
    EXPECT_EQ(reads(in, one, {}) == reads(in, two, {}), once);
    EXPECT_LT(reads(in, one, min_memory(in, two)), reads(in, two, min_memory(in, two)));
  };
  expect_reads(gpt2(), true);
  expect_reads(llama(), false);
}

TEST(Measure, ProgressComesInOrderAndCanBeCancelled) {
  class Watch final : public Progress {
   public:
    explicit Watch(std::size_t calls) : max_calls_(calls) {}
    void advance(std::string_view tensor, std::uint64_t done, std::uint64_t total) override {
      EXPECT_GE(done, done_);
      EXPECT_LE(done, total);
      done_ = done;
      total_ = total;
      if (names.empty() || names.back() != tensor) names.emplace_back(tensor);
      ++calls_;
    }
    [[nodiscard]] bool cancelled() const override { return calls_ >= max_calls_; }
    [[nodiscard]] bool is_complete() const { return done_ == total_; }
    [[nodiscard]] std::size_t calls() const { return calls_; }
    std::vector<std::string> names;

   private:
    std::size_t max_calls_;
    std::atomic<std::size_t> calls_ = 0;
    std::uint64_t done_ = 0, total_ = 0;
  };
  const MemoryReader in = llama();
  const std::vector<Candidate> candidates{plan(in, recipe("nf4"))};
  Watch all(1'000'000);
  EXPECT_EQ(names(measure(in, candidates, {}, all)), all.names);
  EXPECT_TRUE(all.is_complete());
  for (const std::size_t calls : {std::size_t{1}, all.calls()}) {  // also with the last of them
    Watch some(calls);
    EXPECT_EQ(error_of([&] { (void)measure(in, candidates, {}, some); }, Errc::interrupted), "interrupted") << calls;
  }
}

}  // namespace
}  // namespace nibble::measure_test
