// A libnibble_cuda of another version, which must not be called but for that.
#include "kernels/host/device_interface.h"

int nibble_device_interface_version(void) { return NIBBLE_DEVICE_INTERFACE_VERSION + 1; }
