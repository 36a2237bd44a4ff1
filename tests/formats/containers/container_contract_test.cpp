// What every container owes those who open it. A container joins by being registered and giving one good file here.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "core/files/file.hpp"
#include "formats/containers/container.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::container_contract_test {
namespace {

// A file of two tensors, "a" and "b", 16 bytes each.
const std::map<std::string, std::string>& samples() {
  static const std::map<std::string, std::string> all{{"safetensors", test::safetensors_with({"a", "b"})}};
  return all;
}

class ContainerContract : public testing::TestWithParam<std::string> {
 protected:
  // Opens a file with these bytes and reads all of its tensors.
  WeightFile open(std::string_view bytes) const {
    const std::filesystem::path path = root_.write("file", bytes);
    MemoryLimit memory;
    WeightFile file = open_weight_file(InputFile(AT_FDCWD, path.string(), "file"), memory);
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      std::vector<std::byte> data(std::min<std::uint64_t>(file.tensors[i].bytes(), 1 << 20));
      file.source->read(i, 0, data);
    }
    return file;
  }

  const std::string& sample() const { return samples().at(GetParam()); }

  test::TempDir root_;
};

TEST_P(ContainerContract, HasASample) { EXPECT_TRUE(samples().contains(GetParam())); }

TEST_P(ContainerContract, OpensAndNamesItsTensors) {
  const WeightFile file = open(sample());
  ASSERT_EQ(file.tensors.size(), 2U);
  EXPECT_EQ(file.tensors[0].name, "a");
  EXPECT_EQ(file.tensors[1].name, "b");
  EXPECT_EQ(file.tensors[0].bytes(), 16U);
}

// Whatever is cut off, it is bad input, said in one line that begins with the file.
TEST_P(ContainerContract, EveryPrefixIsRefused) {
  for (std::size_t bytes = 0; bytes < sample().size(); ++bytes) {
    const std::string error = test::error_of([&] { open(std::string_view(sample()).substr(0, bytes)); });
    EXPECT_THAT(error, testing::StartsWith("file: ")) << bytes << " bytes";
    EXPECT_THAT(error, testing::Not(testing::HasSubstr("\n"))) << bytes << " bytes";
  }
}

TEST_P(ContainerContract, TrailingBytesAreRefused) {
  EXPECT_THAT(test::error_of([&] { open(sample() + "x"); }), testing::StartsWith("file: "));
}

// A damaged file opens or is refused; it never does anything else.
TEST_P(ContainerContract, DamageIsRefusedOrHarmless) {
  std::mt19937 generator(1);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = sample();
    for (auto flips = 1 + generator() % 3; flips > 0; --flips)
      bytes[generator() % bytes.size()] = static_cast<char>(generator());
    try {
      open(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::bad_input) << error.what();
    }
  }
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const ContainerTraits& container : containers()) names.emplace_back(container.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registered, ContainerContract, testing::ValuesIn(names()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace nibble::container_contract_test
