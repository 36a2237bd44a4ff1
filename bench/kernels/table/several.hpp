// Products of several weights in one launch, for the speed table.
#pragma once
#include "bench/kernels/table/session.hpp"

namespace nibble::bench {

/// Of q, k and v, beside three launches; and of experts.
void measure_several(Session& session);

}  // namespace nibble::bench
