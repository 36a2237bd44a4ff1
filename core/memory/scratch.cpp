#include "core/memory/scratch.hpp"

#include "core/memory/huge_pages.hpp"

namespace nibble {
namespace {

constexpr std::size_t cache_line = 64;

}  // namespace

// Huge pages, because the memory is touched once and freed with its tensor.
MemoryScratch::MemoryScratch(std::uint64_t bytes)
    : bytes_(static_cast<std::byte*>(huge_new_delete_resource()->allocate(bytes, cache_line)), Free{bytes}) {}

void MemoryScratch::Free::operator()(std::byte* memory) const noexcept {
  huge_new_delete_resource()->deallocate(memory, size, cache_line);
}

}  // namespace nibble
