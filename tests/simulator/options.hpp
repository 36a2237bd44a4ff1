// How simulated launches run. Launches happen deep inside library functions, so a test sets this by a scoped object.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/device/types.hpp"
#include "tests/simulator/failure.hpp"

namespace nibble::device::simulator {

/// Who runs next when several threads can.
enum class Schedule {
  in_order,  // the lowest thread: fast to follow in a debugger
  random,    // any lane of any warp
  priority,  // warps have random priorities that change now and then: some run far ahead of others
};

/// Block (x, y, z) of a grid has the number x + grid.x * (y + grid.y * z).
struct BlockRange {
  std::uint64_t first, end;
};

struct Options {
  std::uint64_t seed = 1;  // a seed repeats a run exactly, as long as `workers` is 1
  Schedule schedule = Schedule::random;
  bool detect_races = true;
  bool late_copies = true;        // asynchronous bulk copies land when nothing else can run, not at random times
  int workers = 1;                // blocks that run at the same time, each on a thread of the machine
  std::optional<Site> skipped{};  // a synchronization that does nothing: survivors() in tests/kernels/schedules.hpp
  bool record_sites = false;      // collect the sites of all synchronizations
  // The blocks of a launch that run, for launches too large to be simulated whole: the others do nothing. What is past
  // the end of the grid does not count. Null: all.
  BlockRange (*part)(Grid grid) = nullptr;
  unsigned multiprocessors = 132;
  unsigned capability = 90;
  unsigned max_cluster = 8;  // the blocks of the largest cluster that the device has room for
  // What the code that the device has loaded was compiled for; 80 refuses what came with sm_90. Null: what the library
  // has for the device, sm_90a for capability 90 and else sm_80. CUDA_FORCE_PTX_JIT makes it 80.
  std::optional<unsigned> target{};

  [[nodiscard]] unsigned loaded_target() const { return target.value_or(capability == 90 ? 90 : 80); }
};

struct Statistics {
  std::uint64_t launches = 0, blocks = 0, threads = 0, switches = 0, collectives = 0;
  std::uint64_t overlapping_launches = 0;  // with Overlap::yes
  std::uint64_t launched_dependents = 0;   // blocks that called dependency_launch ...
  std::uint64_t waiting_blocks = 0;        // ... and dependency_wait

  void add(const Statistics& other);
};

/// While it lives, launches of this thread of the machine use these options. Scopes nest.
class ScopedOptions {
 public:
  explicit ScopedOptions(const Options& options);
  ~ScopedOptions();
  ScopedOptions(const ScopedOptions&) = delete;
  ScopedOptions& operator=(const ScopedOptions&) = delete;

  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const Statistics& statistics() const { return statistics_; }
  [[nodiscard]] const std::vector<Site>& sites() const { return sites_; }

  /// Called by the launcher.
  void add(const Statistics& statistics, const std::vector<Site>& sites);

 private:
  Options options_;
  Statistics statistics_;
  std::vector<Site> sites_;
  ScopedOptions* outer_;
};

/// Of the innermost scope, or the defaults.
const Options& current_options();
ScopedOptions* current_scope();

}  // namespace nibble::device::simulator
