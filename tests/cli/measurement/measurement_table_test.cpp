// Measurements made up for it, as a table for people.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <re2/re2.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/measurement/measurement.hpp"
#include "tests/cli/measurement/measurement_support.hpp"

namespace nibble::cli::measurement_table_test {
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
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

// 10 log10 of `ratio`, in dB.
MeasuredError error_of_ratio(double ratio) {
  MeasuredError error;
  error.form = CodecSpec("nf4");
  error.stats.count = 1;
  error.stats.square = 1;
  error.stats.reference = ratio;
  return error;
}

std::string without_colours(std::string text) {
  RE2::GlobalReplace(&text, "\x1b\\[[0-9;]*m", "");
  return text;
}

TEST(MeasurementTable, IsThis) {
  EXPECT_EQ(to_table(two_layers(), 10, false),
            "nf4: 1 tensor at 7.0 dB; worst: layers.0.up\n\n"
            "test                        figures of   bits     rmse rel rmse SQNR dB   cosine\n"
            "nf4                        1 quantized   4.00 1.12e+00  44.72 %    6.99 0.908688\n"
            "1 tensor quantized, 1 kept; SQNR of all 2: 7.78 dB\n"
            "2.00 kB (1.95 KiB) -> 999 bytes\n\n"
            "the worst tensor of 2                   codec     bits rel rmse  max abs SQNR dB\n"
            "layers.0.up                             nf4       4.00  44.72 % 2.00e+00    6.99\n\n"
            "kind                                    tensors   bits rel rmse  max abs SQNR dB\n"
            "up                                      x 1       4.00  44.72 % 2.00e+00    6.99\n"
            "1 more kind kept as in the reference\n\n"
            "layer                                   tensors   bits rel rmse  max abs SQNR dB\n"
            "0                                       x 1       4.00  44.72 % 2.00e+00    6.99\n"
            "1 more layer kept as in the reference\n");
}

TEST(MeasurementTable, OfOutputsIsThis) {
  Measurement found = with_statistics();
  const std::string table =
      "nf4: 1 tensor at 7.0 dB; worst: layers.0.up\n\n"
      "test                        figures of   bits     rmse rel rmse SQNR dB   cosine\n"
      "nf4                        1 quantized   4.00 1.12e+00  44.72 %    6.99 0.908688\n"
      "1 tensor quantized, 1 kept; SQNR of all 2: 7.78 dB\n"
      "outputs of 1 quantized tensor: SQNR 20.00 dB, rel rmse 10.00 %\n"
      "2.00 kB (1.95 KiB) -> 999 bytes\n\n"
      "tensor                                 codec     bits  max abs SQNR dB output dB\n"
      "layers.0.up                            nf4       4.00 2.00e+00    6.99     20.00\n"
      "layers.1.down                          float32   4.00 0.00e+00   exact         -\n\n"
      "kind                                   tensors   bits  max abs SQNR dB output dB\n"
      "up                                     x 1       4.00 2.00e+00    6.99     20.00\n"
      "1 more kind kept as in the reference\n\n"
      "layer                                  tensors   bits  max abs SQNR dB output dB\n"
      "0                                      x 1       4.00 2.00e+00    6.99     20.00\n"
      "1 more layer kept as in the reference\n";
  EXPECT_EQ(to_table(found, 0, false), table);
  EXPECT_EQ(without_colours(to_table(found, 0, true)), table);
}

// Two stand side by side, so that names have room.
TEST(MeasurementTable, OfOutputsFitsEightyColumns) {
  Measurement found = with_statistics();
  found.tensors[0].info.name = "model.layers.10.mlp.experts.117.up_projection.of.some.length.weight";
  for (std::size_t tests = 1; tests <= 5; ++tests) {
    const std::string table = to_table(found, 10, false);
    std::size_t headings = 0;
    for (const std::string& line : lines_of(table)) {
      EXPECT_LE(line.size(), 80U) << line;
      headings += line.starts_with("the worst") ? 1 : 0;
    }
    EXPECT_EQ(headings, (tests + 1) / 2);
    found.candidates.push_back(found.candidates[0]);
  }
  const std::string table = to_table(found, 10, false);
  EXPECT_THAT(table, HasSubstr("#1: outputs of 1 quantized tensor: SQNR 20.00 dB, rel rmse 10.00 %\n"));
  EXPECT_THAT(table, HasSubstr("     #1 dB output dB     #2 dB output dB\n"));
  EXPECT_THAT(table, HasSubstr("      6.99     20.00      6.99     20.00\n"));
}

// Of the tensors whose figures are the test's, like those of weights.
TEST(MeasurementTable, SaysWhichTensorsHaveNoStatistics) {
  const auto text_of = [](Measurement found) {
    const std::string table = to_table(found, 1, false);
    const std::size_t begin = table.find('\n', table.find("SQNR of all")) + 1;
    return table.substr(begin, table.find("\n2.00 kB") - begin);
  };
  Measurement found = with_statistics();
  found.tensors.push_back(weights("layers.1.up\n", 4, "up", 1));
  found.candidates[0].tensors.push_back(error({3, -4, 0, 0}, {3, -2, 1, 0}));
  EXPECT_EQ(text_of(found),
            "outputs of 1 quantized tensor: SQNR 20.00 dB, rel rmse 10.00 %; 1 of 2 quantized\n"
            "  tensors have no statistics: 'layers.1.up\\n'");
  found.tensors.push_back(weights("layers.2.up", 4, "up", 2));
  found.candidates[0].tensors.push_back(error({3, -4, 0, 0}, {3, -2, 1, 0}));
  EXPECT_THAT(text_of(found), EndsWith("2 of 3 quantized\n  tensors have no statistics: 'layers.1.up\\n', ..."));
  found.candidates[0].tensors[0]->output = {};
  EXPECT_EQ(text_of(found), "3 of 3 quantized tensors have no statistics: 'layers.0.up', ...");
  found.has_statistics = false;
  EXPECT_THAT(to_table(found, 1, false), Not(HasSubstr("statistics")));
}

// Like the SQNR: finite pairs that are all equal do not make a tensor exact.
TEST(MeasurementTable, LostWeightsHaveNoExactOutput) {
  const float infinity = std::numeric_limits<float>::infinity();
  Measurement found = measurement({weights("a", 2)}, {error({1, 1}, {1, infinity})});
  found.has_statistics = true;
  found.candidates[0].tensors[0]->output.count = 1;
  EXPECT_THAT(to_table(found, 1, false), HasSubstr("       -         -\n"));
}

// The figures of a test are those of its quantized tensors; all of them together are a figure apart.
TEST(MeasurementTable, HeadlinesWhatIsQuantized) {
  Measurement found = of_all_outcomes();
  std::string table = to_table(found, 10, false);
  EXPECT_THAT(table, HasSubstr("\nnf4                        1 quantized  12.00 1.12e+00  44.72 %    6.99 0.908688\n"
                               "1 tensor quantized, 1 cast, 2 kept; SQNR of all 4: "));
  EXPECT_THAT(table, HasSubstr("\n0                                       x 1       4.00  44.72 % 2.00e+00    6.99\n"));
  found.candidates[0].tensors[0].reset();
  found.candidates[0].tensors[1].reset();
  found.candidates[0].tensors[2].reset();
  table = to_table(found, 10, false);
  EXPECT_THAT(table, HasSubstr("\nnf4                             1 cast "));
  EXPECT_THAT(table, Not(HasSubstr("SQNR of all")));
}

// A layer is as bad as the worst of all its tensors, of whatever outcome.
TEST(MeasurementTable, ColoursOfAGroupAreThoseOfItsWorstTensor) {
  Measurement found = of_all_outcomes();
  const std::string broken = "\x1b[31m";
  const auto layers = [&] {
    const std::string table = to_table(found, 10, true);
    return table.substr(table.find("layer  "));
  };
  EXPECT_THAT(layers(), Not(HasSubstr(broken)));
  found.candidates[0].tensors[3] = cast(error({10, 20}, {10, std::numeric_limits<float>::infinity()}, 4));
  EXPECT_THAT(layers(), HasSubstr(broken));
}

// Whatever names and however many tests there are: but for words that are longer, no line is longer than a terminal.
TEST(MeasurementTable, FitsEightyColumns) {
  Measurement found = measurement({weights("model.layers.10.mlp.experts.117.up_projection.of.some.length.weight", 4,
                                           "mlp.experts.up_projection.of.some.considerable.length", 0),
                                   weights("model.layers.1.b.weight", 2, "b", 1)},
                                  {error({3, -4, 0, 0}, {3, -2, 1, 0}), error({1, 2}, {1, 1}, 1)});
  for (std::size_t tests = 1; tests <= 12; ++tests) {
    const std::string table = to_table(found, 10, false);
    for (const std::string& line : lines_of(table)) EXPECT_LE(line.size(), 80U) << line;
    EXPECT_EQ(table.find("test 13"), std::string::npos);
    found.candidates.push_back(found.candidates[0]);
    found.candidates.back().name = "/some/where/with/a/name/longer/than/a/column/test " + std::to_string(tests) +
                                   (tests % 3 == 0 ? "/and/a/folder/that/is/as/long/as/the/line/itself/or/longer" : "");
  }
}

// A codec with an option takes its room from the names.
TEST(MeasurementTable, CodecsWithAnOptionFit) {
  Measurement found = two_layers();
  found.candidates[0].tensors[0]->form = CodecSpec("nf4:double-quant=no");
  const std::string table = to_table(found, 10, false);
  EXPECT_THAT(table, HasSubstr("  nf4:double-quant=no "));
  for (const std::string& line : lines_of(table)) EXPECT_LE(line.size(), 80U) << line;
}

// What a name lacks is marked, at either end.
TEST(MeasurementTable, DotsStandForWhatIsLeftOut) {
  const auto row = [](const std::string& name) {
    Measurement found = two_layers();
    found.tensors[0].info.name = name;
    const std::vector<std::string> lines = lines_of(to_table(found, 1, false));
    return lines.at(lines.size() - 9).substr(0, 38);
  };
  EXPECT_EQ(row("model.layers.1.self_attn.k_proj.weight"), "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(row("model.layers.10.self_attn.k_proj.weight"), "model.layers.10.self_attn.k_proj...   ");
  EXPECT_EQ(row("model.decoder.layers.10.self_attn.k_proj.weight"), "...coder.layers.10.self_attn.k_proj...");
}

// Dots replace whole letters.
TEST(MeasurementTable, LettersOfSeveralBytesAreNotCut) {
  for (std::size_t more = 0; more < 4; ++more) {
    Measurement found = two_layers();
    found.tensors[0].info.name.clear();
    for (int i = 0; i < 40; ++i) found.tensors[0].info.name += "\u00e4\u20ac";
    found.tensors[0].info.name.append(more, 'x');  // so that the cut is elsewhere each time
    const std::string table = to_table(found, 1, false);
    EXPECT_NO_THROW((void)nlohmann::json(table).dump()) << more;  // which refuses what is no UTF-8
    EXPECT_THAT(table, testing::AnyOf(HasSubstr("\n...\u00e4\u20ac"), HasSubstr("\n...\u20ac\u00e4"))) << more;
  }
}

// Five stand side by side, and the rest in tables of their own, under the numbers that they have in the totals.
TEST(MeasurementTable, MoreThanFiveTestsHaveASecondTable) {
  Measurement found = two_layers();
  const auto headings = [&] {
    std::vector<std::string> lines;
    for (const std::string& line : lines_of(to_table(found, 1, false)))
      if (line.starts_with("the worst")) lines.push_back(line.substr(std::min(line.find('#'), line.size())));
    return lines;
  };
  found.candidates.assign(5, found.candidates[0]);
  EXPECT_THAT(headings(), ElementsAre("#1 dB    #2 dB    #3 dB    #4 dB    #5 dB"));
  found.candidates.push_back(found.candidates[0]);
  found.candidates[5].tensors[0] = error({3, -4, 0, 0}, {3, -4, 1, 0});
  EXPECT_THAT(headings(), ElementsAre("#1 dB    #2 dB    #3 dB    #4 dB    #5 dB", "#6 dB"));
  const std::string table = to_table(found, 1, false), second = table.substr(table.rfind("the worst"));
  EXPECT_THAT(second, HasSubstr("  13.98\n"));
}

// What a test lacks is a dash in its column.
TEST(MeasurementTable, TestsThatLackATensorOrItsGroup) {
  Measurement found = two_layers();
  found.candidates.push_back(found.candidates[0]);
  found.candidates[1].tensors[0].reset();
  const std::string table = to_table(found, 0, false);
  EXPECT_THAT(table, HasSubstr("\nlayers.0.up                                     6.99  44.72 %         -        -\n"));
  EXPECT_THAT(table, HasSubstr("\n0                                               6.99  44.72 %         -        -\n"));
}

TEST(MeasurementTable, TestsStandSideBySide) {
  Measurement found = two_layers();
  found.candidates.push_back(found.candidates[0]);
  found.candidates[1].name = "other";
  found.candidates[1].tensors[0] = error({3, -4, 0, 0}, {3, -4, 1, 0});
  const std::string table = to_table(found, 10, false);
  EXPECT_THAT(table, HasSubstr("#1: nf4\n   nf4: 1 tensor at 7.0 dB; worst: layers.0.up\n#2: other\n"));
  EXPECT_THAT(table, HasSubstr("\n#2: other "));
  EXPECT_THAT(table, HasSubstr("\nlayers.0.up                                     6.99  44.72 %     13.98  20.00 %\n"));
}

TEST(MeasurementTable, ListsSoManyOfTheWorst) {
  EXPECT_THAT(to_table(two_layers(), 1, false), HasSubstr("\nthe worst tensor of 2 "));
  for (const std::size_t some : {1, 2, 3})
    EXPECT_THAT(to_table(two_layers(), some, false), Not(HasSubstr("layers.1.down")));
  EXPECT_THAT(to_table(two_layers(), 0, false), HasSubstr("\nlayers.1.down "));
  const Measurement exact = measurement({weights("a", 1)}, {kept(error({1}, {1}))});
  EXPECT_THAT(to_table(exact, 10, false), Not(HasSubstr("worst")));
}

// Like tensors: those without any error are left out, and of too many the worst are shown.
TEST(MeasurementTable, ManyLayersAreLeftOut) {
  const auto lines = [](std::size_t inexact, std::size_t exact, std::size_t worst) {
    std::vector<MeasuredWeights> tensors;
    std::vector<std::optional<MeasuredError>> errors;
    for (std::size_t i = 0; i < inexact + exact; ++i) {
      tensors.push_back(weights("layers." + std::to_string(i) + ".up", 2, "up", i));
      const float by = i < inexact ? 1 + static_cast<float>(i * 7 % inexact) / 1000 : 0;
      errors.emplace_back(error({10, 20}, {10, 20 + by}));
    }
    const std::string table = to_table(measurement(std::move(tensors), std::move(errors)), worst, false);
    const std::size_t at = table.find("\nlayer ");
    return at == std::string::npos ? std::vector<std::string>() : lines_of(table.substr(at + 1));
  };
  EXPECT_EQ(lines(0, 2000, 10).size(), 0U);
  EXPECT_EQ(lines(0, 2000, 0).size(), 2001U);
  EXPECT_EQ(lines(128, 0, 10).size(), 129U);
  const std::vector<std::string> some = lines(3, 2000, 10);
  EXPECT_THAT(some, ElementsAre(testing::_, testing::StartsWith("0 "), testing::StartsWith("1 "),
                                testing::StartsWith("2 "), "2000 more layers with less error or none"));
  // i * 7 modulo 1000 is 999 at 857, 998 at 714, 997 at 571.
  const std::vector<std::string> worst = lines(1000, 5, 3);
  EXPECT_THAT(worst, ElementsAre(testing::_, testing::StartsWith("571 "), testing::StartsWith("714 "),
                                 testing::StartsWith("857 "), "1002 more layers with less error or none"));
  EXPECT_EQ(lines(1000, 5, 0).size(), 1006U);
}

// One kind or one layer is what the last line says anyway.
TEST(MeasurementTable, OneGroupIsNotListed) {
  const std::string table = to_table(measurement({weights("a", 1)}, {error({1}, {2})}), 10, false);
  EXPECT_THAT(table, Not(HasSubstr("\nkind ")));
  EXPECT_THAT(table, Not(HasSubstr("\nlayer ")));
}

TEST(MeasurementTable, SaysWhatWasNotCompared) {
  Measurement found = two_layers();
  found.candidates[0].missing = {"a\n"};
  EXPECT_THAT(to_table(found, 10, false), EndsWith("\nnot compared: a\\n\n"));
  found.candidates[0].missing.assign(12, "b");
  EXPECT_THAT(to_table(found, 10, false), EndsWith("not compared: b\nnot compared: 2 more\n"));
}

TEST(MeasurementTable, CountsWhatIsNotFinite) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::string table =
      to_table(measurement({weights("a", 4)}, {error({0, 1, 1, 1}, {1, nan, infinity, nan})}), 10, false);
  EXPECT_THAT(table, HasSubstr(" -> 999 bytes; 2 NaN, 1 infinite\n"));
}

TEST(MeasurementTable, NumbersThatAreLostAreNotExact) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::string table = to_table(measurement({weights("a", 2)}, {error({1, 1}, {1, infinity})}), 10, false);
  EXPECT_THAT(table, HasSubstr("BROKEN"));
  EXPECT_THAT(table, Not(HasSubstr("exact")));
}

TEST(MeasurementTable, CandidatesFollowEachOther) {
  Measurement found = two_layers();
  found.candidates.push_back(found.candidates[0]);
  found.candidates[1].name = "\x1b[2J";
  EXPECT_THAT(to_table(found, 10, false), HasSubstr("\n#2: \\x1b[2J\n"));
}

TEST(MeasurementTable, ColoursChangeNothingElse) {
  const std::string plain = to_table(two_layers(), 10, false), coloured = to_table(two_layers(), 10, true);
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  EXPECT_NE(coloured, plain);
  EXPECT_EQ(without_colours(coloured), plain);
}

TEST(MeasurementTable, ColoursSayWhetherItIsExpected) {
  const auto colours = [](MeasuredError error) {
    error.normal_sqnr_db = 20;
    return to_table(measurement({weights("a", 1)}, {std::move(error)}), 10, true);
  };
  constexpr const char *red = "\x1b[31m", *yellow = "\x1b[33m", *green = "\x1b[32m";
  EXPECT_THAT(colours(error_of_ratio(50)), HasSubstr(yellow));   // 16.99 dB
  EXPECT_THAT(colours(error_of_ratio(50.2)), HasSubstr(green));  // 17.01
  EXPECT_THAT(colours(error({0}, {1})), HasSubstr(red));
}

}  // namespace
}  // namespace nibble::cli::measurement_table_test
