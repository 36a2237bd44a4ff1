#include "nibble/checkpoint.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <thread>

#include "core/memory_limit.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::checkpoint_test {
namespace {

using test::error_of;
using test::safetensors_with;
using testing::HasSubstr;

constexpr std::string_view index_text =
    R"({"metadata":{},"weight_map":{"x":"b.safetensors","y":"a.safetensors","z":"b.safetensors"}})";

std::vector<std::string> names_of(const Reader& reader) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : reader.tensors()) names.push_back(tensor.name);
  return names;
}

using Names = std::vector<std::string>;

class Checkpoint : public testing::Test {
 protected:
  Checkpoint() {
    dir.write("a.safetensors", safetensors_with({"y", "unlisted"}));
    dir.write("b.safetensors", safetensors_with({"z", "x"}));
    dir.write("unnamed.safetensors", "not even a checkpoint");
    dir.write("model.safetensors.index.json", index_text);
    dir.write("config.json", R"({"architectures":["A"],"tie_word_embeddings":false})");
  }
  test::TempDir dir;
};

TEST_F(Checkpoint, ShardsAreOneReader) {
  const auto reader = open_checkpoint(dir.path());
  EXPECT_EQ(names_of(*reader), (Names{"y", "unlisted", "z", "x"}));
  EXPECT_EQ(Names(reader->files().begin(), reader->files().end()), (Names{"a.safetensors", "b.safetensors"}));
  EXPECT_EQ(reader->file_of(1), 0u);
  EXPECT_EQ(reader->file_of(2), 1u);
  EXPECT_EQ(reader->path(), dir.path());
  ASSERT_TRUE(reader->config());
  EXPECT_EQ(reader->config()->architecture, "A");
}

TEST_F(Checkpoint, AnIndexStandsForItsDirectory) {
  dir.write("other.safetensors.index.json", R"({"weight_map":{"y":"a.safetensors"}})");
  const auto reader = open_checkpoint(dir.path() / "other.safetensors.index.json");
  EXPECT_EQ(names_of(*reader), (Names{"y", "unlisted"}));
  EXPECT_EQ(reader->path(), dir.path());
  EXPECT_TRUE(reader->config());
}

TEST_F(Checkpoint, AFileHasNoConfig) {
  const auto reader = open_checkpoint(dir.path() / "b.safetensors");
  EXPECT_EQ(names_of(*reader), (Names{"z", "x"}));
  EXPECT_EQ(reader->path(), dir.path() / "b.safetensors");
  EXPECT_EQ(reader->files()[0], "b.safetensors");
  EXPECT_FALSE(reader->config());
}

TEST_F(Checkpoint, TheSingleFileComesBeforeTheIndex) {
  dir.write("model.safetensors", safetensors_with({"single"}));
  EXPECT_EQ(names_of(*open_checkpoint(dir.path())), Names{"single"});
}

TEST(Directories, OfDiffusersAreModelsToo) {
  const test::TempDir dir;
  dir.write("diffusion_pytorch_model.safetensors", safetensors_with({"w"}));
  EXPECT_EQ(names_of(*open_checkpoint(dir.path())), Names{"w"});
}

TEST(Directories, TrailingSlashesAndRelativePathsMeanTheSame) {
  const test::TempDir dir;
  dir.write("model.safetensors", safetensors_with({"w"}));
  EXPECT_EQ(names_of(*open_checkpoint(dir.path().string() + "/")), Names{"w"});
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  const auto reader = open_checkpoint("model.safetensors");
  EXPECT_EQ(names_of(*open_checkpoint(".")), Names{"w"});
  std::filesystem::current_path(before);
  reader->check_unchanged();  // found again although the working directory is another one
}

TEST_F(Checkpoint, ReadsFromManyThreads) {
  std::string header = R"({"w":{"dtype":"U8","shape":[65536],"data_offsets":[0,65536]}})", data;
  for (int i = 0; i < 65536; ++i) data += static_cast<char>(i % 251);
  const auto reader = open_checkpoint(dir.write("w.safetensors", test::safetensors_file(header, data)));
  std::vector<std::string> parts(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < parts.size(); ++t)
    threads.emplace_back([&, t] {
      parts[t].resize(8192);
      reader->read(0, t * 8192, std::as_writable_bytes(std::span(parts[t])));
    });
  std::string all;
  for (std::size_t t = 0; t < parts.size(); ++t) threads[t].join(), all += parts[t];
  EXPECT_EQ(all, data);
}

TEST_F(Checkpoint, ReadingPastATensorIsOurMistake) {
  const auto reader = open_checkpoint(dir.path());
  std::byte bytes[2];
  EXPECT_EQ(error_of([&] { reader->read(0, 15, bytes); }, Errc::internal), "2 bytes at 15 of tensor 'y', which has 16");
  EXPECT_EQ(error_of([&] { reader->read(0, ~std::uint64_t{0}, bytes); }, Errc::internal),
            "2 bytes at 18446744073709551615 of tensor 'y', which has 16");
}

TEST_F(Checkpoint, ChangesOfEveryFileAreTold) {
  for (const char* name : {"a.safetensors", "b.safetensors", "config.json", "model.safetensors.index.json"}) {
    const auto reader = open_checkpoint(dir.path());
    EXPECT_EQ(error_of([&] { reader->check_unchanged(); }), "");
    const timespec times[2] = {{0, UTIME_OMIT}, {1, 1}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (dir.path() / name).c_str(), times, 0), 0);
    EXPECT_EQ(error_of([&] { reader->check_unchanged(); }, Errc::input_changed),
              (dir.path() / name).string() + ": changed while it was read");
  }
}

TEST_F(Checkpoint, FilesThatAreMissingAreToldBeforeTheIndexIsReadToItsEnd) {
  dir.write("model.safetensors.index.json", R"({"weight_map":{"x":"b.safetensors","y":"no.safetensors", not JSON)");
  EXPECT_EQ(error_of([&] { (void)open_checkpoint(dir.path()); }),
            (dir.path() / "no.safetensors").string() + ": cannot open: No such file or directory");
}

std::string opened_within(const std::filesystem::path& path, std::uint64_t bytes) {
  return error_of([&] { (void)open_checkpoint(path, {.max_memory = program_bytes + bytes}); }, Errc::no_space);
}

TEST(MaxMemory, HoldsForHeaderIndexAndConfig) {
  const test::TempDir dir;
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back(fmt::format("t{}", i));
  dir.write("w.safetensors", safetensors_with(names));
  EXPECT_THAT(opened_within(dir.path() / "w.safetensors", 100'000), HasSubstr("/w.safetensors: opening it needs"));
  EXPECT_EQ(opened_within(dir.path() / "w.safetensors", 500'000), "");

  std::string map;
  for (const std::string& name : names) map += fmt::format(R"({}"{}":"w.safetensors")", map.empty() ? "" : ",", name);
  const std::string index = "x.safetensors.index.json";
  dir.write(index, R"({"metadata":")" + std::string(200'000, 'm') + R"(","weight_map":{)" + map + "}}");
  EXPECT_THAT(opened_within(dir.path() / index, 500'000), HasSubstr("/" + index + ": opening it needs"));
  EXPECT_EQ(opened_within(dir.path() / index, 1'500'000), "");

  dir.write("config.json", R"({"model_type":")" + std::string(300'000, 'm') + R"("})");
  EXPECT_THAT(opened_within(dir.path() / index, 500'000), HasSubstr("/config.json: opening it needs"));
  EXPECT_EQ(opened_within(dir.path() / index, 1'800'000), "");
}

TEST(Directories, AnIndexHasALargestSize) {
  const test::TempDir dir;
  std::filesystem::resize_file(dir.write("model.safetensors.index.json", "{"), 100'000'001);
  EXPECT_EQ(error_of([&] { (void)open_checkpoint(dir.path()); }),
            (dir.path() / "model.safetensors.index.json").string() +
                ": has 100000001 bytes, more than the 100000000 that such a file may have");
}

TEST(MaxMemory, CountsWhatEarlierShardsKeep) {
  const test::TempDir dir;
  std::string map;
  for (int shard = 0; shard < 12; ++shard) {
    std::vector<std::string> names;
    for (int i = 0; i < 100; ++i) {
      names.push_back(fmt::format("{:02}.{:02}", shard, i));
      map += fmt::format(R"({}"{}":"{:02}.safetensors")", map.empty() ? "" : ",", names.back(), shard);
    }
    dir.write(fmt::format("{:02}.safetensors", shard), safetensors_with(names));
  }
  dir.write("model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
  // The index takes 49 kB, each file 14 kB while it is opened and 5 kB from then on. While the last one joins the list
  // of all tensors, that is there twice: 35 kB more.
  EXPECT_EQ(opened_within(dir.path(), 150'000), "");
  EXPECT_THAT(opened_within(dir.path(), 125'000), HasSubstr("needs at least")) << "the list twice";
  EXPECT_THAT(opened_within(dir.path(), 90'000), HasSubstr("needs at least")) << "what each keeps";
  const auto reader = open_checkpoint(dir.path());
  EXPECT_GE(reader->memory_bytes(), 1200U * (16 + 8 + 8 + 5));
  EXPECT_LT(reader->memory_bytes(), 60'000U);
}

TEST(Directories, MayHaveMoreShardsThanAProcessMayHaveOpenFiles) {
  const test::TempDir dir;
  std::string map;
  for (int shard = 0; shard < 200; ++shard) {
    const std::string name = fmt::format("{:03}.safetensors", shard);
    map += fmt::format(R"({}"t{}":"{}")", map.empty() ? "" : ",", shard, name);
    dir.write(name, test::safetensors_file(
                        fmt::format(R"({{"t{}":{{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}}})", shard),
                        fmt::format("{:03}", shard)));
  }
  dir.write("model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit limited{100, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limited), 0);
  std::string read;
  const std::string error = error_of([&] {
    const auto reader = open_checkpoint(dir.path());
    for (std::size_t tensor = 0; tensor < reader->tensors().size(); ++tensor) {
      std::string text(3, '\0');
      reader->read(tensor, 0, std::as_writable_bytes(std::span(text)));
      read += text;
    }
    reader->check_unchanged();
  });
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(error, "");
  std::string expected;
  for (int shard = 0; shard < 200; ++shard) expected += fmt::format("{:03}", shard);
  EXPECT_EQ(read, expected);
}

TEST(Paths, WithNulOpenNothing) {
  EXPECT_EQ(error_of([] { (void)open_checkpoint(std::string("/tmp\0x", 6)); }),
            "/tmp\\x00x: the path contains a NUL byte");
}

TEST(Paths, PipesAreRefusedWithoutWaiting) {
  const test::TempDir dir;
  ASSERT_EQ(::mkfifo((dir.path() / "p.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { (void)open_checkpoint(dir.path() / "p.safetensors"); }),
            (dir.path() / "p.safetensors").string() + ": is a pipe, not a regular file");
}

}  // namespace
}  // namespace nibble::checkpoint_test
