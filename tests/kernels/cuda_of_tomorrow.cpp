// A libnibble_cuda of another version, which must not be called but for that.
#include "kernels/lane.h"

int nibble_lane_version(void) { return NIBBLE_LANE_VERSION + 1; }
