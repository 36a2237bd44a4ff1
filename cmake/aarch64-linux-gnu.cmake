# Cross-compiles for 64-bit ARM with Debian's g++ and runs the result under qemu. cmake/install_dependencies.sh --aarch64
# unpacks the libraries into build/sysroot-aarch64; the C and C++ libraries are the compiler's own.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CXX_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)

set(nibble_sysroot ${CMAKE_CURRENT_LIST_DIR}/../build/sysroot-aarch64)
cmake_path(NORMAL_PATH nibble_sysroot)
set(CMAKE_FIND_ROOT_PATH ${nibble_sysroot})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${nibble_sysroot})
set(ENV{PKG_CONFIG_LIBDIR} ${nibble_sysroot}/usr/lib/aarch64-linux-gnu/pkgconfig:${nibble_sysroot}/usr/share/pkgconfig)
