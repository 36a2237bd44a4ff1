// What a launch may ask for.
#include <fmt/format.h>

#include <algorithm>

#include "tests/simulator/simulator.hpp"

namespace nibble::device::simulator {
namespace {

// CUDA's numbers.
constexpr int invalid_value = 1, invalid_configuration = 9;

}  // namespace

void check_limits(const Launch& launch, u32 capability) {
  const Grid& grid = launch.grid;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 || grid.x > 0x7fffffffu)
    throw LaunchError(invalid_configuration, fmt::format("a grid of {} x {} x {} blocks", grid.x, grid.y, grid.z));
  if (launch.parameter_bytes > max_parameter_bytes)
    throw LaunchError(invalid_value, fmt::format("{} bytes of parameters (with the simulator's pointers), of {}",
                                                 launch.parameter_bytes, max_parameter_bytes));

  if (launch.cluster == 0 || launch.cluster > max_cluster || grid.x % launch.cluster != 0 ||
      (launch.cluster > 1 && capability < 90))
    throw LaunchError(invalid_configuration,
                      fmt::format("clusters of {} blocks in a row of {} on sm_{}", launch.cluster, grid.x, capability));

  if (launch.threads > launch.code.max_threads)
    throw LaunchError(invalid_value,
                      fmt::format("blocks of {} threads, but the code that is loaded, for sm_{}, is for {}",
                                  launch.threads, launch.code.ptx, launch.code.max_threads));

  const DeviceLimits limits = device_limits(capability);
  if (launch.max_shared_bytes > limits.block_shared_bytes)
    throw LaunchError(invalid_value, fmt::format("{} bytes of dynamic shared memory, of {}", launch.max_shared_bytes,
                                                 limits.block_shared_bytes));
  if (launch.dynamic_shared_bytes > std::max(launch.max_shared_bytes, default_shared_bytes))
    throw LaunchError(invalid_value,
                      fmt::format("{} bytes of dynamic shared memory, but the kernel's max_block_shared_bytes is {}",
                                  launch.dynamic_shared_bytes, launch.max_shared_bytes));

  // min_blocks decides how many registers the compiler gives to a thread. If no device can have so many blocks at a
  // time, that was for nothing. (Some have fewer threads or less shared memory than others, and run fewer blocks.)
  const u64 threads = u64{launch.threads} * launch.min_blocks;
  const u64 shared = (u64{launch.dynamic_shared_bytes} + 1024) * launch.min_blocks;
  const DeviceLimits most = device_limits(90);
  if (launch.min_blocks == 0 || launch.min_blocks > most.blocks || threads > most.threads || shared > most.shared_bytes)
    throw LaunchError(invalid_configuration,
                      fmt::format("min_blocks is {}, but a multiprocessor has no room for that many blocks of {} "
                                  "threads and {} bytes of shared memory",
                                  launch.min_blocks, launch.threads, launch.dynamic_shared_bytes));
}

}  // namespace nibble::device::simulator
