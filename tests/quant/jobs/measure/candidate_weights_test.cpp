// Counterparts of a tensor, one at a time. What measure() makes of them is in measure_test.cpp.

#include "quant/jobs/measure/candidate_weights.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nibble/error.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::candidate_weights_test {
namespace {

using test::MemoryReader;

constexpr const char* q_proj = "model.layers.0.self_attn.q_proj.weight";
constexpr std::uint64_t rows = 700, columns = 400;  // more than two chunks of 2^17 weights

MemoryReader model(const std::vector<float>& weights, DType dtype = DType::bf16) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM");
  in.add({q_proj, dtype, {rows, columns}}, test::stored_as(dtype, weights));
  return in;
}
MemoryReader model(DType dtype = DType::bf16) { return model(test::normal_weights(rows * columns, 1, 0.02f), dtype); }

// A measurement of one candidate, and the tensor that it is asked about.
struct Opened {
  Opened(const Reader& in, Candidate candidate)
      : candidates{std::move(candidate)},
        pairing(in, candidates),
        reference(open_source(pairing.reference(), pairing.reference()[0], buffers)) {
    // As measure() does: errors are found by comparing, so encoders need not keep what their sums are made of.
    Recipe made = candidates[0].plan ? candidates[0].plan->recipe : Recipe();
    made.error_report = ErrorReport::none;
    if (candidates[0].plan)
      codings.emplace_back(made, candidates[0].plan->tensors);
    else
      codings.emplace_back(made);
    std::vector<std::vector<std::string>> missing(1);
    rows = pairing.rows_of(0, missing);
  }
  [[nodiscard]] const PlannedTensor& planned() const { return rows.at(0).planned.at(0).value(); }

  std::vector<Candidate> candidates;
  Buffers buffers;
  Pairing pairing;
  WeightSource reference;
  std::deque<Codings> codings;
  std::vector<Pairing::Row> rows;
  Progress progress;
  std::deque<Weighing> weighings{1};
  CandidateWeights weights{pairing, candidates, codings, weighings, buffers, progress};
};

std::vector<float> decoded(const CandidateTensor& tensor) {
  Buffers::Loan loan;
  const std::uint64_t n = tensor.weights->info().elements();
  const auto raw = tensor.weights->raw(0, n, loan);
  std::vector<float> all(n), tile(4096);
  for (std::uint64_t at = 0; at < n; at += tile.size()) {
    const auto found = tensor.weights->decode(0, raw, at, std::min<std::uint64_t>(tile.size(), n - at), tile);
    std::copy(found.begin(), found.end(), all.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return all;
}

// What does not fit into memory goes through a file, and is the same.
TEST(CandidateWeights, AreTheSameInMemoryAndInAFile) {
  const MemoryReader in = model();
  for (const char* const to : {"nf4", "fp4:double-quant=no", "int8", "fp8:scales=block", "fp16"}) {
    Opened opened(in, test::plan(in, test::recipe(to)));
    const CandidateTensor kept = opened.weights.encoded(0, opened.planned(), opened.reference, true);
    const CandidateTensor filed = opened.weights.encoded(0, opened.planned(), opened.reference, false);
    EXPECT_FALSE(kept.file) << to;
    EXPECT_TRUE(filed.file) << to;
    EXPECT_TRUE(filed.memory.bytes().empty()) << to;
    const test::Converted written = test::converted(in, test::recipe(to));
    Opened stored(in, test::checkpoint(written.reader));
    const std::vector<float> expected = decoded(stored.weights.stored(0, 0));
    EXPECT_EQ(decoded(kept), expected) << to;
    EXPECT_EQ(decoded(filed), expected) << to;
  }
}

// A plan, and a checkpoint with what it writes, have the same form.
TEST(CandidateWeights, SayWhatTheyAre) {
  const MemoryReader in = model();
  struct Expected {
    const char* to;
    StoredForm form;
    bool has_codes;
  };
  for (const auto& [to, form, has_codes] : {Expected{"nf4", CodecSpec("nf4"), true},
                                            {"nf4:double-quant=no", CodecSpec("nf4:double-quant=no"), true},
                                            {"int8", CodecSpec("int8"), false},
                                            {"fp8", CodecSpec("fp8"), false},
                                            {"fp16", DType::f16, false}}) {
    Opened planned(in, test::plan(in, test::recipe(to)));
    const test::Converted written = test::converted(in, test::recipe(to));
    Opened stored(in, test::checkpoint(written.reader));
    const CandidateTensor one = planned.weights.encoded(0, planned.planned(), planned.reference, true);
    const CandidateTensor other = stored.weights.stored(0, 0);
    for (const CandidateTensor* const tensor : {&one, &other}) {
      EXPECT_EQ(tensor->form, form) << to;
      EXPECT_EQ(tensor->has_codes, has_codes) << to;
    }
    EXPECT_EQ(one.bytes, other.bytes) << to;
    EXPECT_EQ(one.normal_sqnr_db, other.normal_sqnr_db) << to;
    EXPECT_TRUE(std::isfinite(one.normal_sqnr_db)) << to;
  }
}

// A cast to the type that the weights have is nothing to be read.
TEST(CandidateWeights, TheSameTypeIsTheReference) {
  const MemoryReader in = model(DType::f16);
  for (const auto& [to, is_reference] : {std::pair{"fp16", true}, {"bf16", false}, {"nf4", false}}) {
    Opened opened(in, test::plan(in, test::recipe(to)));
    const CandidateTensor tensor = opened.weights.encoded(0, opened.planned(), opened.reference, true);
    EXPECT_EQ(tensor.is_reference, is_reference) << to;
    EXPECT_EQ(tensor.weights.has_value(), !is_reference) << to;
    EXPECT_EQ(opened.weights.memory_bytes(0, opened.planned(), opened.reference).has_value(), !is_reference) << to;
  }
  // Decoded weights have no form of their own: fp8 whose scales are bf16 is no bf16.
  const test::Converted fp8 = test::converted(model(), test::recipe("fp8"));
  Opened opened(fp8.reader, test::plan(fp8.reader, test::recipe("bf16")));
  EXPECT_FALSE(opened.weights.encoded(0, opened.planned(), opened.reference, true).is_reference);
}

TEST(CandidateWeights, MemoryIsForTheCodesAndWhatTheEncoderKeeps) {
  const MemoryReader in = model();
  const auto bytes = [&](const char* to) {
    Opened opened(in, test::plan(in, test::recipe(to)));
    return opened.weights.memory_bytes(0, opened.planned(), opened.reference).value();
  };
  EXPECT_EQ(bytes("fp16"), rows * columns * 2);
  EXPECT_EQ(bytes("nf4:double-quant=no"), rows * columns / 2 + 4 * ((rows * columns + 63) / 64));
  EXPECT_EQ(bytes("int8"), rows * columns + 4 * rows);
}

// As a conversion does: the tensor stays as it is, and is then the reference itself.
TEST(CandidateWeights, WhatIsNotFiniteStaysAsItIs) {
  std::vector<float> weights = test::normal_weights(rows * columns, 1, 0.02f);
  weights[rows * columns - 1] = std::numeric_limits<float>::quiet_NaN();
  const MemoryReader in = model(weights);
  for (const bool fits : {true, false}) {
    Opened opened(in, test::plan(in, test::recipe("nf4")));
    const CandidateTensor tensor = opened.weights.encoded(0, opened.planned(), opened.reference, fits);
    EXPECT_TRUE(tensor.is_reference);
    EXPECT_EQ(tensor.form, DType::bf16);
    EXPECT_EQ(tensor.bytes, rows * columns * 2);
  }
}

class Cancelled final : public Progress {
 public:
  [[nodiscard]] bool cancelled() const override { return true; }
};

TEST(CandidateWeights, EncodingStopsWhenItIsCancelled) {
  const MemoryReader in = model();
  Opened opened(in, test::plan(in, test::recipe("nf4")));
  const Cancelled progress;
  CandidateWeights weights(opened.pairing, opened.candidates, opened.codings, opened.weighings, opened.buffers,
                           progress);
  for (const bool fits : {true, false})
    EXPECT_EQ(
        test::error_of([&] { (void)weights.encoded(0, opened.planned(), opened.reference, fits); }, Errc::interrupted),
        "interrupted");
}

// A file that cannot be made is an error about its folder, and not about the model.
TEST(CandidateWeights, FilesLieInTheTemporaryFolder) {
  const MemoryReader in = model();
  Opened opened(in, test::plan(in, test::recipe("nf4")));
  const char* const before = std::getenv("TMPDIR");
  const std::string old = before == nullptr ? "" : before;
  ::setenv("TMPDIR", "/nowhere/at/all", 1);
  const std::string error =
      test::error_of([&] { (void)opened.weights.encoded(0, opened.planned(), opened.reference, false); }, Errc::io);
  (void)opened.weights.encoded(0, opened.planned(), opened.reference, true);  // needs none
  if (before == nullptr)
    ::unsetenv("TMPDIR");
  else
    ::setenv("TMPDIR", old.c_str(), 1);
  EXPECT_TRUE(error.starts_with("$TMPDIR: ")) << error;
}

}  // namespace
}  // namespace nibble::candidate_weights_test
