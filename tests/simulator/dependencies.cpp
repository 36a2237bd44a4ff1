// Programmatic dependent launch: what a kernel may do while the one before it runs.
#include <fmt/format.h>

#include <algorithm>

#include "tests/simulator/simulator.hpp"

namespace nibble::device::simulator {

// Where launches do not overlap, the wait is for nothing: a test that removes it must see that elsewhere.
void Block::wait_for_dependency(Thread& thread, const Site& site) {
  if (!launch_.overlaps || skipped(site)) return;
  dependency_waits_.push_back({thread.who, thread.clock[thread.who]});
}

void Block::launch_dependents() { launched_dependents_ = true; }

void Block::check_dependency(Thread& thread, const Region& region, Use use, const Site& site) {
  if (!launch_.overlaps || thread.after_dependency || region.access() == Access::bounds_only) return;
  if (region.access() == Access::constant) return;
  // Another thread of the block may have waited. Without the detector nothing is known of the order of threads.
  thread.after_dependency = std::any_of(
      dependency_waits_.begin(), dependency_waits_.end(),
      [&](const DependencyWait& wait) { return !options_.detect_races || thread.clock[wait.thread] >= wait.step; });
  if (!thread.after_dependency)
    fail(Fault::dependency, site,
         fmt::format("{} '{}' before dependency_wait: the kernel before this one may still {} it",
                     use == Use::read    ? "read of"
                     : use == Use::write ? "write to"
                                         : "atomic operation on",
                     region.name(), use == Use::read ? "write" : "use"));
}

void Block::check_early_load(const Region& region, const char* load, const Site& site) const {
  if (launch_.overlaps && region.access() != Access::constant && region.access() != Access::bounds_only)
    fail(Fault::dependency, site,
         fmt::format("{} of '{}', which is no constant, in a launch that overlaps the one before: the load may come "
                     "before dependency_wait",
                     load, region.name()));
}

}  // namespace nibble::device::simulator
