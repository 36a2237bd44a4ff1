// What became of a weight: kept, cast or quantized; and the form in which it is stored.

#include "nibble/outcome.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/quant/jobs/measure/measure_support.hpp"
#include "tests/support/conversion.hpp"

namespace nibble::measure_test {
namespace {

using test::checkpoint;
using test::Converted;
using test::converted;
using test::MemoryReader;
using test::plan;
using test::recipe;

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

}  // namespace
}  // namespace nibble::measure_test
