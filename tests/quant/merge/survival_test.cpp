#include "quant/merge/survival.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::survival_test {
namespace {

using Floats = std::vector<float>;

Floats sum(const Floats& a, const Floats& b) {
  Floats result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] + b[i];
  return result;
}

TEST(Survival, IsItsFormula) {
  const Floats w = test::normal_weights(1000, 1), dw = test::normal_weights(1000, 2, 0.1f),
               noise = test::normal_weights(1000, 3, 0.1f), merged = sum(w, dw), quantized = sum(merged, noise);
  Survival survival;
  survival.add(w, merged, w, quantized);
  double update = 0, left = 0, both = 0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double d = static_cast<double>(merged[i] - w[i]), q = static_cast<double>(quantized[i] - w[i]);
    update += d * d, left += q * q, both += d * q;
  }
  EXPECT_NEAR(survival.ratio(), std::sqrt(left / update), 1e-6);
  EXPECT_NEAR(survival.cosine(), both / std::sqrt(left * update), 1e-6);
  EXPECT_NEAR(survival.update_norm(), std::sqrt(update), 1e-6 * std::sqrt(update));
}

TEST(Survival, AllOrNothing) {
  const Floats w = test::normal_weights(100, 1), merged = sum(w, test::normal_weights(100, 2));
  Survival all, nothing, no_update, opposite;
  all.add(w, merged, w, merged);
  EXPECT_EQ(all.ratio(), 1.0);
  EXPECT_EQ(all.cosine(), 1.0);
  nothing.add(w, merged, w, w);
  EXPECT_EQ(nothing.ratio(), 0.0);
  EXPECT_TRUE(std::isnan(nothing.cosine()));
  no_update.add(w, w, w, w);
  EXPECT_TRUE(std::isnan(no_update.ratio()));
  EXPECT_TRUE(std::isnan(no_update.cosine()));
  EXPECT_EQ(no_update.update_norm(), 0.0);
  opposite.add(w, merged, merged, w);
  EXPECT_NEAR(opposite.ratio(), 1.0, 1e-12);
  EXPECT_NEAR(opposite.cosine(), -1.0, 1e-12);
}

TEST(Survival, PiecesAddUp) {
  const Floats w = test::normal_weights(128, 1), merged = sum(w, test::normal_weights(128, 2));
  Survival whole, pieces, second;
  const auto part = [](const Floats& f, std::size_t at) { return std::span(f).subspan(at, 64); };
  for (const std::size_t at : {std::size_t{0}, std::size_t{64}})
    whole.add(part(w, at), part(merged, at), part(w, at), part(w, 64 - at));
  pieces.add(part(w, 0), part(merged, 0), part(w, 0), part(w, 64));
  second.add(part(w, 64), part(merged, 64), part(w, 64), part(w, 0));
  pieces.add(second);
  EXPECT_EQ(pieces, whole);
}

TEST(Survival, WeightsThatAreNotFiniteAreLeftOut) {
  Floats w{1, 2, 3}, merged{2, 2, 4}, quantized{1.5f, 2, 4};
  Survival finite, with_nan;
  finite.add(std::span(w).first(2), std::span(merged).first(2), std::span(w).first(2), std::span(quantized).first(2));
  w[2] = NAN;
  with_nan.add(w, merged, w, quantized);
  EXPECT_EQ(with_nan.ratio(), finite.ratio());
  EXPECT_EQ(with_nan.ratio(), 0.5);
}

}  // namespace
}  // namespace nibble::survival_test
