// How many processors this process may use. A container's quota is what counts: taking the host's cores instead
// makes converters in containers several times slower than one thread.

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "nibble/memory.hpp"

namespace nibble {
namespace {

// Processors that a quota of `quota` microseconds in every `period` amounts to; 0 if there is no quota.
unsigned quota_processors(double quota, double period) {
  return quota > 0 && period > 0 ? static_cast<unsigned>(std::max(1.0, std::ceil(quota / period))) : 0;
}

// cpu.max of cgroup v2 holds "max 100000" or "150000 100000".
unsigned cgroup_processors() {
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file) {
    std::string quota;
    double period = 0;
    if (file >> quota >> period && quota != "max") return quota_processors(std::strtod(quota.c_str(), nullptr), period);
    return 0;
  }
  double quota = 0;
  double period = 0;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
  std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  return quota_processors(quota, period);
}

}  // namespace

unsigned default_threads() {
  cpu_set_t affinity;
  CPU_ZERO(&affinity);
  const int allowed = sched_getaffinity(0, sizeof affinity, &affinity) == 0 ? CPU_COUNT(&affinity) : 1;
  const unsigned quota = cgroup_processors();
  const auto processors = static_cast<unsigned>(std::max(1, allowed));
  return quota == 0 ? processors : std::min(quota, processors);
}

}  // namespace nibble
