#include "tests/simulator/options.hpp"

#include <algorithm>

namespace nibble::device::simulator {
namespace {

thread_local constinit ScopedOptions* innermost = nullptr;
const Options defaults;

}  // namespace

ScopedOptions::ScopedOptions(const Options& options) : options_(options), outer_(innermost) { innermost = this; }

ScopedOptions::~ScopedOptions() { innermost = outer_; }

void Statistics::add(const Statistics& other) {
  launches += other.launches;
  overlapping_launches += other.overlapping_launches;
  blocks += other.blocks;
  threads += other.threads;
  switches += other.switches;
  collectives += other.collectives;
  launched_dependents += other.launched_dependents;
  waiting_blocks += other.waiting_blocks;
}

void ScopedOptions::add(const Statistics& statistics, const std::vector<Site>& sites) {
  statistics_.add(statistics);
  for (const Site& site : sites)
    if (std::none_of(sites_.begin(), sites_.end(), [&](const Site& known) { return same_site(known, site); }))
      sites_.push_back(site);
}

const Options& current_options() { return innermost != nullptr ? innermost->options() : defaults; }

ScopedOptions* current_scope() { return innermost; }

}  // namespace nibble::device::simulator
