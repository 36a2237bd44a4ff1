// How the functions of nibble/kernels.h end: a status, and a text for nibble_last_error().
#pragma once
#include <stdexcept>
#include <string>

#include "kernels/device/types.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

/// An argument that makes no sense; the text names the function, the argument, the fact and the limit.
class UsageError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

inline void require(bool holds, const char* text) {
  if (!holds) throw UsageError(text);
}

/// Keeps the text for nibble_last_error() of this thread; returns the status.
int failed(nibble_status status, const char* text) noexcept;

/// Runs the body of a C function. What the simulator finds wrong in a kernel passes through, for the test to see.
template <class Body> int status_of(Body&& body) {
  try {
    body();
    return NIBBLE_OK;
  } catch (const UsageError& error) {
    return failed(NIBBLE_USAGE, error.what());
  } catch (const device::LaunchError& error) {
    return failed(NIBBLE_INTERNAL, error.what());
  }
}

}  // namespace nibble::kernels
