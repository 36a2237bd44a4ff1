#include "core/memory/huge_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/memory/huge_page_advice.hpp"

namespace nibble::huge_pages_test {
namespace {

namespace fs = std::filesystem;

const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

bool is_resident(void* memory) {
  unsigned char there = 0;
  EXPECT_EQ(::mincore(memory, page, &there), 0);
  return (there & 1U) != 0;
}

// Side by side, so that several share a huge page, and not one within the other.
TEST(HugePages, LieSideBySideOnPages) {
  HugePages pages;
  std::byte* const first = static_cast<std::byte*>(pages.allocate(1000, page));
  std::byte* const second = static_cast<std::byte*>(pages.allocate(3 * page, page));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % HugePages::huge_page, 0u);
  EXPECT_EQ(second, first + page);
  EXPECT_EQ(pages.allocate(1, 8), second + 3 * page);
  std::fill_n(first, page, std::byte{1});
  std::fill_n(second, 3 * page, std::byte{2});
  EXPECT_EQ(first[page - 1], std::byte{1});
}

// More than a slab has left, and more than a slab.
TEST(HugePages, AnySize) {
  HugePages pages;
  for (const std::size_t size :
       {std::size_t{0}, page, std::size_t{20} << 20, std::size_t{20} << 20, std::size_t{70} << 20}) {
    const std::span memory(static_cast<std::byte*>(pages.allocate(size, page)), size);
    if (size == 0) continue;
    memory.front() = memory.back() = std::byte{7};
    EXPECT_EQ(memory.back(), std::byte{7});
  }
  EXPECT_THROW((void)pages.allocate(std::numeric_limits<std::size_t>::max(), page), std::bad_alloc);
  EXPECT_THROW((void)pages.allocate(std::size_t{1} << 60, page), std::bad_alloc);
  EXPECT_THROW((void)pages.allocate(page, 2 * page), std::bad_alloc);
  EXPECT_NE(pages.allocate(page, page), nullptr);  // and goes on after that
}

// Memory that is given back is the system's again: the plan counts what is lent, not what was.
TEST(HugePages, GiveBackTheirMemory) {
  HugePages pages;
  const std::size_t size = 2 * HugePages::huge_page;
  auto* const memory = static_cast<std::byte*>(pages.allocate(size, page));
  std::fill_n(memory, size, std::byte{1});
  EXPECT_TRUE(is_resident(memory));
  pages.deallocate(memory, size, page);
  EXPECT_FALSE(is_resident(memory));
  EXPECT_FALSE(is_resident(memory + size - page));
}

// What is given back lies between others, whose bytes stay.
TEST(HugePages, NeighboursStay) {
  HugePages pages;
  std::vector<std::span<std::byte>> all;
  for (const std::size_t size : {std::size_t{100}, page + 1, 3 * page, std::size_t{4096}, std::size_t{5000}}) {
    all.emplace_back(static_cast<std::byte*>(pages.allocate(size, 64)), size);
    std::ranges::fill(all.back(), std::byte{9});
  }
  for (const std::size_t gone : {1u, 3u}) pages.deallocate(all[gone].data(), all[gone].size(), 64);
  for (const std::size_t kept : {0u, 2u, 4u})
    EXPECT_EQ(std::ranges::count(all[kept], std::byte{9}), static_cast<std::ptrdiff_t>(all[kept].size())) << kept;
}

// Where the program may have few addresses, a buffer at a time.
TEST(HugePages, FewAddressesWillDo) {
  constexpr int limits_ignored = 77;
  // _Exit: to a leak detector, what only the threads of the parent refer to would look lost in its child.
  EXPECT_EXIT(
      {
        std::size_t pages_in_use = 0;
        std::ifstream("/proc/self/statm") >> pages_in_use;
        rlimit few{};
        few.rlim_cur = pages_in_use * page + (std::size_t{8} << 20);
        few.rlim_max = RLIM_INFINITY;
        if (pages_in_use == 0 || ::setrlimit(RLIMIT_AS, &few) != 0) std::_Exit(2);
        constexpr std::size_t too_many = std::size_t{16} << 20;
        if (::mmap(nullptr, too_many, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
          std::_Exit(limits_ignored);  // by qemu
        HugePages pages;
        std::fill_n(static_cast<std::byte*>(pages.allocate(std::size_t{1} << 20, page)), 1 << 20, std::byte{1});
        try {
          (void)pages.allocate(too_many, page);
        } catch (const std::bad_alloc&) {
          std::_Exit(0);
        }
        std::_Exit(1);
      },
      [](int status) {
        return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == limits_ignored);
      },
      "");
}

TEST(HugePages, AreForManyThreads) {
  HugePages pages;
  std::vector<std::vector<std::byte*>> made(4);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : made)
      threads.emplace_back([&pages, &mine] {
        for (int i = 0; i < 2000; ++i) {
          mine.push_back(static_cast<std::byte*>(pages.allocate(page, page)));
          *mine.back() = std::byte{1};
        }
      });
  }
  std::vector<std::byte*> all;
  for (const auto& mine : made) all.insert(all.end(), mine.begin(), mine.end());
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all, [](auto a, auto b) { return b - a < static_cast<std::ptrdiff_t>(page); }),
            all.end());
}

// Whether the system was asked for huge pages at this address; nothing where it does not say.
std::optional<bool> asks_for_huge_pages(const std::byte* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2)
      is_here = begin <= address && address < end;
    if (is_here && line.starts_with("VmFlags:")) return (line + ' ').find(" hg ") != std::string::npos;
  }
  return std::nullopt;
}

// The ends of memory are in huge pages that it shares with its neighbours.
TEST(HugePageAdvice, IsForWholeHugePages) {
  constexpr std::size_t huge_page = HugePages::huge_page, size = 5 * huge_page;
  void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const bytes = static_cast<std::byte*>(mapped);
  void* whole = mapped;
  std::size_t left = size;
  auto* const aligned = static_cast<std::byte*>(std::align(huge_page, huge_page, whole, left));
  advise_huge_pages({});
  advise_huge_pages({aligned + page, huge_page});  // no whole one
  if (fs::exists("/sys/kernel/mm/transparent_hugepage") && asks_for_huge_pages(bytes).has_value()) {
    EXPECT_EQ(asks_for_huge_pages(aligned + page), false);
    advise_huge_pages({aligned + page, 3 * huge_page});
    EXPECT_EQ(asks_for_huge_pages(aligned + page), false);
    EXPECT_EQ(asks_for_huge_pages(aligned + huge_page), true);
    EXPECT_EQ(asks_for_huge_pages(aligned + 3 * huge_page - 1), true);
    EXPECT_EQ(asks_for_huge_pages(aligned + 3 * huge_page), false);
  }
  ::munmap(mapped, size);
}

TEST(HugeNewDelete, FromOneOnMemoryIsMadeOfHugePages) {
  std::pmr::memory_resource* const memory = huge_new_delete_resource();
  const std::size_t size = 2 * HugePages::huge_page + HugePages::huge_page / 2;
  auto* const bytes = static_cast<std::byte*>(memory->allocate(size, 64));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes) % HugePages::huge_page, 0U);
  bytes[0] = bytes[size - 1] = std::byte{1};
  if (fs::exists("/sys/kernel/mm/transparent_hugepage") && asks_for_huge_pages(bytes).has_value()) {
    EXPECT_EQ(asks_for_huge_pages(bytes + 2 * HugePages::huge_page - 1), true);
    EXPECT_EQ(asks_for_huge_pages(bytes + size - 1), false);  // the end, which is shorter than one
  }
  memory->deallocate(bytes, size, 64);
}

TEST(HugeNewDelete, ShorterMemoryIsAlignedAsAskedFor) {
  std::pmr::memory_resource* const memory = huge_new_delete_resource();
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, HugePages::huge_page - 1})
    for (const std::size_t alignment : {std::size_t{8}, page}) {
      auto* const bytes = static_cast<std::byte*>(memory->allocate(size, alignment));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes) % alignment, 0U);
      std::fill_n(bytes, size, std::byte{1});
      memory->deallocate(bytes, size, alignment);
    }
  EXPECT_TRUE(memory->is_equal(*huge_new_delete_resource()));
  EXPECT_FALSE(memory->is_equal(*std::pmr::new_delete_resource()));
}

}  // namespace
}  // namespace nibble::huge_pages_test
