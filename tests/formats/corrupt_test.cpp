// One broken file per check, each with the whole text of its error.

#include <gtest/gtest.h>

#include "nibble/checkpoint.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::test::corrupt_test {
namespace {

class CorruptFile : public testing::TestWithParam<Corrupt> {};

TEST_P(CorruptFile, IsRefusedByName) {
  const TempDir dir;
  for (const auto& [name, bytes] : GetParam().files) dir.write(name, bytes);
  std::string expected = GetParam().error;
  if (expected.starts_with("DIR"))
    expected.replace(0, 3, dir.path().string());
  else
    expected = (dir.path() / expected).string();  // it begins with the name of a file
  const auto path = GetParam().open.empty() ? dir.path() : dir.path() / GetParam().open;
  EXPECT_EQ(error_of([&] { (void)open_checkpoint(path); }), expected);
}

std::string id(const testing::TestParamInfo<Corrupt>& info) { return info.param.id; }

INSTANTIATE_TEST_SUITE_P(Safetensors, CorruptFile, testing::ValuesIn(corrupt_safetensors()), id);
INSTANTIATE_TEST_SUITE_P(Directory, CorruptFile, testing::ValuesIn(corrupt_directories()), id);
INSTANTIATE_TEST_SUITE_P(Config, CorruptFile, testing::ValuesIn(corrupt_configs()), id);

}  // namespace
}  // namespace nibble::test::corrupt_test
