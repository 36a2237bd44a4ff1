#include "cli/format_recipe.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "nibble/error.hpp"

namespace nibble::cli::format_recipe_test {
namespace {

TEST(FormatRecipe, OptionsOfConvertSayTheSame) {
  for (const auto& [format, options] : {std::pair<std::string, std::string>{"int8", "--to int8"},
                                        {"nf4:block-size=64,double-quant=yes", "--to nf4"},
                                        {"fp4:block-size=4096", "--to fp4 --block-size 4096"},
                                        {"nf4:double-quant=no", "--to nf4 --no-double-quant"}})
    EXPECT_EQ(convert_options(parse_format(format)), options) << format;
}

TEST(FormatRecipe, NanAndInfinitiesAreKept) {
  const Recipe recipe = parse_format("nf4");
  EXPECT_EQ(recipe.nonfinite, Nonfinite::keep);
  EXPECT_EQ(recipe.on_overflow, OnOverflow::keep);
}

TEST(FormatRecipe, RefusesWhatIsNoFormat) {
  for (const char* const format : {"", "nf5", "nf4:", "nf4:block-size=33", "nf4:block-size=64x",
                                   "nf4:double-quant=maybe", "nf4:blocksize=64", "int8:block-size=64"})
    EXPECT_THROW((void)parse_format(format), Error) << format;
}

}  // namespace
}  // namespace nibble::cli::format_recipe_test
