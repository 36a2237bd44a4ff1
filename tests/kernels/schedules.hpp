// Runs a launch under many schedules, and with each of its synchronizations turned off.
//
// A run is a function that fills its arrays, calls the library and returns whether the result is right. The simulator's
// Failure may come out of it. On a GPU (NIBBLE_ON_GPU) a run is done once: there it has the schedule that it has.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/simulator/options.hpp"

/// A test of what a GPU does not have: faults that are planted, memory that is not there, kernels that the library does
/// not offer as a function. There it is skipped; its body is compiled as a template that nobody instantiates.
#if defined(NIBBLE_ON_GPU)
#define NIBBLE_SIMULATED_TEST(suite, name)                       \
  TEST(suite, name) { GTEST_SKIP() << "only in the simulator"; } \
  template <class> [[maybe_unused]] void suite##name##InTheSimulator()
#else
#define NIBBLE_SIMULATED_TEST(suite, name) TEST(suite, name)
#endif

namespace nibble::test {

using device::simulator::Options;

/// Calls body() on a simulated device of each of these sizes with each of these capabilities.
template <class Body>
void on_devices(std::initializer_list<unsigned> multiprocessors, std::initializer_list<unsigned> capabilities,
                Body&& body) {
  for (const unsigned count : multiprocessors)
    for (const unsigned capability : capabilities) {
      Options options;
      options.multiprocessors = count;
      options.capability = capability;
      const device::simulator::ScopedOptions scope(options);
      SCOPED_TRACE(testing::Message() << count << " multiprocessors, capability " << capability);
      body();
    }
}

/// The i-th of the schedules that tests use: all three kinds, seeds that differ, copies that land early and late.
inline Options schedule(int i) {
  using device::simulator::Schedule;
  constexpr Schedule kinds[] = {Schedule::random, Schedule::priority, Schedule::in_order};
  return {.seed = static_cast<std::uint64_t>(i) + 1, .schedule = kinds[i % 3], .late_copies = i % 2 == 0};
}

/// For Options::part: the last four blocks of each launch.
inline device::simulator::BlockRange last_four(device::Grid grid) {
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  return {blocks - std::min<std::uint64_t>(blocks, 4), blocks};
}

/// Calls run() under that many schedules; for a run that checks by itself.
template <class Run>
void in_schedules(Run&& run, [[maybe_unused]] int schedules = 3,
                  [[maybe_unused]] device::simulator::BlockRange (*part)(device::Grid) = nullptr) {
#if defined(NIBBLE_ON_GPU)
  run();
#else
  for (int i = 0; i < schedules; ++i) {
    Options options = schedule(i);
    options.part = part;
    const device::simulator::ScopedOptions scope(options);
    run();
  }
#endif
}

/// How a faulty kernel shows.
struct Outcome {
  int passed = 0;                    // runs in which nobody saw anything
  int wrong = 0;                     // the result differs
  std::vector<std::string> reports;  // of the simulator, one for each run that it ended
  std::vector<device::simulator::Fault> faults;
};

/// Tries `run` under schedules that depend on chance, and says how many of them saw that something is wrong.
template <class Run> Outcome outcome(Run&& run, int schedules = 20, Options options = {}) {
  using device::simulator::Failure;
  Outcome outcome;
  for (int i = 0; outcome.passed == 0 && i < schedules; ++i) {
    options.seed = static_cast<std::uint64_t>(i) + 1;
    options.schedule = i % 2 == 0 ? device::simulator::Schedule::random : device::simulator::Schedule::priority;
    options.late_copies = i % 3 != 0;
    const device::simulator::ScopedOptions scope(options);
    try {
      ++(run() ? outcome.passed : outcome.wrong);
    } catch (const Failure& failure) {
      outcome.reports.emplace_back(failure.what());
      outcome.faults.push_back(failure.fault());
    }
  }
  return outcome;
}

/// The synchronizations that `run` does not seem to need, as "file.hpp:40": with one of them turned off it is still
/// right under one of the schedules, and no check objects. Each is redundant, or a hole in the test.
template <class Run> std::vector<std::string> survivors(Run&& run, int schedules = 20) {
  std::vector<device::simulator::Site> sites;
  {
    Options options = schedule(0);
    options.record_sites = true;
    const device::simulator::ScopedOptions scope(options);
    run();
    sites = scope.sites();
  }
  std::vector<std::string> survivors;
  for (const device::simulator::Site& site : sites) {
    Options options;
    options.skipped = site;
    if (outcome(run, schedules, options).passed > 0) survivors.push_back(device::simulator::where(site));
  }
  return survivors;
}

}  // namespace nibble::test
