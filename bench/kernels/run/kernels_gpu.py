"""Whether there is a GPU, asked of the driver: no package is needed."""

import ctypes
import sys

NO_GPU, NOT_THERE = 77, 78  # exit codes: there is no GPU; a peer is not there


def gpus():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def end_without_gpu():
    if gpus() == 0:
        print("no GPU: nothing was measured")
        sys.exit(NO_GPU)
