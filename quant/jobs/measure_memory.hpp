#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "quant/jobs/pairing.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/memory_model.hpp"

namespace nibble {

/// How measuring uses its memory.
struct MeasureMemory {
  unsigned threads = 1;
  std::size_t tokens = 1;          ///< units in flight
  std::uint64_t tensor_bytes = 0;  ///< what one tensor may take, with what it is encoded to: two may be in work
  std::size_t results = 0;         ///< tensors that are found, at most
};

/// `codings` are those of the candidates. Throws Error(no_space) if even one unit at a time needs more than allowed.
[[nodiscard]] MeasureMemory plan_measure_memory(const Pairing& pairing, std::span<const Candidate> candidates,
                                                const std::deque<Codings>& codings, const MeasureOptions& options);

}  // namespace nibble
