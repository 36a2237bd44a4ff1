#include "core/memory_limit.hpp"

#include <fmt/format.h>

#include "core/text/size_text.hpp"

namespace nibble {

namespace {

std::string needs_text(std::string_view what, std::uint64_t needed, std::uint64_t allowed) {
  const auto [need, limit] = told_apart(needed, allowed, size_short);
  return fmt::format("{} {} of memory, the limit is {}", what, need, limit);
}

}  // namespace

Error too_little_memory(std::string_view what, std::uint64_t needed, std::uint64_t allowed) {
  return {Errc::no_space, needs_text(what, needed, allowed), Remedy{Remedy::Kind::max_memory, needed}};
}

MemoryLimit::MemoryLimit(std::uint64_t max_memory)
    : max_memory_(max_memory), left_(max_memory > program_bytes ? max_memory - program_bytes : 0) {}

void MemoryLimit::take(std::uint64_t bytes, std::string_view label) {
  if (bytes > left_ - taken_) {
    const std::uint64_t needed = program_bytes + taken_ + bytes;
    throw Error(Errc::no_space, label, needs_text("opening it needs at least", needed, max_memory_),
                Remedy{Remedy::Kind::max_memory, needed});
  }
  taken_ += bytes;
}

}  // namespace nibble
