#include "core/memory/buffers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory_resource>
#include <new>

namespace nibble::buffers_test {
namespace {

TEST(Buffers, LieHalfAPageFromTheirPlaceInTheFile) {
  Buffers buffers;
  for (std::uint64_t position = 0; position < 8192; ++position) {
    const Buffers::Loan loan = buffers.lend(1000, position);
    const auto address = reinterpret_cast<std::uintptr_t>(loan.bytes().data());
    EXPECT_EQ(address % 64, 0u);
    const std::uint64_t apart = (address - position) % 4096;
    EXPECT_GT(apart, 2048u - 64) << position;
    EXPECT_LE(apart, 2048u) << position;
    ASSERT_EQ(loan.bytes().size(), 1000u);
    std::fill(loan.bytes().begin(), loan.bytes().end(), std::byte{1});  // AddressSanitizer looks on
  }
}

TEST(Buffers, ComeBackWithTheirMemory) {
  Buffers buffers;
  const std::byte* const first = buffers.lend(100, 0).bytes().data();
  EXPECT_EQ(buffers.lend(50, 0).bytes().data(), first);
  const Buffers::Loan kept = buffers.lend(100, 0);
  EXPECT_EQ(kept.bytes().data(), first);
  EXPECT_NE(buffers.lend(100, 0).bytes().data(), first);
}

TEST(Buffers, TakeTheSmallestThatFits) {
  Buffers buffers;
  const std::byte* small = nullptr;
  const std::byte* large = nullptr;
  {
    const Buffers::Loan a = buffers.lend(100, 0), b = buffers.lend(100'000, 0);
    small = a.bytes().data();
    large = b.bytes().data();
  }
  const Buffers::Loan again = buffers.lend(90, 0);
  EXPECT_EQ(again.bytes().data(), small);
  EXPECT_EQ(buffers.lend(90'000, 0).bytes().data(), large);
}

// Of several that fit alike, the one that may still be in cache.
TEST(Buffers, TakeWhatCameBackLast) {
  Buffers buffers;
  Buffers::Loan a = buffers.lend(1000, 0), b = buffers.lend(1000, 0);
  const std::byte* const last = a.bytes().data();
  b = {};
  a = {};
  EXPECT_EQ(buffers.lend(1000, 0).bytes().data(), last);
}

// Memory comes from the resource and goes back to it, with the size it had: that of a buffer that is too small when it
// is let go, the rest in the end. One that has none left takes nothing with it.
TEST(Buffers, UseTheMemoryTheyAreGiven) {
  struct Counting final : std::pmr::memory_resource {
    std::map<void*, std::size_t> lent;
    std::size_t left = 3;
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      if (left-- == 0) throw std::bad_alloc();
      void* const memory = std::pmr::new_delete_resource()->allocate(bytes, alignment);
      lent[memory] = bytes;
      return memory;
    }
    void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
      EXPECT_EQ(lent.at(memory), bytes);
      lent.erase(memory);
      std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  } memory;
  {
    Buffers buffers(&memory);
    { const Buffers::Loan a = buffers.lend(100, 0), b = buffers.lend(100, 0); }
    EXPECT_EQ(memory.lent.size(), 2u);
    { const Buffers::Loan large = buffers.lend(100'000, 0); }
    EXPECT_EQ(memory.lent.size(), 2u);
    EXPECT_THROW((void)buffers.lend(1'000'000, 0), std::bad_alloc);
    EXPECT_EQ(memory.lent.size(), 1u);
    EXPECT_EQ(buffers.lend(100, 0).bytes().size(), 100u);
  }
  EXPECT_TRUE(memory.lent.empty());
}

TEST(Buffers, NothingIsLentAsNothing) {
  Buffers buffers;
  EXPECT_TRUE(buffers.lend(0, 17).bytes().empty());
  EXPECT_TRUE(Buffers::Loan().bytes().empty());
}

// Bytes that the disk fetches itself have the same offset in a page as in the file, with the rest of the page before
// them.
TEST(Buffers, DirectBuffersLieAsTheFileDoes) {
  Buffers buffers;
  for (const std::uint64_t position : std::initializer_list<std::uint64_t>{0, 1, 100, 4095, 4096, 10'000}) {
    const Buffers::Loan loan = buffers.lend(5000, position, Buffers::Way::direct);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loan.bytes().data()) % Buffers::page, position % Buffers::page);
    EXPECT_EQ(loan.before().size(), position % Buffers::page);
    EXPECT_EQ(loan.before().data() + loan.before().size(), loan.bytes().data());
  }
}

}  // namespace
}  // namespace nibble::buffers_test
