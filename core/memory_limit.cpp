#include "core/memory_limit.hpp"

#include <fmt/format.h>

#include "core/size_text.hpp"

namespace nibble {

Error too_little_memory(std::string_view what, std::uint64_t needed, std::uint64_t allowed) {
  const auto [need, limit] = told_apart(needed, allowed, size_short);
  return {Errc::no_space, fmt::format("{} {} of memory, the limit is {}", what, need, limit),
          Remedy{Remedy::Kind::max_memory, needed}};
}

MemoryLimit::MemoryLimit(std::uint64_t max_memory)
    : max_memory_(max_memory), left_(max_memory > program_bytes ? max_memory - program_bytes : 0) {}

void MemoryLimit::take(std::uint64_t bytes, std::string_view label) {
  if (bytes > left_ - taken_)
    throw too_little_memory(fmt::format("{}: opening it needs at least", label), program_bytes + taken_ + bytes,
                            max_memory_);
  taken_ += bytes;
}

}  // namespace nibble
