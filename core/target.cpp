#include "nibble/target.hpp"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "nibble/error.hpp"

namespace nibble {
namespace {

// Highway only lists the targets that it may choose from, and once a target is forced, that is the only one. So ask
// once, before any target is forced; the answer depends only on the build and the machine.
const std::vector<std::int64_t>& available() {
  static const std::vector<std::int64_t> targets =
      hwy::SupportedAndGeneratedTargets();  // lower bits are better targets
  return targets;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::toupper(static_cast<unsigned char>(x)) == std::toupper(static_cast<unsigned char>(y));
  });
}

}  // namespace

std::vector<std::string_view> cpu_targets() {
  std::vector<std::string_view> names;
  for (const std::int64_t target : available()) names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string_view cpu_target() {
  static_cast<void>(available());
  return hwy::TargetName(hwy::SupportedAndGeneratedTargets().front());
}

void force_cpu_target(std::string_view name) {
  std::string names;
  for (const std::int64_t target : available()) {
    if (same_name(name, hwy::TargetName(target))) return hwy::SetSupportedTargetsForTest(target);
    names += (names.empty() ? "" : ", ") + std::string(hwy::TargetName(target));
  }
  if (!name.empty())
    throw Error(Errc::usage, "CPU target '" + printable(name) + "': this build on this processor has " + names);
  hwy::SetSupportedTargetsForTest(0);
}

void force_cpu_target_of_environment() {
  if (const char* const name = std::getenv("NIBBLE_CPU_TARGET"); name != nullptr) force_cpu_target(name);
}

}  // namespace nibble
