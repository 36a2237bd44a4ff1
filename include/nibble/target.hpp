#pragma once

#include <string_view>
#include <vector>

namespace nibble {

/// The inner loops of the codecs are compiled once per CPU target, and the best one that the processor has runs. All
/// of them write the same bytes, so what follows is for tests and measurements.
///
/// Targets have the names that Highway gives them: SCALAR (clang: EMU128), SSSE3, SSE4, AVX2, AVX3 (AVX-512),
/// AVX3_DL (Ice Lake), NEON, ...

/// The targets that this build has and this processor supports, best first. Not changed by force_cpu_target().
/// Thread-safe.
[[nodiscard]] std::vector<std::string_view> cpu_targets();

/// The target that runs: the one that was forced, else the best.
[[nodiscard]] std::string_view cpu_target();

/// Makes all codecs of this process run on one target, in upper or lower case; an empty name returns to the best one.
/// Which one was forced is kept by Highway, process-wide: the only state that outlives a call into nibble. Call it
/// while no other thread runs a codec. Throws Error(usage) that lists cpu_targets() if the name is none of them.
void force_cpu_target(std::string_view name);

/// The same with the value of NIBBLE_CPU_TARGET, if it is set; for programs to call as they start.
void force_cpu_target_of_environment();

}  // namespace nibble
