// Options that subcommands share, at their edges. Which message the user gets is in usage_errors_test.cpp.

#include "cli/options/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "nibble/error.hpp"

namespace nibble::cli::options_test {
namespace {

using testing::ElementsAre;
using Arguments = std::vector<std::string>;

// Whether these arguments are taken. They are in their order here; CLI11 takes them from the back.
bool takes(CLI::App& app, Arguments arguments) {
  try {
    app.parse(Arguments(arguments.rbegin(), arguments.rend()));
    return true;
  } catch (const CLI::ParseError&) {
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::usage);
    return false;
  }
}

TEST(Options, RangesTakeTheirEndsAndNothingButDigits) {
  std::int64_t value = 0;
  CLI::App app;
  set_range(app.add_option("--n", value), -2, 1024);
  for (const char* const text : {"-2", "0", "1024", "0007"})
    EXPECT_TRUE(takes(app, {"--n=" + std::string(text)})) << text;
  EXPECT_EQ(value, 7);
  for (const char* const text : {"-3", "1025", "", " 5", "5 ", "+5", "5.0", "0x5", "99999999999999999999"})
    EXPECT_FALSE(takes(app, {"--n=" + std::string(text)})) << text;
}

// Words that are taken without being listed stay out of what help and completion offer.
TEST(Options, ChoicesAreListedInTheirOrder) {
  enum class Fruit { none, pear, apple };
  Fruit fruit = Fruit::none;
  CLI::App app;
  CLI::Option* const option = add_choice<Fruit>(app, "--fruit", fruit, {{"pear", Fruit::pear}, {"apple", Fruit::apple}},
                                                "a fruit", {{"pomme", Fruit::apple}});
  EXPECT_THAT(choices_of(*option), ElementsAre("pear", "apple"));
  EXPECT_TRUE(takes(app, {"--fruit", "pear"}));
  EXPECT_EQ(fruit, Fruit::pear);
  EXPECT_TRUE(takes(app, {"--fruit", "pomme"}));
  EXPECT_EQ(fruit, Fruit::apple);
  for (const char* const word : {"Pear", "pea", "", "pear|apple"})
    EXPECT_FALSE(takes(app, {"--fruit=" + std::string(word)})) << word;
  EXPECT_EQ(fruit, Fruit::apple);
}

TEST(Options, WithoutChoicesThereAreNone) {
  CLI::App app;
  std::string text;
  bool json = false;
  EXPECT_TRUE(choices_of(*app.add_option("--text", text)->type_name("FILE")).empty());
  EXPECT_TRUE(choices_of(*add_json(app, json)).empty());
}

// One value each time: what follows is an argument of its own.
TEST(Options, RepeatableOnesTakeOneValueEachTime) {
  CLI::App app;
  std::vector<std::string> values;
  std::string path;
  add_repeatable(app, "--skip", values, "");
  app.add_option("path", path);
  EXPECT_TRUE(takes(app, {"--skip", "a,b", "model", "--skip", "c"}));
  EXPECT_THAT(values, ElementsAre("a,b", "c"));
  EXPECT_EQ(path, "model");
  EXPECT_FALSE(takes(app, {"--skip"}));
}

TEST(Options, MemoryIsASizeWithAUnit) {
  CLI::App app;
  ResourceOptions options;
  add_max_memory(app, options);
  add_threads(app, options);
  EXPECT_EQ(options.resources().max_memory, 1'000'000'000U);
  EXPECT_EQ(options.resources().threads, 0U);
  EXPECT_TRUE(takes(app, {"--max-memory", "2GiB", "--threads", "1024"}));
  EXPECT_EQ(options.resources().max_memory, std::uint64_t{2} << 30);
  EXPECT_EQ(options.resources().threads, 1024U);
  EXPECT_FALSE(takes(app, {"--threads", "0"}));  // which stands for all, and cannot be asked for
  options.max_memory = "much";
  EXPECT_THROW((void)options.resources(), Error);
}

}  // namespace
}  // namespace nibble::cli::options_test
