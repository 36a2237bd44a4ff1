// Errors of outputs: measure() with the mean squares of the inputs, and what is refused as such.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <utility>

#include "formats/calibration/calibration.hpp"
#include "nibble/error.hpp"
#include "tests/quant/jobs/measure/measure_support.hpp"
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

}  // namespace
}  // namespace nibble::measure_test
