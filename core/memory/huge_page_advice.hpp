#pragma once

#include <cstddef>
#include <span>

namespace nibble {

/// Asks the system for huge pages in memory that is about to be written for the first time, except at its ends, which
/// share their huge pages with other memory. The first touch of a huge page is one page fault instead of 512: the fresh
/// 64 MiB of a tensor [4096, 4096] in fp32 are filled 4 times as fast (docs/cpu-matmul.md).
void advise_huge_pages(std::span<std::byte> memory) noexcept;

}  // namespace nibble
