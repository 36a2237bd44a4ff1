#pragma once

#include <cstddef>
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

/// Throws Error(usage) unless a struct of the caller has the `known` bytes of this version, or those and zeros.
void require_struct(const void* given, std::size_t struct_bytes, std::size_t known, std::string_view name);
template <class T> void require_struct(const T& given, std::string_view name) {
  require_struct(&given, given.struct_bytes, sizeof given, name);
}

/// The same for a struct that the library fills in, whose bytes after the `known` ones become 0.
void clear_unknown(void* given, std::size_t struct_bytes, std::size_t known, std::string_view name);
template <class T> void clear_unknown(T& given, std::string_view name) {
  clear_unknown(&given, given.struct_bytes, sizeof given, name);
}

/// A copy for nibble_free(). Throws std::bad_alloc.
[[nodiscard]] char* allocated(std::string_view text);

}  // namespace nibble::c_api
