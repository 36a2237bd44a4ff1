// A libnibble_cuda of another version, or of this one without its functions: it must not be called but for the version.
#include "kernels/host/device_interface.h"

int nibble_device_interface_version(void) { return NIBBLE_DEVICE_INTERFACE_VERSION + NIBBLE_VERSIONS_LATER; }
