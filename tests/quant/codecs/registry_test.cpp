#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/codec.hpp"
#include "nibble/error.hpp"

namespace nibble::registry_test {
namespace {

TEST(Registry, KnowsItsNames) {
  EXPECT_THAT(codec_names(), testing::ElementsAre("fp32", "fp16", "bf16", "int8", "nf4", "fp4", "keep"));
}

TEST(Registry, RefusesWhatItDoesNotKnow) {
  const auto error_of = [](std::string_view name, std::uint32_t blocksize) {
    try {
      (void)make_codec(name, {.blocksize = blocksize});
    } catch (const Error& error) {
      return std::to_string(static_cast<int>(error.code())) + " " + error.what();
    }
    return std::string("nothing");
  };
  EXPECT_EQ(error_of("nf5", 64), "2 codec 'nf5' is none of fp32, fp16, bf16, int8, nf4, fp4, keep");
  for (const std::uint32_t blocksize : {0u, 1u, 16u, 48u, 96u, 8192u})
    EXPECT_EQ(error_of("nf4", blocksize),
              "2 blocksize is " + std::to_string(blocksize) + ", not one of 32, 64, ..., 4096");
}

}  // namespace
}  // namespace nibble::registry_test
