#include "kernels/status.hpp"

#include <algorithm>
#include <cstring>

namespace nibble::kernels {
namespace {

thread_local char last_error[256] = "";  // a text that is longer is cut: reporting a failure allocates nothing

}  // namespace

int failed(nibble_status status, const char* text) noexcept {
  const std::size_t length = std::min(std::strlen(text), sizeof last_error - 1);
  std::memcpy(last_error, text, length);
  last_error[length] = '\0';
  return status;
}

}  // namespace nibble::kernels

extern "C" const char* nibble_last_error(void) { return nibble::kernels::last_error; }
