#include "formats/sharded.hpp"

#include <gtest/gtest.h>

namespace nibble::sharded_test {
namespace {

TEST(Sharded, FilesAreSortedAndOnce) {
  const ShardIndex index = parse_index(
      R"({"metadata":{"total_size":2.0e3,"weight_map":[{"x":{}}]},"weight_map":{"c":"2.st","a":"1.st","b":"2.st"},"x":null})",
      "i");
  EXPECT_EQ(index.files, (std::vector<std::string>{"1.st", "2.st"}));
  EXPECT_EQ(index.tensors, (std::vector<std::pair<std::string, std::size_t>>{{"c", 1}, {"a", 0}, {"b", 1}}));
}

TEST(Sharded, ANameOf255BytesIsOne) {
  const std::string name(255, 'x');
  EXPECT_EQ(parse_index(R"({"weight_map":{"w":")" + name + R"("}})", "i").files[0], name);
}

}  // namespace
}  // namespace nibble::sharded_test
