#include "formats/memory_limit.hpp"

#include <fmt/format.h>

#include "nibble/error.hpp"

namespace nibble {

MemoryLimit::MemoryLimit(std::uint64_t max_memory)
    : max_memory_(max_memory), left_(max_memory > program_bytes ? max_memory - program_bytes : 0) {}

void MemoryLimit::take(std::uint64_t bytes, std::string_view label) {
  if (bytes > left_ - taken_)
    throw Error(Errc::no_space,
                fmt::format("{}: opening it needs at least {:.1f} MB of memory, --max-memory allows {:.1f} MB", label,
                            static_cast<double>(max_memory_ - left_ + taken_ + bytes) / 1e6,
                            static_cast<double>(max_memory_) / 1e6));
  taken_ += bytes;
}

}  // namespace nibble
