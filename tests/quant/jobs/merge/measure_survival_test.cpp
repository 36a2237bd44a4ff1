#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nibble/error.hpp"
#include "nibble/merge.hpp"
#include "quant/jobs/plan/plan.hpp"
#include "quant/stream/stored_weights.hpp"
#include "tests/quant/jobs/merge/merged_base.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::measure_survival_test {
namespace {

using test::base;
using test::error_of;
using test::merged;

Plan plan_of(const Reader& in, const CodecSpec& to) { return make_plan(StoredWeights(in, {}), test::recipe(to)); }

std::vector<UpdateSurvival> survival(const Reader& in, const CodecSpec& to, const Resources& resources = {}) {
  Progress silent;
  return measure_survival(in, plan_of(in, to), resources, silent);
}

TEST(MeasureSurvival, IsThatOfEveryQuantizedUpdate) {
  const auto in = merged(base());
  const auto int8 = survival(*in, "int8"), nf4 = survival(*in, "nf4");
  ASSERT_EQ(int8.size(), 1u);
  ASSERT_EQ(nf4.size(), 1u);
  EXPECT_EQ(nf4[0].name, test::attention + "q_proj.weight");
  EXPECT_GT(nf4[0].update_norm, 0);
  EXPECT_EQ(nf4[0].update_norm, int8[0].update_norm);
  EXPECT_GT(int8[0].cosine, nf4[0].cosine);
  EXPECT_GT(nf4[0].cosine, 0);
  EXPECT_LT(int8[0].cosine, 1);
  EXPECT_TRUE(survival(*in, "bf16").empty());
}

TEST(MeasureSurvival, DependsOnNeitherThreadsNorMemory) {
  const auto in = merged(base());
  const auto once = survival(*in, "nf4");
  const auto again = survival(*in, "nf4", {.threads = 3, .max_memory = 100'000});  // encoded into files
  EXPECT_EQ(again[0].ratio, once[0].ratio);
  EXPECT_EQ(again[0].cosine, once[0].cosine);
}

// Both are encoded as the conversion does it.
TEST(MeasureSurvival, IsTheDifferenceOfTwoConversions) {
  const auto in = merged(base(DType::f32));
  test::MemoryReader plain;  // the same weights, merged
  plain.set_architecture("LlamaForCausalLM", false);
  for (std::size_t t = 0; t < in->tensors().size(); ++t) plain.add(in->tensors()[t], test::bytes_of(*in, t));
  const auto decoded = [](const test::MemoryReader& of) {
    const test::Converted quantized = test::converted(of, test::recipe("nf4"));
    auto copy = std::make_unique<test::MemoryReader>();
    copy->set_architecture("LlamaForCausalLM", false);
    copy->set_quant_method("bitsandbytes");
    for (std::size_t t = 0; t < quantized.reader.tensors().size(); ++t)
      copy->add(quantized.reader.tensors()[t], test::bytes_of(quantized.reader, t));
    const PlainReader weights(std::move(copy));
    for (std::size_t t = 0; t < weights.tensors().size(); ++t)
      if (weights.tensors().name(t) == test::attention + "q_proj.weight")
        return test::numbers_of(DType::f32, test::bytes_of(weights, t));
    return std::vector<double>();
  };
  const auto before = base(DType::f32);
  const std::vector<double> w = test::numbers_of(DType::f32, test::bytes_of(*before, 3)),
                            w_dw = test::numbers_of(DType::f32, test::bytes_of(plain, 3)), q = decoded(*before),
                            q_dw = decoded(plain);
  ASSERT_EQ(q.size(), w.size());
  double update = 0, left = 0, product = 0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double dw = w_dw[i] - w[i], dq = q_dw[i] - q[i];
    update += dw * dw, left += dq * dq, product += dw * dq;
  }
  const UpdateSurvival found = survival(*in, "nf4").at(0);
  EXPECT_NEAR(found.update_norm, std::sqrt(update), 1e-5 * std::sqrt(update));
  EXPECT_NEAR(found.ratio, std::sqrt(left / update), 1e-5);
  EXPECT_NEAR(found.cosine, product / std::sqrt(left * update), 1e-5);
}

// Each tensor is told when it begins and when it ends.
TEST(MeasureSurvival, TellsHowFarItHasCome) {
  struct : Progress {
    void advance(std::string_view tensor, std::uint64_t done, std::uint64_t total) override {
      EXPECT_EQ(tensor, test::attention + "q_proj.weight");
      EXPECT_EQ(total, 256 * 256 * sizeof(float));
      told.push_back(done);
    }
    std::vector<std::uint64_t> told;
  } progress;
  const auto in = merged(base());
  (void)measure_survival(*in, plan_of(*in, "nf4"), {}, progress);
  EXPECT_THAT(progress.told, testing::ElementsAre(0u, 256 * 256 * sizeof(float)));
}

TEST(MeasureSurvival, CanBeCancelled) {
  struct : Progress {
    [[nodiscard]] bool cancelled() const override { return true; }
  } progress;
  const auto in = merged(base());
  EXPECT_NE(error_of([&] { (void)measure_survival(*in, plan_of(*in, "nf4"), {}, progress); }, Errc::interrupted), "");
}

TEST(MeasureSurvival, NeedsAnAdapter) {
  EXPECT_EQ(error_of([] { (void)survival(*base(), "nf4"); }, Errc::usage), "no adapter is merged into this checkpoint");
}

}  // namespace
}  // namespace nibble::measure_survival_test
