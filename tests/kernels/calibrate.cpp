// Compares the simulator with a GPU, bit for bit: both rest on one reading of the PTX ISA, and this is what tests it.
//
//   nibble_calibrate [--seeds N] [NAME ...]   these functions, or all; a line for each
//   nibble_calibrate --list                   their names
//
// After a trap the GPU refuses whatever this process asks for: to learn about all functions, run a process for each.
// 0: all is equal, or this device has loaded no code with the function. 1: something differs or failed. 2: wrong usage.
// 77: there is no GPU, and the simulator alone ran.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/kernels/calibration.hpp"

namespace nibble::test {
namespace {

constexpr int wrong_usage = 2, no_gpu = 77;

struct Arguments {
  bool list = false;
  std::uint32_t seeds = 5;
  std::vector<std::string> chosen;
};

// Prints the first difference, or that there is none; returns whether there is none.
bool compare(const std::string& name, std::uint32_t seeds) {
  std::size_t words = 0;
  for (std::uint32_t seed = 1; seed <= seeds; ++seed) {
    const std::vector<std::uint32_t> simulated = calibrate_simulator(name, seed), measured = calibrate_gpu(name, seed);
    const auto [ours, theirs] = std::mismatch(simulated.begin(), simulated.end(), measured.begin(), measured.end());
    if (ours != simulated.end() || theirs != measured.end()) {
      const auto count = [](std::size_t at, const auto& all) { return at < all.size() ? all[at] : 0; };
      const auto at = static_cast<std::size_t>(ours - simulated.begin());
      std::printf("DIFFERENT  %-31s seed %u, word %zu of %zu: %08x simulated, %08x on the GPU\n", name.c_str(), seed,
                  at, measured.size(), count(at, simulated), count(at, measured));
      return false;
    }
    words += measured.size();
  }
  std::printf("equal      %-31s %zu words\n", name.c_str(), words);
  return true;
}

bool calibrate(const std::string& name, unsigned capability, std::uint32_t seeds) {
  if (capability == 0) {
    std::printf("simulated  %-31s %zu words\n", name.c_str(), calibrate_simulator(name, 1).size());
    return true;
  }
  try {
    if (is_on_gpu(name)) return compare(name, seeds);
    std::printf("not there  %-31s on sm_%u\n", name.c_str(), capability);
    return true;
  } catch (const std::exception& error) {
    std::printf("FAILED     %-31s %s\n", name.c_str(), error.what());
    return false;
  }
}

// Throws std::invalid_argument.
Arguments parse(int argc, char** argv) {
  const std::vector<std::string> all = calibrations();
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto named = std::find(all.begin(), all.end(), argument);
    if (argument == "--list") {
      arguments.list = true;
    } else if (argument == "--seeds" && i + 1 < argc) {
      arguments.seeds = static_cast<std::uint32_t>(std::strtoul(argv[++i], nullptr, 10));
      if (arguments.seeds == 0) throw std::invalid_argument("--seeds needs a number from 1 on");
    } else if (named != all.end()) {
      arguments.chosen.push_back(*named);
    } else {
      throw std::invalid_argument("no function is called " + std::string(argument) + "; --list shows them");
    }
  }
  if (arguments.chosen.empty()) arguments.chosen = all;
  return arguments;
}

int run(const Arguments& arguments) {
  if (arguments.list) {
    for (const std::string& name : arguments.chosen) std::printf("%s\n", name.c_str());
    return EXIT_SUCCESS;
  }
  const unsigned capability = gpu_capability();
  bool equal = true;
  for (const std::string& name : arguments.chosen) {
    equal &= calibrate(name, capability, arguments.seeds);
    std::fflush(stdout);
  }
  if (capability == 0) {
    std::printf("no GPU: nothing was compared\n");
    return no_gpu;
  }
  return equal ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace nibble::test

int main(int argc, char** argv) {
  try {
    return nibble::test::run(nibble::test::parse(argc, argv));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return nibble::test::wrong_usage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
