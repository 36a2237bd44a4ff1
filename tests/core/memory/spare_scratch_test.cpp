#include "core/memory/spare_scratch.hpp"

#include <gtest/gtest.h>

namespace nibble::spare_scratch_test {
namespace {

// As one in a file.
class NoMemory final : public Scratch {
 public:
  void write(std::uint64_t /*offset*/, std::span<const std::byte> /*bytes*/) override {}
  void read(std::uint64_t /*offset*/, std::span<std::byte> /*out*/) const override {}
};

TEST(SpareScratch, NothingIsKeptWhereThePlanHasNoMemoryForIt) {
  SpareScratch spare(false);
  spare.keep(spare.make(100));
  EXPECT_EQ(spare.kept_bytes(), 0U);
}

TEST(SpareScratch, TheLargestIsKeptUntilItIsUsed) {
  SpareScratch spare(true);
  for (const std::uint64_t bytes : {100U, 50U, 200U, 150U}) spare.keep(std::make_unique<MemoryScratch>(bytes));
  EXPECT_EQ(spare.kept_bytes(), 200U);
  EXPECT_EQ(spare.make(201)->size(), 201U);
  EXPECT_EQ(spare.make(0)->size(), 0U);  // a tensor without scratch takes it from nobody
  EXPECT_EQ(spare.kept_bytes(), 200U);
  EXPECT_EQ(spare.make(1)->size(), 200U);
  EXPECT_EQ(spare.kept_bytes(), 0U);
}

TEST(SpareScratch, OnlyMemoryIsKept) {
  SpareScratch spare(true);
  spare.keep(std::make_unique<NoMemory>());
  EXPECT_EQ(spare.kept_bytes(), 0U);
}

}  // namespace
}  // namespace nibble::spare_scratch_test
