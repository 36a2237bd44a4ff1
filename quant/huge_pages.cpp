#include "nibble/huge_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace nibble {
namespace {

constexpr std::size_t page = 4096;

// Of addresses; memory is what is touched of them.
constexpr std::size_t slab_bytes = std::size_t{32} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

HugePages::~HugePages() {
  for (const Slab& slab : slabs_) ::munmap(slab.begin, slab.size);
}

void* HugePages::do_allocate(std::size_t bytes, std::size_t alignment) {
  if (alignment > page || bytes > SIZE_MAX / 2) throw std::bad_alloc();
  bytes = round_up(std::max<std::size_t>(bytes, 1), page);
  const std::scoped_lock lock(mutex_);
  if (slabs_.empty() || slabs_.back().size - used_ < bytes) {
    slabs_.reserve(slabs_.size() + 1);
    // Mapped longer by a huge page, so that one begins at its begin; the rest is never touched.
    const std::size_t size = std::max(slab_bytes, round_up(bytes, huge_page)) + huge_page;
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    slabs_.push_back({static_cast<std::byte*>(memory), size});
    used_ = round_up(reinterpret_cast<std::size_t>(memory), huge_page) - reinterpret_cast<std::size_t>(memory);
    ::madvise(slabs_.back().begin + used_, size - used_, MADV_HUGEPAGE);  // a hint, no more
  }
  std::byte* const memory = slabs_.back().begin + used_;
  used_ += bytes;
  return memory;
}

void HugePages::do_deallocate(void* memory, std::size_t bytes, std::size_t /*alignment*/) {
  ::madvise(memory, round_up(std::max<std::size_t>(bytes, 1), page), MADV_DONTNEED);
}

}  // namespace nibble
