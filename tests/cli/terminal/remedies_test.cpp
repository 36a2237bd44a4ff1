#include "cli/terminal/remedies.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::remedies_test {
namespace {

using cli::with_options;
using Kind = Remedy::Kind;

constexpr Kind last = Kind::reasons;

TEST(Remedies, AreOptionsBehindTheText) {
  EXPECT_EQ(with_options("out: exists", {Kind::replace_output}), "out: exists; pass --overwrite to replace it");
  EXPECT_EQ(with_options("as it is", {}), "as it is");
}

TEST(Remedies, MemoryIsRoundedUp) {
  EXPECT_EQ(with_options("a", {Kind::max_memory, 16'000'000}), "a; raise --max-memory to 16MB or more");
  EXPECT_EQ(with_options("a", {Kind::max_memory, 16'000'001}), "a; raise --max-memory to 17MB or more");
}

TEST(Remedies, EveryOtherKindNamesOptionsOfConvert) {
  const test::TempDir root;
  const std::string help = test::run_program(root.path(), "convert --help").out;
  for (int kind = static_cast<int>(Kind::none) + 1; kind <= static_cast<int>(last); ++kind) {
    if (static_cast<Kind>(kind) == Kind::dequantize || static_cast<Kind>(kind) == Kind::merge) continue;  // commands
    const std::string line = with_options("", {static_cast<Kind>(kind)});
    const std::regex option("--[a-z-]+");
    auto found = std::sregex_iterator(line.begin(), line.end(), option);
    EXPECT_NE(found, std::sregex_iterator()) << kind;
    for (; found != std::sregex_iterator(); ++found) EXPECT_THAT(help, testing::HasSubstr(found->str())) << line;
  }
}

// By the program itself: errors, warnings and the warnings in its JSON.
TEST(Remedies, ArePrinted) {
  const test::TempDir root;
  root.write("m.safetensors", test::safetensors_with({"a", "b"}));
  const auto convert = [&](const std::string& rest) {
    return test::run_program(root.path(), "convert m.safetensors out.safetensors --to nf4 " + rest);
  };
  EXPECT_THAT(convert("--max-memory 1MB").err, testing::EndsWith("; raise --max-memory to 15MB or more\n"));
  constexpr const char* reasons = "; --dry-run shows the reason for each tensor";
  EXPECT_THAT(convert("--dry-run").err, testing::HasSubstr(reasons));
  EXPECT_THAT(convert("--json").out, testing::HasSubstr(reasons));
  EXPECT_THAT(test::read_file(root.path() / "out.safetensors.nibble.json"), testing::Not(testing::HasSubstr("--")));
  EXPECT_THAT(convert("").err, testing::EndsWith("; pass --overwrite to replace it\n"));
  EXPECT_THAT(convert("--overwrite").err, testing::HasSubstr(reasons));
}

}  // namespace
}  // namespace nibble::remedies_test
