// What the host needs besides launches: devices, their memory, copies. The simulator's device is the machine itself.
//
// The backend is chosen by the include path, as for kernels (device.hpp).
#pragma once
#include "backend/stream.hpp"
