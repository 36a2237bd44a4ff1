#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "nibble/c_api.h"

/// How a function of the C interface ends: with a code, and a line in this thread if it failed.
namespace nibble::c_api {

/// Keeps the text for nibble_error_message().
int fail(int code, std::string_view text) noexcept;

/// The code and the text of the exception that is being handled.
int fail_with_current_exception() noexcept;

/// Makes NIBBLE_CPU_TARGET count, once in a process. Throws Error(usage) if it names no target of this build.
void choose_cpu_target();

/// Calls f(), which returns nothing. No exception leaves.
template <class F> int guarded(F&& f) noexcept {
  try {
    choose_cpu_target();
    f();
    return NIBBLE_OK;
  } catch (...) {
    return fail_with_current_exception();
  }
}

/// Throws Error(usage) unless the pointer is there. `name` is that of the argument.
void require(const void* pointer, std::string_view name);

/// Throws Error(usage) unless struct_bytes is what this version or a later one has.
void require_struct(std::size_t struct_bytes, std::size_t needed, std::string_view name);

/// A copy for nibble_free(). Throws std::bad_alloc.
[[nodiscard]] char* allocated(std::string_view text);

}  // namespace nibble::c_api
