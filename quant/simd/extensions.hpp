#pragma once

#include <string_view>
#include <vector>

namespace nibble {

/// The instructions that are used besides those of the CPU target, because the processor has them, the target may use
/// them, and the system permits them: of AVX512_VNNI, AVX512_VBMI, AVX512_BF16 and AMX_BF16.
[[nodiscard]] std::vector<std::string_view> cpu_extensions();

}  // namespace nibble
