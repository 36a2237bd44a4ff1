// What the host needs besides launches: devices, their memory, copies. The simulator's device is the machine itself.
//
// Host code alone, so CUDA's side is chosen by the compiler that also sees the kernels.
#pragma once
#if defined(__CUDACC__)
#include "kernels/device/cuda_stream.hpp"
#else
#include "tests/simulator/stream.hpp"
#endif
