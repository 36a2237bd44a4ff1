// Measurements made up for it, as text: figures by hand, and what has none.

#include "cli/measurement/measurement.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "nibble/version.hpp"
#include "tests/cli/measurement/measurement_support.hpp"

namespace nibble::cli::measurement_test {
namespace {

using made_up::cast;
using made_up::error;
using made_up::kept;
using made_up::lines_of;
using made_up::measurement;
using made_up::of_all_outcomes;
using made_up::two_layers;
using made_up::weights;
using made_up::with_statistics;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

template <class Write> std::string written(Write&& write, const Measurement& measurement) {
  std::string text;
  write(measurement, [&](std::string_view piece) { text += piece; });
  return text;
}
std::string json_text(const Measurement& measurement) { return written(write_json, measurement); }
Json json(const Measurement& measurement) { return Json::parse(json_text(measurement)); }

std::vector<std::string> csv(const Measurement& measurement) { return lines_of(written(write_csv, measurement)); }

// ---- JSON ------------------------------------------------------------------------------------------------------

TEST(MeasurementJson, IsOneLineWithoutItsEnd) {
  const std::string text = json_text(two_layers());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_THAT(text, testing::StartsWith(R"({"schema_version":1,"generator":"nibble )" + std::string(version()) +
                                        R"(","reference":{"name":"model","bytes":2000,"weights":6,"tensors":[)"));
}

TEST(MeasurementJson, FiguresByHand) {
  const Json tensor = json(two_layers())["tests"][0]["tensors"][0];
  EXPECT_EQ(tensor["codec"], "nf4");
  EXPECT_EQ(tensor["bits_per_weight"], 4);
  EXPECT_EQ(tensor["mae"], 0.75);
  EXPECT_DOUBLE_EQ(tensor["rmse"].get<double>(), std::sqrt(1.25));
  EXPECT_EQ(tensor["max_abs"], 2);
  EXPECT_EQ(tensor["max_abs_at"], 1);
  EXPECT_DOUBLE_EQ(tensor["rel_rmse"].get<double>(), std::sqrt(0.2));
  EXPECT_DOUBLE_EQ(tensor["sqnr_db"].get<double>(), 10 * std::log10(5));
  EXPECT_DOUBLE_EQ(tensor["cosine"].get<double>(), 17 / std::sqrt(25.0 * 14));
  EXPECT_EQ(tensor["mean_rel"], 0.25);
  EXPECT_EQ(tensor["worst_block"]["at"], 0);
  EXPECT_EQ(tensor["worst_block"]["absmax"], 4);
}

// Of the tensors that have statistics.
TEST(MeasurementJson, HasTheErrorsOfOutputs) {
  const Json test = json(with_statistics())["tests"][0];
  for (const Json& figures :
       {test["tensors"][0], test["quantized"], test["total"], test["kinds"][1], test["layers"][0]}) {
    EXPECT_DOUBLE_EQ(figures["output_rel_rmse"].get<double>(), 0.1);
    EXPECT_DOUBLE_EQ(figures["output_sqnr_db"].get<double>(), 20);
  }
  EXPECT_EQ(test["total"]["output_tensors"], 1);
  EXPECT_EQ(test["kept"]["output_tensors"], 0);
  for (const Json& figures : {test["tensors"][1], test["kept"], test["layers"][1]}) {
    EXPECT_TRUE(figures["output_rel_rmse"].is_null());
    EXPECT_TRUE(figures["output_sqnr_db"].is_null());
  }
}

// NaN and infinities count, which no figure takes part of.
TEST(MeasurementJson, ExactIsWhatHasNoErrorAtAll) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const auto make = [](float reference, float test) {
    MeasuredWeights tensor = weights("layers.0.up", 2, "up", 0);
    tensor.stats = describe(std::vector<float>{1, reference}, 0);
    const MeasuredWeights other = weights("layers.1.up", 2, "up", 1);
    return json(measurement({tensor, other}, {error({1, reference}, {1, test}), error({1, 2}, {1, 2})}))["tests"][0];
  };
  for (const auto& [reference, test, exact] :
       {std::tuple{2.0f, 2.0f, true}, {nan, nan, true}, {nan, 2.0f, false}, {2.0f, nan, false}, {2.0f, 3.0f, false}}) {
    const Json found = make(reference, test);
    EXPECT_EQ(found["tensors"][0]["exact"], exact) << reference << " -> " << test;
    EXPECT_EQ(found["layers"][0]["exact"], exact);
    EXPECT_EQ(found["kinds"][0]["exact"], exact);
    EXPECT_EQ(found["total"]["exact"], exact);
    EXPECT_EQ(found["layers"][1]["exact"], true);
  }
}

// The mean of two root mean squares is none.
TEST(MeasurementJson, FiguresOfGroupsAreThoseOfAllTheirWeights) {
  const Json test = json(two_layers())["tests"][0];
  const Json& total = test["total"];
  EXPECT_EQ(total["tensors"], 2);
  EXPECT_EQ(total["weights"], 6);
  EXPECT_EQ(total["mae"], 0.5);
  EXPECT_DOUBLE_EQ(total["rmse"].get<double>(), std::sqrt(5.0 / 6));
  EXPECT_DOUBLE_EQ(total["rel_rmse"].get<double>(), std::sqrt(5.0 / 30));
  EXPECT_EQ(total["bits_per_weight"], 4);
  ASSERT_EQ(test["layers"].size(), 2U);
  EXPECT_EQ(test["layers"][1]["layer"], 1);
  EXPECT_EQ(test["layers"][1]["rmse"], 0);
  ASSERT_EQ(test["kinds"].size(), 2U);
  EXPECT_EQ(test["kinds"][0]["kind"], "down");
  EXPECT_EQ(test["kinds"][1]["rmse"], test["layers"][0]["rmse"]);
}

// What was kept or cast would make the error look smaller, the more of it there is.
TEST(MeasurementJson, HeadlinesWhatIsQuantized) {
  const Json test = json(of_all_outcomes())["tests"][0];
  EXPECT_EQ(test["headline"], "quantized");
  EXPECT_EQ(test["quantized"]["tensors"], 1);
  EXPECT_EQ(test["cast"]["tensors"], 1);
  EXPECT_EQ(test["kept"]["tensors"], 2);
  EXPECT_EQ(test["converted"]["tensors"], 2);
  EXPECT_EQ(test["total"]["tensors"], 4);
  EXPECT_EQ(test["quantized"]["sqnr_db"], test["tensors"][0]["sqnr_db"]);
  EXPECT_EQ(test["cast"]["sqnr_db"], test["tensors"][3]["sqnr_db"]);
  EXPECT_LT(test["quantized"]["sqnr_db"], test["converted"]["sqnr_db"]);
  EXPECT_LT(test["converted"]["sqnr_db"], test["total"]["sqnr_db"]);
  const Json& layer = test["layers"][0];
  EXPECT_EQ(layer["headline"], "quantized");
  EXPECT_EQ(layer["sqnr_db"], test["tensors"][0]["sqnr_db"]);
  EXPECT_EQ(layer["tensors"], 1);
  for (const char* const outcome : {"quantized", "cast", "kept"}) EXPECT_EQ(layer[outcome], 1) << outcome;
  EXPECT_EQ(layer["converted"], 2);
  EXPECT_EQ(test["layers"][1]["headline"], "kept");
  EXPECT_EQ(test["tensors"][0]["outcome"], "quantized");
  EXPECT_EQ(test["tensors"][2]["outcome"], "kept");
  EXPECT_EQ(test["tensors"][2]["converted"], false);
  EXPECT_EQ(test["tensors"][3]["outcome"], "cast");
  EXPECT_EQ(test["tensors"][3]["converted"], true);
}

TEST(MeasurementJson, WithoutAnythingQuantizedHeadlinesWhatWasCast) {
  Measurement found = of_all_outcomes();
  found.candidates[0].tensors[0] = kept(error({1}, {1}));
  const Json test = json(found)["tests"][0];
  EXPECT_EQ(test["headline"], "cast");
  EXPECT_EQ(test["layers"][0]["sqnr_db"], test["tensors"][3]["sqnr_db"]);
}

// Weights that differ, in whatever form, were not kept.
TEST(MeasurementJson, OtherWeightsAreConverted) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  Measurement found =
      measurement({weights("other", 1), weights("nan", 1), weights("nan before", 1), weights("cast", 1)},
                  {kept(error({1}, {2})), kept(error({1}, {nan})), kept(error({nan}, {nan})), error({1}, {1})});
  found.tensors[2].stats.nan = 1;
  const Json tensors = json(found)["tests"][0]["tensors"];
  EXPECT_EQ(tensors[0]["converted"], true);
  EXPECT_EQ(tensors[1]["converted"], true);
  EXPECT_EQ(tensors[2]["converted"], false);
  EXPECT_EQ(tensors[3]["converted"], true);
}

TEST(MeasurementJson, WhatHasNoNumberIsNull) {
  Measurement found = measurement({weights("exact", 2), weights("empty", 0), weights("lost", 1), weights("absent", 1)},
                                  {error({1, 2}, {1, 2}), error({}, {}), error({0}, {1}), std::nullopt});
  const Json tensors = json(found)["tests"][0]["tensors"];
  EXPECT_TRUE(tensors[0]["sqnr_db"].is_null());  // infinite
  EXPECT_TRUE(tensors[0]["max_abs_at"].is_null());
  EXPECT_TRUE(tensors[0]["worst_block"].is_null());
  EXPECT_EQ(tensors[0]["rmse"], 0);
  for (const char* const figure : {"mae", "rmse", "max_abs", "rel_rmse", "cosine", "bits_per_weight"})
    EXPECT_TRUE(tensors[1][figure].is_null()) << figure;
  EXPECT_TRUE(tensors[2]["sqnr_db"].is_null());  // -infinite
  EXPECT_TRUE(tensors[3].is_null());
  EXPECT_TRUE(tensors[0]["entropy"].is_null());
  EXPECT_TRUE(tensors[0]["code_use"].is_null());
}

TEST(MeasurementJson, CountsAreListed) {
  Measurement found = two_layers();
  Counts& counts = found.candidates[0].tensors[0]->counts;
  counts.codes.assign(16, 1);
  counts.errors = {{-3, 5}, {1, 7}};
  counts.exact = 2;
  const Json tensor = json(found)["tests"][0]["tensors"][0];
  EXPECT_EQ(tensor["entropy"], 4);
  EXPECT_EQ(tensor["code_use"].size(), 16U);
  EXPECT_EQ(tensor["error_histogram"], Json::parse(R"([["zero", 2], [-3, 5], [1, 7]])"));
}

// NaN that the reference does not have, and errors where it has zeros, come first. Tensors without a metric come
// last, and ties stay in the order of the files.
TEST(MeasurementJson, WrongWeightsComeFirst) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  Measurement found = measurement({weights("empty", 0), weights("exact", 2), weights("absent", 2), weights("half", 2),
                                   weights("zeros", 2), weights("nan", 2), weights("nan in both", 2),
                                   weights("half again", 2), weights("twice", 2), weights("nan elsewhere", 2)},
                                  {error({}, {}), error({1, 1}, {1, 1}), std::nullopt, error({1, 1}, {1.5f, 1.5f}),
                                   error({0, 0}, {0, 1}), error({1, 1}, {1, nan}), error({1, nan}, {1.25f, nan}),
                                   error({2, 2}, {3, 3}), error({1, 1}, {3, 3}), error({1, nan}, {nan, 1})});
  for (const std::size_t t : {6U, 9U}) found.tensors[t].stats.nan = 1;
  EXPECT_EQ(json(found)["tests"][0]["worst"], (Json{4, 5, 9, 8, 3, 7, 6}));
}

TEST(MeasurementJson, TenOfTheWorst) {
  std::vector<MeasuredWeights> tensors;
  std::vector<std::optional<MeasuredError>> errors;
  for (std::size_t t = 0; t < 12; ++t) {
    tensors.push_back(weights(std::to_string(t), 1));
    errors.push_back(error({1}, {static_cast<float>(t)}));  // |t - 1|
  }
  EXPECT_EQ(json(measurement(tensors, errors))["tests"][0]["worst"], (Json{11, 10, 9, 8, 7, 6, 5, 4, 3, 0}));
}

TEST(MeasurementJson, TextsThatAreNoUtf8) {
  Measurement found = two_layers();
  found.name = "\xff";
  found.candidates[0].name = "a\"\n\xc3";
  EXPECT_EQ(json(found)["reference"]["name"], "\uFFFD");
  EXPECT_EQ(json(found)["tests"][0]["name"], "a\"\n\uFFFD");
}

// A model of 100,000 tensors has hundreds of megabytes of it.
TEST(MeasurementTexts, ComeInPiecesWhoseSizeDoesNotGrow) {
  const auto largest = [](std::size_t tensors, auto&& write) {
    const Measurement found = measurement(std::vector(tensors, weights("w", 4)),
                                          std::vector(tensors, std::optional(error({3, -4, 0, 0}, {3, -2, 1, 0}))));
    std::size_t size = 0;
    write(found, [&](std::string_view piece) { size = std::max(size, piece.size()); });
    return size;
  };
  EXPECT_LT(largest(2000, write_json), largest(20, write_json) + 100);
  EXPECT_EQ(largest(2000, write_csv), largest(20, write_csv));
}

TEST(MeasurementTexts, NothingMeasured) {
  const Measurement nothing = measurement({}, {});
  EXPECT_EQ(json(nothing)["tests"][0]["tensors"], Json::array());
  EXPECT_EQ(json(nothing)["tests"][0]["total"]["weights"], 0);
  EXPECT_EQ(csv(nothing).size(), 1U);
  EXPECT_THAT(to_table(nothing, 10, false),
              testing::StartsWith("nothing was converted: every tensor is as in the reference\n"));
}

// ---- CSV -------------------------------------------------------------------------------------------------------

TEST(MeasurementCsv, HasARowForWhatWasCompared) {
  Measurement found = two_layers();
  found.tensors[1].outlier_columns = 3;
  found.tensors[1].outlier_energy = 0.5;
  found.candidates.push_back(found.candidates[0]);
  found.candidates[1].name = "fp4";
  found.candidates[1].tensors[0].reset();
  const auto rows = csv(found);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0],
            "test,name,kind,layer,dtype,shape,weights,codec,bytes,bits_per_weight,mae,rmse,max_abs,rel_rmse,sqnr_db,"
            "cosine,mean_rel,nan,inf,rms,kurtosis,absmax_mean,absmax_std,outlier_columns,outlier_energy,max_abs_at,"
            "worst_block_at,worst_block_rmse,absmax_min,absmax_max,reference_nan,reference_inf,converted,outcome,lost,"
            "output_rel_rmse,output_sqnr_db");
  EXPECT_EQ(
      rows[1],
      fmt::format("nf4,layers.0.up,up,0,F32,4,4,nf4,2,4,0.75,{},2,{},{},{},0.25,0,0,,,,,,,1,0,{},,,0,0,1,quantized,0,,",
                  std::sqrt(1.25), std::sqrt(0.2), 10 * std::log10(5), 17 / std::sqrt(350.0), std::sqrt(1.25)));
  EXPECT_EQ(rows[2], "nf4,layers.1.down,down,1,F32,2,2,float32,1,4,0,0,0,0,inf,1,0,0,0,,,,,3,0.5,,,,,,0,0,0,kept,0,,");
  EXPECT_EQ(rows[3], "fp4" + rows[2].substr(3));
  EXPECT_THAT(csv(with_statistics())[1], testing::EndsWith(",quantized,0,0.1,20"));
}

TEST(MeasurementCsv, ShapesLayersAndFiguresThatAreNot) {
  Measurement found = measurement({weights("a", 0)}, {error({}, {}, 0)});
  found.tensors[0].info.shape = {0, 64, 3};
  EXPECT_EQ(csv(found)[1], "nf4,a,kind,,F32,0x64x3,0,nf4,0,,,,,,,,,0,0,,,,,,,,,,,,0,0,1,quantized,0,,");
}

// RFC 4180: what holds a separator is quoted, and quotes are doubled.
TEST(MeasurementCsv, NamesAreQuoted) {
  Measurement found = measurement({weights("a,b", 1, "q\"u\"")}, {error({1}, {1})});
  found.candidates[0].name = "two\nlines";
  EXPECT_THAT(written(write_csv, found), HasSubstr("\n\"two\nlines\",\"a,b\",\"q\"\"u\"\"\",,F32,"));
  found.candidates[0].name = "\r";
  EXPECT_THAT(written(write_csv, found), HasSubstr("\n\"'\r\",\"a,b\","));
}

// A spreadsheet runs what begins like this.
TEST(MeasurementCsv, TextsAreNoFormulas) {
  for (const std::string name : {"=1+1", "+1", "-x", "@a", "\tb"}) {
    Measurement found = measurement({weights(name, 1, name)}, {error({1}, {1})});
    found.candidates[0].name = name;
    const std::string text = "'" + name;
    EXPECT_THAT(csv(found)[1], testing::StartsWith(text + ',' + text + ',' + text + ",,F32,1,1,nf4,2,"));
  }
  // Numbers stay numbers, of whatever sign.
  Measurement lost = measurement({weights("w", 1)}, {error({0}, {1})});
  EXPECT_THAT(csv(lost)[1], HasSubstr(",-inf,"));
}

}  // namespace
}  // namespace nibble::cli::measurement_test
