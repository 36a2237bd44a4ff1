// Handles of checkpoints: wrong paths, wrong indices, handles that are not open.

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "tests/python/c_api/call.hpp"

namespace nibble::c_api_test {
namespace {

using testing::HasSubstr;

class Checkpoints : public testing::Test {
 protected:
  void SetUp() override { WorkFolder::write_checkpoint("in.safetensors"); }
  static nibble_checkpoint* open() {
    nibble_checkpoint* opened = nullptr;
    EXPECT_EQ(nibble_checkpoint_open("in.safetensors", 0, &opened), NIBBLE_OK);
    return opened;
  }
  static nibble_tensor tensor() {
    nibble_tensor empty{};
    empty.struct_bytes = sizeof empty;
    return empty;
  }

  WorkFolder folder;
};

TEST_F(Checkpoints, DescribeTheirTensors) {
  nibble_checkpoint* const opened = open();
  ASSERT_EQ(nibble_checkpoint_count(opened), 1u);
  nibble_tensor weight = tensor();
  ASSERT_EQ(nibble_checkpoint_tensor(opened, 0, &weight), NIBBLE_OK);
  EXPECT_STREQ(weight.name, "layer.weight");
  EXPECT_EQ(weight.name_bytes, 12u);
  EXPECT_STREQ(weight.dtype, "F32");
  EXPECT_EQ(weight.dimensions, 2u);
  EXPECT_EQ(weight.shape[1], 64u);
  EXPECT_STREQ(weight.file, "in.safetensors");
  EXPECT_EQ(weight.bytes, 16384u);
  EXPECT_EQ(weight.offset + weight.bytes, std::filesystem::file_size("in.safetensors"));
  nibble_checkpoint_close(opened);
}

TEST_F(Checkpoints, NullIsNamed) {
  nibble_checkpoint* opened = nullptr;
  EXPECT_EQ(nibble_checkpoint_open(nullptr, 0, &opened), NIBBLE_USAGE);
  EXPECT_EQ(message(), "path is null");
  EXPECT_EQ(nibble_checkpoint_open("in.safetensors", 0, nullptr), NIBBLE_USAGE);
  EXPECT_EQ(message(), "checkpoint is null");
  nibble_tensor weight = tensor();
  EXPECT_EQ(nibble_checkpoint_tensor(nullptr, 0, &weight), NIBBLE_USAGE);
  EXPECT_EQ(message(), "checkpoint is null");
  opened = open();
  EXPECT_EQ(nibble_checkpoint_tensor(opened, 0, nullptr), NIBBLE_USAGE);
  EXPECT_EQ(message(), "tensor is null");
  nibble_checkpoint_close(opened);
  nibble_checkpoint_close(nullptr);
  EXPECT_EQ(nibble_checkpoint_count(nullptr), 0u);
}

TEST_F(Checkpoints, WrongPathsAreNamed) {
  std::filesystem::create_directory("empty");
  std::ofstream("cut.safetensors") << "\x10";
  const std::string long_path(1 << 20, 'x');
  for (const char* path :
       {"", "missing", "missing.safetensors", "empty", "cut.safetensors", "\xff\xfe", "a\nb", long_path.c_str()}) {
    nibble_checkpoint* opened = open();
    nibble_checkpoint_close(opened);
    EXPECT_NE(nibble_checkpoint_open(path, 0, &opened), NIBBLE_OK) << path;
    EXPECT_EQ(opened, nullptr) << "what was there before is gone";
    EXPECT_NE(message(), "");
  }
  nibble_checkpoint* opened = nullptr;
  EXPECT_EQ(nibble_checkpoint_open("in.safetensors", 1, &opened), NIBBLE_NO_SPACE);
  EXPECT_THAT(message(), HasSubstr("memory"));
}

TEST_F(Checkpoints, AnIndexIsBelowTheCount) {
  nibble_checkpoint* const opened = open();
  nibble_tensor weight = tensor();
  for (const std::uint64_t index : {std::uint64_t{1}, huge}) {
    EXPECT_EQ(nibble_checkpoint_tensor(opened, index, &weight), NIBBLE_USAGE);
    EXPECT_EQ(message(), "index is " + std::to_string(index) + ", the checkpoint has 1 tensors");
  }
  weight.struct_bytes = sizeof weight - 1;
  EXPECT_EQ(nibble_checkpoint_tensor(opened, 0, &weight), NIBBLE_USAGE);
  EXPECT_THAT(message(), HasSubstr("nibble_tensor: struct_bytes is "));
  weight.struct_bytes = 4097;
  EXPECT_EQ(nibble_checkpoint_tensor(opened, 0, &weight), NIBBLE_USAGE);
  EXPECT_EQ(weight.name, nullptr);
  nibble_checkpoint_close(opened);
}

TEST_F(Checkpoints, MembersOfALaterVersionBecomeZero) {
  nibble_checkpoint* const opened = open();
  struct {
    nibble_tensor known = tensor();
    std::uint64_t added = huge, of_the_caller = huge;
  } later;
  later.known.struct_bytes = sizeof later - sizeof later.of_the_caller;
  EXPECT_EQ(nibble_checkpoint_tensor(opened, 1, &later.known), NIBBLE_USAGE);
  EXPECT_EQ(later.added, huge) << "of a call that fails nothing is written";
  ASSERT_EQ(nibble_checkpoint_tensor(opened, 0, &later.known), NIBBLE_OK) << message();
  EXPECT_STREQ(later.known.name, "layer.weight");
  EXPECT_EQ(later.added, 0u);
  EXPECT_EQ(later.of_the_caller, huge);
  nibble_checkpoint_close(opened);
}

TEST_F(Checkpoints, AHandleThatIsNotOpenIsFoundOut) {
  nibble_checkpoint* const closed = open();
  nibble_checkpoint_close(closed);
  nibble_checkpoint* const other = open();
  EXPECT_NE(closed, other);
  int number = 0;
  for (nibble_checkpoint* handle : {closed, reinterpret_cast<nibble_checkpoint*>(&number)}) {
    nibble_tensor weight = tensor();
    EXPECT_EQ(nibble_checkpoint_count(handle), 0u);
    EXPECT_EQ(nibble_checkpoint_tensor(handle, 0, &weight), NIBBLE_USAGE);
    EXPECT_EQ(message(), "checkpoint is not open");
    nibble_checkpoint_close(handle);
  }
  EXPECT_EQ(nibble_checkpoint_count(other), 1u);
  nibble_checkpoint_close(other);
}

TEST_F(Checkpoints, MayBeClosedWhileAnotherThreadAsks) {
  for (int i = 0; i < 50; ++i) {
    nibble_checkpoint* const opened = open();
    std::atomic<bool> asked = false;
    std::thread other([&] {
      nibble_tensor weight = tensor();
      while (nibble_checkpoint_tensor(opened, 0, &weight) == NIBBLE_OK) asked = true;
      asked = true;
    });
    while (!asked) std::this_thread::yield();
    nibble_checkpoint_close(opened);
    other.join();
  }
}

}  // namespace
}  // namespace nibble::c_api_test
