#include "core/memory/huge_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "core/memory/huge_page_advice.hpp"

namespace nibble {
namespace {

// Addresses only: they take memory when they are touched.
constexpr std::size_t slab_bytes = std::size_t{32} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Memory is given back in pages of the system, which are not 4 KiB everywhere.
std::size_t pages_of(std::size_t bytes) {
  static const auto page_size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return round_up(std::max<std::size_t>(bytes, 1), page_size);
}

std::byte* map(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

HugePages::~HugePages() {
  for (const Slab& slab : slabs_) ::munmap(slab.begin, slab.size);
}

void* HugePages::do_allocate(std::size_t bytes, std::size_t alignment) {
  if (alignment > pages_of(1) || bytes > SIZE_MAX / 2) throw std::bad_alloc();
  bytes = pages_of(bytes);
  const std::scoped_lock lock(mutex_);
  if (slabs_.empty() || slabs_.back().size - used_ < bytes) {
    slabs_.reserve(slabs_.size() + 1);
    // The mapping is longer by one huge page, so that the memory can begin at a huge page; the rest is never touched.
    std::size_t size = std::max(slab_bytes, round_up(bytes, huge_page)) + huge_page;
    std::byte* memory = map(size);
    if (memory == nullptr) memory = map(size = bytes);  // if the address space is limited
    if (memory == nullptr) throw std::bad_alloc();
    slabs_.push_back({memory, size});
    const auto address = reinterpret_cast<std::size_t>(memory);
    used_ = size == bytes ? 0 : round_up(address, huge_page) - address;
    ::madvise(memory + used_, size - used_, MADV_HUGEPAGE);  // only a hint
  }
  std::byte* const memory = slabs_.back().begin + used_;
  used_ += bytes;
  return memory;
}

void HugePages::do_deallocate(void* memory, std::size_t bytes, std::size_t /*alignment*/) {
  ::madvise(memory, pages_of(bytes), MADV_DONTNEED);
}

namespace {

class HugeNewDelete final : public std::pmr::memory_resource {
  static constexpr std::size_t huge_page = HugePages::huge_page;

  static std::size_t alignment_of(std::size_t bytes, std::size_t alignment) {
    return bytes < huge_page ? alignment : std::max(alignment, huge_page);
  }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* const memory = std::pmr::new_delete_resource()->allocate(bytes, alignment_of(bytes, alignment));
    advise_huge_pages({static_cast<std::byte*>(memory), bytes});
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment_of(bytes, alignment));
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

std::pmr::memory_resource* huge_new_delete_resource() noexcept {
  static HugeNewDelete resource;
  return &resource;
}

}  // namespace nibble
