#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "nibble/measure.hpp"
#include "nibble/metrics.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/memory_checkpoint.hpp"

/// Models to measure, and measurements to hold against each other.
namespace nibble::measure_test {

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();
inline constexpr std::size_t unit_weights = 1 << 17;  // measure() adds up sums of as many

inline constexpr const char* q_proj = "model.layers.0.self_attn.q_proj.weight";
inline constexpr const char* up_proj = "model.layers.1.mlp.up_proj.weight";

inline void add(test::MemoryReader& in, const std::string& name, DType dtype, const Shape& shape,
                const std::vector<float>& weights) {
  in.add({name, dtype, shape}, test::stored_as(dtype, weights));
}

// A matrix of several units, one of an odd number of weights, embeddings and a norm, which stay as they are.
inline test::MemoryReader llama(DType dtype = DType::f32) {
  test::MemoryReader in;
  in.set_architecture("LlamaForCausalLM");
  add(in, "model.embed_tokens.weight", dtype, {50, 192}, test::normal_weights(50 * 192, 1, 0.02f));
  add(in, q_proj, dtype, {700, 400}, test::normal_weights(700 * 400, 2, 0.02f));
  add(in, up_proj, dtype, {515, 193}, test::normal_weights(515 * 193, 3, 0.05f));
  add(in, "model.norm.weight", dtype, {192}, test::normal_weights(192, 4));
  return in;
}

inline test::MemoryReader gpt2() {
  test::MemoryReader in;
  in.set_architecture("GPT2LMHeadModel");
  add(in, "transformer.wte.weight", DType::f32, {60, 96}, test::normal_weights(60 * 96, 5));
  add(in, "transformer.h.0.attn.c_attn.weight", DType::f32, {96, 1500}, test::normal_weights(96 * 1500, 6, 0.02f));
  add(in, "transformer.h.0.attn.c_proj.weight", DType::f32, {96, 96}, test::normal_weights(96 * 96, 7, 0.02f));
  return in;
}

inline constexpr const char* experts = "model.layers.0.mlp.experts.down_proj";

inline test::MemoryReader moe() {
  test::MemoryReader in;
  in.set_architecture("Qwen3MoeForCausalLM");
  add(in, experts, DType::bf16, {4, 64, 96}, test::normal_weights(4 * 64 * 96, 8, 0.02f));
  add(in, q_proj, DType::bf16, {96, 64}, test::normal_weights(96 * 64, 9, 0.02f));
  return in;
}

inline Measurement measured(const Reader& in, const std::vector<Candidate>& candidates,
                            const Resources& resources = {}) {
  Progress progress;
  return measure(in, candidates, {.counts = true, .resources = resources}, progress);
}

inline std::vector<std::string> names(const Measurement& measurement) {
  std::vector<std::string> result;
  for (const MeasuredWeights& tensor : measurement.tensors) result.push_back(tensor.info.name);
  return result;
}

inline std::vector<float> floats(DType dtype, std::span<const std::byte> bytes) {
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

inline ErrorStats compare_in_units(std::span<const float> reference, std::span<const float> test) {
  ErrorStats stats;
  for (std::size_t i = 0; i < reference.size(); i += unit_weights) {
    const std::size_t n = std::min(unit_weights, reference.size() - i);
    stats.add(compare(reference.subspan(i, n), test.subspan(i, n), i));
  }
  return stats;
}

inline WeightStats describe_in_units(std::span<const float> weights) {
  WeightStats stats;
  stats.pivot = choose_pivot(weights);
  for (std::size_t i = 0; i < weights.size(); i += unit_weights)
    stats.add(describe(weights.subspan(i, std::min(unit_weights, weights.size() - i)), stats.pivot));
  return stats;
}

inline void expect_equal(const Counts& a, const Counts& b) {
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.errors, b.errors);
  EXPECT_EQ(a.exact, b.exact);
}

inline void expect_equal(const MeasuredCandidate& a, const MeasuredCandidate& b) {
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

inline void expect_equal(const Measurement& a, const Measurement& b) {
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

}  // namespace nibble::measure_test
