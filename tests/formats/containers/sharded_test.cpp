#include "formats/containers/sharded.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/corrupt.hpp"

namespace nibble::sharded_test {
namespace {

ShardIndex parse(
    std::string_view text, const std::function<void(const std::string&)>& check_shard = [](const auto&) {}) {
  MemoryLimit limit;
  TakenMemory memory(limit, "i");
  return parse_index(text, "i", memory, check_shard);
}

TEST(Sharded, FilesAreSortedAndOnce) {
  const ShardIndex index = parse(
      R"({"metadata":{"total_size":2.0e3,"weight_map":[{"x":{}}]},"weight_map":{"c":"2.st","a":"1.st","b":"2.st"},"x":null})");
  EXPECT_EQ(index.files, (std::vector<std::string>{"1.st", "2.st"}));
  ASSERT_EQ(index.tensors.size(), 3u);
  EXPECT_EQ(index.tensors[0], "c");
  EXPECT_EQ(index.tensors[1], "a");
  EXPECT_EQ(index.tensors[2], "b");
  EXPECT_EQ(index.shards, (std::vector<std::uint32_t>{1, 0, 1}));
}

TEST(Sharded, EachShardIsCheckedWhenItIsMet) {
  std::vector<std::string> met;
  (void)parse(R"({"weight_map":{"c":"2","a":"1","b":"2"}})", [&](const std::string& shard) { met.push_back(shard); });
  EXPECT_EQ(met, (std::vector<std::string>{"2", "1"}));
  const auto missing = [](const std::string& shard) { throw std::runtime_error(shard); };
  EXPECT_THROW((void)parse(R"({"weight_map":{"c":"2" and what is no JSON)", missing), std::runtime_error);
}

// A pool looks at 16 names that share a slot in a table of 64, and stores the next one again.
TEST(Sharded, AFileIsListedOnceWhateverItsHash) {
  std::vector<std::string> names;
  for (int i = 0; names.size() < 17; ++i)
    if (const std::string name = fmt::format("s{}", i); std::hash<std::string_view>()(name) % 64 == 0)
      names.push_back(name);
  names.push_back(names.back());
  std::string index;
  for (std::size_t i = 0; i < names.size(); ++i)
    index += fmt::format(R"({}"{}":"{}")", index.empty() ? "" : ",", i, names[i]);
  std::size_t met = 0;
  const ShardIndex parsed = parse(R"({"weight_map":{)" + index + "}}", [&](const auto&) { ++met; });
  EXPECT_EQ(met, 18u);
  EXPECT_EQ(parsed.files.size(), 17u);
  EXPECT_EQ(parsed.shards[16], parsed.shards[17]);
  EXPECT_EQ(parsed.files[parsed.shards[17]], names[17]);
}

TEST(Sharded, ItsMemoryIsCounted) {
  std::string index = R"({"weight_map":{"x":"s")";
  for (int i = 0; i < 1000; ++i) index += fmt::format(R"(,"{}":"s{}")", 1000 + i, i % 10);
  const auto within = [&](std::uint64_t bytes) {
    MemoryLimit limit(program_bytes + bytes);
    TakenMemory memory(limit, "i");
    return test::error_of([&] { (void)parse_index(index + "}}", "i", memory, [](const auto&) {}); }, Errc::no_space);
  };
  EXPECT_EQ(within(1000 * (2 * (4 + 12) + 8) + 11 * 150), "");
  EXPECT_EQ(within(1001 * (2 * (4 + 12) + 8)).substr(0, 29), "i: opening it needs at least ");
  EXPECT_EQ(within(1000 * 2 * (4 + 12)).substr(0, 29), "i: opening it needs at least ");
}

TEST(Sharded, ANameOf255BytesIsOne) {
  const std::string name(255, 'x');
  EXPECT_EQ(parse(R"({"weight_map":{"w":")" + name + R"("}})").files[0], name);
}

}  // namespace
}  // namespace nibble::sharded_test
