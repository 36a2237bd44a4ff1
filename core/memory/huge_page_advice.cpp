#include "core/memory/huge_page_advice.hpp"

#include <sys/mman.h>

#include <memory>

#include "core/memory/huge_pages.hpp"

namespace nibble {

void advise_huge_pages(std::span<std::byte> memory) noexcept {
  constexpr std::size_t huge_page = HugePages::huge_page;
  void* begin = memory.data();
  std::size_t size = memory.size();
  if (std::align(huge_page, huge_page, begin, size) == nullptr) return;
  ::madvise(begin, size / huge_page * huge_page, MADV_HUGEPAGE);  // only a hint
}

}  // namespace nibble
