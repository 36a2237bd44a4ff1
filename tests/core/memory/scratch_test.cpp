// What every Scratch owes its users, in memory or in a file.

#include "core/memory/scratch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "tests/core/memory/scratch_support.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::scratch_test {
namespace {

constexpr std::size_t size = 5 << 20;  // more than a huge page, and no multiple of one

class ScratchContract : public testing::TestWithParam<std::string> {
 protected:
  ScratchContract() {
    if (GetParam() == "memory")
      scratch_ = std::make_unique<MemoryScratch>(size);
    else
      scratch_ = make_file_scratch(directory_.path());
  }

  test::TempDir directory_;
  std::unique_ptr<Scratch> scratch_;
};

// One page fault for all of it, where the system has huge pages: they begin at multiples of their size.
TEST(MemoryScratch, BeginsAtAHugePageIfItHasOne) {
  const auto remainder = [](std::uint64_t bytes, std::uintptr_t by) {
    MemoryScratch scratch(bytes);
    Bytes room;
    return reinterpret_cast<std::uintptr_t>(scratch.view(0, 1, room).data()) % by;
  };
  for (const std::uint64_t bytes : {1U, 63U, (2U << 20) - 1}) EXPECT_EQ(remainder(bytes, 64), 0U) << bytes;
  for (const std::uint64_t bytes : {2U << 20, (2U << 20) + 1}) EXPECT_EQ(remainder(bytes, 2U << 20), 0U) << bytes;
}

// A tensor whose last part is empty asks for it at the end.
TEST(MemoryScratch, EmptyRangesAreEmptySpans) {
  MemoryScratch scratch(100);
  Bytes room;
  for (const std::uint64_t offset : {std::uint64_t{100}, std::uint64_t{1} << 40}) {
    EXPECT_EQ(scratch.lend(offset, 0, room).data(), nullptr);
    EXPECT_EQ(scratch.view(offset, 0, room).data(), nullptr);
  }
  EXPECT_EQ(scratch.lend(99, 1, room).data(), scratch.lend(0, 100, room).data() + 99);
}

TEST_P(ScratchContract, GivesBackWhatWasWritten) {
  const Bytes all = pattern(size, 1), some = pattern(4097, 2);
  scratch_->write(0, all);
  EXPECT_EQ(read(*scratch_, 0, size), all);
  scratch_->write(4095, some);
  scratch_->write(size - 1, std::span(some).first(1));
  Bytes expected = all;
  std::copy(some.begin(), some.end(), expected.begin() + 4095);
  expected.back() = some.front();
  EXPECT_EQ(read(*scratch_, 0, size), expected);
  EXPECT_EQ(read(*scratch_, 4000, 5000), Bytes(expected.begin() + 4000, expected.begin() + 9000));
}

TEST_P(ScratchContract, RangesMayBeWrittenInAnyOrder) {
  const Bytes back = pattern(1000, 1), front = pattern(1000, 2);
  scratch_->write(size - 1000, back);
  scratch_->write(0, front);
  EXPECT_EQ(read(*scratch_, size - 1000, 1000), back);
  EXPECT_EQ(read(*scratch_, 0, 1000), front);
}

TEST_P(ScratchContract, NoBytesAreNoTrouble) {
  scratch_->write(0, {});
  scratch_->write(size, {});
  scratch_->read(size, {});
  Bytes room;
  EXPECT_TRUE(scratch_->view(size, 0, room).empty());
}

TEST_P(ScratchContract, ViewsAreTheBytes) {
  const Bytes all = pattern(10'000, 3);
  scratch_->write(0, all);
  Bytes room, other;
  const auto first = scratch_->view(1, 5000, room);
  const auto second = scratch_->view(4000, 6000, other);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), all.begin() + 1, all.begin() + 5001));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), all.begin() + 4000, all.end()));
}

TEST_P(ScratchContract, PiecesAreTheBytesInOrder) {
  const Bytes all = pattern(size, 1);
  scratch_->write(0, all);
  for (const std::uint64_t end : {std::uint64_t{1000}, 999 + Scratch::piece, 1000 + 2 * Scratch::piece}) {
    Bytes found;
    std::size_t pieces = 0;
    scratch_->for_each_piece(999, end, [&](std::span<const std::byte> bytes) {
      EXPECT_LE(bytes.size(), Scratch::piece);
      found.insert(found.end(), bytes.begin(), bytes.end());
      ++pieces;
    });
    EXPECT_EQ(found, Bytes(all.begin() + 999, all.begin() + static_cast<std::ptrdiff_t>(end)));
    EXPECT_EQ(pieces, end == 1000 + 2 * Scratch::piece ? 3U : 1U);
  }
  scratch_->for_each_piece(7, 7, [](std::span<const std::byte>) { FAIL() << "no bytes"; });
}

TEST_P(ScratchContract, WhatWasLentIsWritten) {
  const Bytes all = pattern(10'000, 5), some = pattern(1000, 6);
  scratch_->write(0, all);
  Bytes room;
  const auto lent = scratch_->lend(4000, some.size(), room);
  std::copy(some.begin(), some.end(), lent.begin());
  scratch_->write(4000, lent);
  Bytes expected = all;
  std::copy(some.begin(), some.end(), expected.begin() + 4000);
  EXPECT_EQ(read(*scratch_, 0, all.size()), expected);
  EXPECT_TRUE(scratch_->lend(0, 0, room).empty());
}

// Threads take turns in pieces that share pages.
TEST_P(ScratchContract, DisjointRangesAreWrittenConcurrently) {
  constexpr std::size_t piece = 1000, threads = 4;
  const Bytes all = pattern(size / piece * piece, 4);
  std::vector<std::thread> writers;
  for (std::size_t t = 0; t < threads; ++t)
    writers.emplace_back([&, t] {
      for (std::size_t at = t * piece; at < all.size(); at += threads * piece)
        scratch_->write(at, std::span(all).subspan(at, piece));
    });
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(read(*scratch_, 0, all.size()), all);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ScratchContract, testing::Values("memory", "file"),
                         [](const auto& each) { return each.param; });

TEST(MemoryScratch, IsViewedWhereItIs) {
  MemoryScratch scratch(100);
  scratch.write(0, pattern(100, 1));
  Bytes room;
  const auto one = scratch.view(10, 20, room);
  EXPECT_TRUE(room.empty());
  EXPECT_EQ(scratch.view(0, 100, room).data() + 10, one.data());
  EXPECT_EQ(scratch.lend(10, 20, room).data(), one.data());
}

}  // namespace
}  // namespace nibble::scratch_test
