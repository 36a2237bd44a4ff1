#include "core/scratch.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace nibble {
namespace {

constexpr std::size_t huge_page = 2 << 20;
constexpr std::size_t cache_line = 64;

}  // namespace

// It is touched once and freed with its tensor: with huge pages that is one page fault instead of 512.
MemoryScratch::MemoryScratch(std::uint64_t bytes)
    : size_(bytes), bytes_(nullptr, Free{bytes < huge_page ? cache_line : huge_page}) {
  bytes_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{bytes_.get_deleter().alignment})));
#ifdef __linux__
  if (bytes >= huge_page) madvise(bytes_.get(), bytes / huge_page * huge_page, MADV_HUGEPAGE);  // a hint, no more
#endif
}

}  // namespace nibble
