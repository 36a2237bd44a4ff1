// What the simulator says when a kernel does something wrong.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/simulator/site.hpp"

namespace nibble::device::simulator {

/// A position in a kernel's source; every function of the layer takes its caller's as a defaulted argument.
using device::Site;

enum class Fault {
  global_bounds,  // outside the allocation, or in none
  shared_bounds,  // outside the array or the part of it
  misaligned,
  race,           // two accesses, one of them a write, that nothing orders
  uninitialized,  // a read of bytes that nobody wrote
  in_flight,      // touches the target of an asynchronous copy before its wait
  divergence,     // lanes meet at different collective operations, or one is missing
  deadlock,
  proxy,          // the asynchronous proxy was not told: fence_proxy_async
  wgmma,          // its accumulators or its fences
  written_twice,  // a byte of a write-once array
  not_written,    // a byte of a write-once array
  dependency,     // before dependency_wait, in a launch that overlaps the one before
  misuse,
};

std::string_view name(Fault fault);

/// A simulated launch failed. The text names the fault, the kernel's line, the block and the thread.
class Failure : public std::runtime_error {
 public:
  Failure(Fault fault, const Site& site, const std::string& text)
      : std::runtime_error(text), fault_(fault), file_(site.file_name()), line_(site.line()) {}
  [[nodiscard]] Fault fault() const noexcept { return fault_; }
  [[nodiscard]] const char* file() const noexcept { return file_; }
  [[nodiscard]] unsigned line() const noexcept { return line_; }

 private:
  Fault fault_;
  const char* file_;
  unsigned line_;
};

/// "nf4_dequant.hpp:40"
std::string where(const Site& site);

bool same_site(const Site& a, const Site& b);

/// Throws a Failure that also names the block and thread that run now, if any.
[[noreturn]] void fail(Fault fault, const Site& site, const std::string& text);

}  // namespace nibble::device::simulator
