// What measure() says of each format, and of weights of each type, against the decoded weights themselves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "nibble/error.hpp"
#include "quant/schemes/scheme.hpp"
#include "tests/quant/codecs/codec_support.hpp"
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
using testing::IsEmpty;

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

}  // namespace
}  // namespace nibble::measure_test
