#include "tests/simulator/failure.hpp"

#include <cstring>

#include "tests/simulator/simulator.hpp"

namespace nibble::device::simulator {

std::string_view name(Fault fault) {
  switch (fault) {
    case Fault::global_bounds:
      return "global memory out of bounds";
    case Fault::shared_bounds:
      return "shared memory out of bounds";
    case Fault::misaligned:
      return "misaligned access";
    case Fault::race:
      return "race";
    case Fault::uninitialized:
      return "uninitialized read";
    case Fault::in_flight:
      return "asynchronous copy in flight";
    case Fault::divergence:
      return "divergence";
    case Fault::deadlock:
      return "deadlock";
    case Fault::proxy:
      return "asynchronous proxy";
    case Fault::wgmma:
      return "wgmma";
    case Fault::written_twice:
      return "written twice";
    case Fault::not_written:
      return "not written";
    case Fault::dependency:
      return "dependency";
    case Fault::misuse:
      return "misuse";
  }
  return "?";
}

std::string where(const Site& site) {
  const char* slash = std::strrchr(site.file_name(), '/');
  return std::string(slash != nullptr ? slash + 1 : site.file_name()) + ":" + std::to_string(site.line());
}

bool same_site(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

void fail(Fault fault, const Site& site, const std::string& text) {
  std::string message = where(site) + ": " + std::string(name(fault)) + ": " + text;
  if (current != nullptr) {
    const Block& block = *current->block;
    message += " [block (" + std::to_string(block.index.x) + "," + std::to_string(block.index.y) + "," +
               std::to_string(block.index.z) + "), thread " + std::to_string(current->index) + "]";
  }
  throw Failure(fault, site, message);
}

}  // namespace nibble::device::simulator
