#include <gtest/gtest.h>

#include "formats/containers/container.hpp"
#include "nibble/checkpoint.hpp"

namespace nibble::registry_test {
namespace {

TEST(Containers, AreListed) {
  ASSERT_EQ(containers().size(), 1u);
  EXPECT_EQ(containers()[0].name, "safetensors");
  EXPECT_EQ(containers()[0].extension, ".safetensors");
  EXPECT_TRUE(containers()[0].writes);
}

TEST(Containers, KnowTheirFilesByExtension) {
  EXPECT_EQ(written_container().name, "safetensors");
  EXPECT_TRUE(has_weight_extension("model-00001-of-00002.safetensors"));
  EXPECT_FALSE(has_weight_extension("model.safetensors.index.json"));
  EXPECT_FALSE(has_weight_extension("model.bin"));
}

}  // namespace
}  // namespace nibble::registry_test
