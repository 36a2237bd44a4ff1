#include <gtest/gtest.h>

#include "nibble/checkpoint.hpp"

namespace nibble::registry_test {
namespace {

TEST(Containers, AreListed) {
  ASSERT_EQ(containers().size(), 1u);
  EXPECT_EQ(containers()[0].name, "safetensors");
  EXPECT_TRUE(containers()[0].writes);
}

}  // namespace
}  // namespace nibble::registry_test
