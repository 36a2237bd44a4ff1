#pragma once

#include "nibble/measure.hpp"
#include "nibble/plan.hpp"
#include "tests/support/memory_checkpoint.hpp"

namespace nibble::test {

[[nodiscard]] Recipe recipe(const CodecSpec& to);

/// Experts too, one by one.
[[nodiscard]] Recipe with_experts(const CodecSpec& to);

/// What convert() writes, to be read again, and how its tensors lie in it.
struct Converted {
  MemoryReader reader;
  Plan plan;
};
[[nodiscard]] Converted converted(const MemoryReader& in, const Recipe& recipe);

/// To be measured: a checkpoint, or what a conversion of `in` would write.
[[nodiscard]] Candidate checkpoint(const Reader& reader);
[[nodiscard]] Candidate plan(const Reader& in, const Recipe& recipe);

}  // namespace nibble::test
