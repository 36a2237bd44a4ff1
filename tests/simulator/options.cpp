#include "tests/simulator/options.hpp"

#include <algorithm>

namespace nibble::device::simulator {
namespace {

thread_local constinit ScopedOptions* innermost = nullptr;
const Options defaults;

}  // namespace

ScopedOptions::ScopedOptions(const Options& options) : options_(options), outer_(innermost) { innermost = this; }

ScopedOptions::~ScopedOptions() { innermost = outer_; }

void ScopedOptions::add(const Statistics& statistics, const std::vector<Site>& sites) {
  statistics_.launches += statistics.launches;
  statistics_.blocks += statistics.blocks;
  statistics_.threads += statistics.threads;
  statistics_.switches += statistics.switches;
  statistics_.collectives += statistics.collectives;
  statistics_.launched_dependents += statistics.launched_dependents;
  for (const Site& site : sites)
    if (std::none_of(sites_.begin(), sites_.end(), [&](const Site& known) { return same_place(known, site); }))
      sites_.push_back(site);
}

const Options& current_options() { return innermost != nullptr ? innermost->options() : defaults; }

ScopedOptions* current_scope() { return innermost; }

}  // namespace nibble::device::simulator
