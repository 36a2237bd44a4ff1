// Which tensor is held against which, and how it is seen: no weights are read for it.

#include "quant/jobs/measure/pairing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::pairing_test {
namespace {

using test::checkpoint;
using test::converted;
using test::error_of;
using test::MemoryReader;
using test::plan;
using test::recipe;
using test::with_experts;
using testing::ElementsAre;
using testing::IsEmpty;
using Names = std::vector<std::string>;

constexpr const char* q_proj = "model.layers.0.self_attn.q_proj.weight";
constexpr const char* norm = "model.norm.weight";

void add(MemoryReader& in, const std::string& name, DType dtype, const Shape& shape) {
  in.add({name, dtype, shape}, std::vector<std::byte>(TensorInfo{name, dtype, shape}.bytes()));
}

MemoryReader llama() {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM");
  add(in, q_proj, DType::bf16, {96, 64});
  add(in, norm, DType::bf16, {64});
  return in;
}

constexpr const char* c_attn = "transformer.h.0.attn.c_attn.weight";

MemoryReader gpt2() {
  MemoryReader in;
  in.set_architecture("GPT2LMHeadModel");
  add(in, "transformer.wte.weight", DType::f32, {60, 96});
  add(in, c_attn, DType::f32, {96, 288});
  return in;
}

constexpr const char* fused = "model.layers.0.mlp.experts.down_proj";
std::string expert(std::size_t e) { return "model.layers.0.mlp.experts." + std::to_string(e) + ".down_proj.weight"; }

MemoryReader moe() {
  MemoryReader in;
  in.set_architecture("Qwen3MoeForCausalLM");
  add(in, fused, DType::bf16, {4, 64, 96});
  add(in, q_proj, DType::bf16, {96, 64});
  return in;
}

// A checkpoint without the tensors of these names and their parts.
MemoryReader without(const MemoryReader& in, const Names& names) {
  MemoryReader lacking;
  for (std::size_t part = 0; part < in.tensors().size(); ++part) {
    TensorInfo info = in.tensors()[part];
    if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return info.name.starts_with(name); }))
      continue;
    std::vector<std::byte> bytes(info.bytes());
    in.read(part, 0, bytes);
    lacking.add(std::move(info), std::move(bytes));
  }
  return lacking;
}

struct Found {
  std::vector<Pairing::Row> rows;
  std::vector<Names> missing;
};

// Of a tensor of the reference, by its name.
Found rows_of(const Pairing& pairing, std::string_view name, std::size_t candidates) {
  Found found;
  found.missing.resize(candidates);
  found.rows = pairing.rows_of(pairing.reference().find(name).value(), found.missing);
  return found;
}
Found rows_of(const Reader& in, const std::vector<Candidate>& candidates, std::string_view name) {
  return rows_of(Pairing(in, candidates), name, candidates.size());
}

// ---- names and shapes ------------------------------------------------------------------------------------------

TEST(Pairing, TensorsAreFoundByName) {
  const MemoryReader in = llama();
  MemoryReader other;  // in another order and of another type
  add(other, "model.another.weight", DType::f32, {1});
  add(other, norm, DType::f64, {64});
  add(other, q_proj, DType::f16, {96, 64});
  const std::vector candidates{checkpoint(other)};
  const Pairing pairing(in, candidates);
  for (const char* const name : {q_proj, norm}) {
    const auto [rows, missing] = rows_of(pairing, name, 1);
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].view.info, in.tensors()[name == q_proj ? 0 : 1]);
    EXPECT_FALSE(rows[0].view.transposed);
    EXPECT_EQ(rows[0].stored, std::vector(1, pairing.stored(0).find(name)));
    EXPECT_FALSE(rows[0].planned[0].has_value());
    EXPECT_THAT(missing[0], IsEmpty());
  }
}

TEST(Pairing, PlansAreFoundBySource) {
  const MemoryReader in = llama();
  const std::vector candidates{plan(in, recipe("nf4"))};  // its names are those of the plan
  const auto [rows, missing] = rows_of(Pairing(in, candidates), q_proj, 1);
  ASSERT_EQ(rows.size(), 1U);
  ASSERT_TRUE(rows[0].planned[0].has_value());
  EXPECT_EQ(rows[0].planned[0]->codec, "nf4");
  EXPECT_EQ(rows[0].planned[0]->info.name, q_proj);
  EXPECT_FALSE(rows[0].stored[0].has_value());
}

TEST(Pairing, OtherShapesAndTypesAreNoMatch) {
  const MemoryReader in = llama();
  MemoryReader other;
  add(other, q_proj, DType::bf16, {64, 96});
  add(other, norm, DType::i32, {64});
  for (const char* const name : {q_proj, norm}) {
    const auto [rows, missing] = rows_of(in, {checkpoint(other), checkpoint(in)}, name);
    ASSERT_EQ(rows.size(), 1U);  // the other candidate's
    EXPECT_FALSE(rows[0].stored[0].has_value());
    EXPECT_TRUE(rows[0].stored[1].has_value());
    EXPECT_THAT(missing, ElementsAre(ElementsAre(name), IsEmpty()));
  }
  EXPECT_THAT(rows_of(in, {checkpoint(other)}, q_proj).rows, IsEmpty());
}

// Numbers that nothing here decodes are named; integers are no weights, and nobody misses them.
TEST(Pairing, TypesThatAreNotCompared) {
  MemoryReader in = llama();
  add(in, "model.f8.weight", DType::f8_e4m3, {4});
  add(in, "model.positions", DType::i64, {2});
  const std::vector candidates{checkpoint(in), plan(in, recipe("nf4"))};
  const auto f8 = rows_of(in, candidates, "model.f8.weight");
  EXPECT_THAT(f8.rows, IsEmpty());
  EXPECT_THAT(f8.missing, ElementsAre(ElementsAre("model.f8.weight"), ElementsAre("model.f8.weight")));
  const auto positions = rows_of(in, candidates, "model.positions");
  EXPECT_THAT(positions.rows, IsEmpty());
  EXPECT_THAT(positions.missing, ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(Pairing, MissingIsAddedToWhatIsThere) {
  const MemoryReader in = llama();
  const MemoryReader lacking = without(in, {norm});
  const std::vector candidates{checkpoint(lacking)};
  std::vector<Names> missing{{"before"}};
  EXPECT_THAT(Pairing(in, candidates).rows_of(1, missing), IsEmpty());
  EXPECT_THAT(missing[0], ElementsAre("before", norm));
}

// ---- transpositions --------------------------------------------------------------------------------------------

// Conv1D is stored as [in, out] and quantized as [out, in]: a checkpoint and a plan of it are one row.
TEST(Pairing, Conv1dIsSeenAsItIsQuantized) {
  const MemoryReader in = gpt2();
  for (const char* const to : {"nf4", "int8"}) {
    const auto out = converted(in, recipe(to));
    const auto [rows, missing] = rows_of(in, {checkpoint(out.reader), plan(in, recipe(to))}, c_attn);
    ASSERT_EQ(rows.size(), 1U) << to;
    EXPECT_TRUE(rows[0].view.transposed);
    EXPECT_EQ(rows[0].view.info.shape, (Shape{288, 96}));
    EXPECT_TRUE(rows[0].stored[0].has_value());
    EXPECT_TRUE(rows[0].planned[1].has_value());
    EXPECT_THAT(missing, ElementsAre(IsEmpty(), IsEmpty()));
  }
}

TEST(Pairing, Conv1dThatIsCastIsSeenAsItIs) {
  const MemoryReader in = gpt2();
  const auto cast = converted(in, recipe("bf16"));
  const auto [rows, missing] = rows_of(in, {checkpoint(cast.reader), plan(in, recipe("bf16"))}, c_attn);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_FALSE(rows[0].view.transposed);
  EXPECT_EQ(rows[0].view.info.shape, (Shape{96, 288}));
}

// Candidates that have it in different ways do not share a row, and lack nothing.
TEST(Pairing, ViewsThatDifferAreRowsOfTheirOwn) {
  const MemoryReader in = gpt2();
  const auto cast = converted(in, recipe("fp16")), quantized = converted(in, recipe("nf4"));
  const auto [rows, missing] = rows_of(in, {checkpoint(cast.reader), checkpoint(quantized.reader)}, c_attn);
  ASSERT_EQ(rows.size(), 2U);
  for (const Pairing::Row& row : rows)
    EXPECT_TRUE(row.stored[row.view.transposed ? 1 : 0].has_value() &&
                !row.stored[row.view.transposed ? 0 : 1].has_value());
  EXPECT_NE(rows[0].view.transposed, rows[1].view.transposed);
  EXPECT_THAT(missing, ElementsAre(IsEmpty(), IsEmpty()));
}

// ---- experts ---------------------------------------------------------------------------------------------------

TEST(Pairing, ExpertsAreSlices) {
  const MemoryReader in = moe();
  const auto out = converted(in, with_experts("nf4"));
  const auto [rows, missing] = rows_of(in, {checkpoint(out.reader), plan(in, with_experts("nf4"))}, fused);
  ASSERT_EQ(rows.size(), 4U);
  for (std::size_t e = 0; e < 4; ++e) {
    EXPECT_EQ(rows[e].view.info, (TensorInfo{expert(e), DType::bf16, {64, 96}}));
    EXPECT_EQ(rows[e].view.source_offset, e * 64 * 96 * 2);
    EXPECT_TRUE(rows[e].stored[0].has_value());
    EXPECT_TRUE(rows[e].planned[1].has_value());
  }
  EXPECT_THAT(missing, ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(Pairing, ExpertsThatStayFusedAreOne) {
  const MemoryReader in = moe();
  const auto out = converted(in, recipe("nf4"));
  const auto [rows, missing] = rows_of(in, {checkpoint(out.reader), plan(in, recipe("nf4"))}, fused);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].view.info.shape, (Shape{4, 64, 96}));
  EXPECT_TRUE(rows[0].stored[0].has_value());
  EXPECT_TRUE(rows[0].planned[1].has_value());
}

TEST(Pairing, ExpertThatIsMissingIsNamed) {
  const MemoryReader in = moe();
  const auto out = converted(in, with_experts("int8"));
  const MemoryReader lacking = without(out.reader, {"model.layers.0.mlp.experts.2."});
  const auto [rows, missing] = rows_of(in, {checkpoint(lacking)}, fused);
  Names names;
  for (const Pairing::Row& row : rows) names.push_back(row.view.info.name);
  EXPECT_THAT(names, ElementsAre(expert(0), expert(1), expert(3)));
  EXPECT_THAT(missing[0], ElementsAre(expert(2)));
}

// Candidates share the rows of the views that they have in common, wherever earlier candidates have put these.
TEST(Pairing, ExpertsOfSeveralCandidatesShareRows) {
  const MemoryReader in = moe();
  const test::Converted all = converted(in, with_experts("nf4"));
  const MemoryReader some = without(all.reader, {expert(0), expert(2)});
  const auto [rows, missing] =
      rows_of(in, {checkpoint(some), checkpoint(in), plan(in, with_experts("int8")), checkpoint(all.reader)}, fused);
  std::map<std::string, std::vector<bool>> has;
  for (const Pairing::Row& row : rows)
    for (std::size_t c = 0; c < 4; ++c)
      has[row.view.info.name].push_back(row.stored[c].has_value() || row.planned[c].has_value());
  EXPECT_EQ(rows.size(), 5U);
  EXPECT_THAT(has[fused], ElementsAre(false, true, false, false));
  for (const std::size_t e : {0U, 1U, 2U, 3U}) EXPECT_THAT(has[expert(e)], ElementsAre(e % 2 == 1, false, true, true));
}

// Without any of them, it is the tensor of the reference that is missing, and not four that nobody has.
TEST(Pairing, ExpertsThatAreAllMissingAreNamedOnce) {
  const MemoryReader in = moe();
  const auto out = converted(in, with_experts("int8"));
  const MemoryReader lacking = without(out.reader, {"model.layers.0.mlp.experts."});
  const auto [rows, missing] = rows_of(in, {checkpoint(lacking)}, fused);
  EXPECT_THAT(rows, IsEmpty());
  EXPECT_THAT(missing[0], ElementsAre(fused));
}

// ---- quantized references --------------------------------------------------------------------------------------

TEST(Pairing, QuantizedReferencesArePairedByName) {
  const MemoryReader in = llama();
  const auto fine = converted(in, recipe("int8")), coarse = converted(in, recipe("fp4"));
  const auto [rows, missing] = rows_of(fine.reader, {checkpoint(coarse.reader), checkpoint(in)}, q_proj);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].view.info.shape, (Shape{96, 64}));
  EXPECT_TRUE(rows[0].stored[0].has_value());
  EXPECT_TRUE(rows[0].stored[1].has_value());
}

// A quantized Conv1D is stored as [out, in]: of a square one, the shapes would not tell.
TEST(Pairing, Conv1dOfAQuantizedReferenceIsTransposedBack) {
  constexpr const char* square = "transformer.h.0.attn.c_proj.weight";
  MemoryReader in = gpt2();
  add(in, square, DType::f32, {96, 96});
  for (const char* const to : {"nf4", "int8"}) {
    auto out = converted(in, recipe(to));
    out.reader.set_architecture("GPT2LMHeadModel");
    for (const char* const name : {square, c_attn}) {
      const auto plain = rows_of(out.reader, {checkpoint(in)}, name);
      ASSERT_EQ(plain.rows.size(), 1U) << name;
      EXPECT_TRUE(plain.rows[0].view.transposed);
      EXPECT_TRUE(plain.rows[0].stored[0].has_value());
      const auto quantized = rows_of(out.reader, {checkpoint(out.reader)}, name);
      ASSERT_EQ(quantized.rows.size(), 1U) << name;
      EXPECT_FALSE(quantized.rows[0].view.transposed);
      EXPECT_TRUE(quantized.rows[0].stored[0].has_value());
    }
  }
}

TEST(Pairing, QuantizedReferencesCannotBeConverted) {
  const auto out = converted(llama(), recipe("nf4"));
  const std::vector candidates{checkpoint(out.reader), plan(out.reader, recipe("fp16"))};
  EXPECT_EQ(error_of([&] { (void)Pairing(out.reader, candidates); }),
            "/: is quantized already: only plain weights can be converted to plan");
}

// What quantizations could make of the reference is for checkpoints that may be one: only then is it found out.
TEST(Pairing, ViewsAreKnownOnlyWhereTheyAreNeeded) {
  const MemoryReader in = moe();
  const auto out = converted(in, with_experts("nf4"));
  const auto knows = [](const Reader& reference, const std::vector<Candidate>& candidates) {
    return Pairing(reference, candidates).views().count > 0;
  };
  EXPECT_TRUE(knows(in, {checkpoint(out.reader)}));
  EXPECT_TRUE(knows(in, {plan(in, recipe("nf4")), checkpoint(in)}));
  EXPECT_FALSE(knows(in, {plan(in, recipe("nf4"))}));
  MemoryReader vectors;
  add(vectors, norm, DType::f32, {64});
  EXPECT_FALSE(knows(vectors, {checkpoint(vectors)}));
}

// ---- errors ----------------------------------------------------------------------------------------------------

TEST(Pairing, ErrorsSayWhichCheckpointTheyAreAbout) {
  const MemoryReader in = llama();
  const auto out = converted(in, recipe("nf4"));
  const MemoryReader broken = without(out.reader, {std::string(q_proj) + ".absmax"});
  const std::vector good{checkpoint(in)}, bad{checkpoint(broken)};
  const std::string expected = "/file0: tensor '" + std::string(q_proj) + "': part '" + q_proj + ".absmax' is missing";
  EXPECT_EQ(error_of([&] { (void)Pairing(in, bad); }), expected);
  EXPECT_EQ(error_of([&] { (void)Pairing(broken, good); }), expected);
}

// As a conversion refuses them, in the same words, on either side.
TEST(Pairing, CodesThatCannotBeDecodedAreRefused) {
  MemoryReader shifted;
  shifted.add({"a.weight", DType::f8_e4m3, {4, 4}}, std::vector<std::byte>(16));
  shifted.add_normal("a.weight_scale", DType::f32, {4, 1});
  shifted.add_normal("a.weight_zero_point", DType::f32, {4, 1});
  const MemoryReader plain = llama();
  const std::vector bad{checkpoint(shifted)};
  const std::string expected = error_of([&] { (void)make_plan(shifted, recipe("nf4")); });
  EXPECT_NE(expected, "");
  EXPECT_EQ(error_of([&] { (void)Pairing(shifted, bad); }), expected);
  EXPECT_EQ(error_of([&] { (void)Pairing(plain, bad); }), expected);
}

TEST(About, KeepsWhatIsReturnedAndTheCodeOfWhatIsThrown) {
  const MemoryReader in;
  EXPECT_EQ(about(in, [] { return 7; }), 7);
  EXPECT_EQ(
      error_of([&] { about(in, [] { throw Error(Errc::input_changed, "no longer exists"); }); }, Errc::input_changed),
      "/: no longer exists");
}

}  // namespace
}  // namespace nibble::pairing_test
