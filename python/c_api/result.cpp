#include "python/c_api/result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <span>
#include <system_error>

#include "cli/terminal/remedies.hpp"
#include "nibble/error.hpp"
#include "nibble/target.hpp"
#include "nibble/version.hpp"
#include "quant/simd/extensions.hpp"

namespace nibble::c_api {
namespace {

// One for each thread, as errno is.
std::string& message() noexcept {
  thread_local std::string text;
  return text;
}

void require_struct_bytes(std::size_t struct_bytes, std::size_t known, std::string_view name) {
  if (struct_bytes < known || struct_bytes > NIBBLE_MAX_STRUCT_BYTES)
    throw Error(Errc::usage, fmt::format("{}: struct_bytes is {}, not from {} to {}", name, struct_bytes, known,
                                         NIBBLE_MAX_STRUCT_BYTES));
  if (struct_bytes % alignof(std::size_t) != 0)
    throw Error(Errc::usage, fmt::format("{}: struct_bytes is {}, not a multiple of {}, its alignment", name,
                                         struct_bytes, alignof(std::size_t)));
}

}  // namespace

int fail(int code, std::string_view text) noexcept {
  try {
    message() = text;
  } catch (const std::exception&) {
    message().clear();
    message() = "out of memory";  // needs none: it fits a string's own room
  }
  return code;
}

// As cli/main.cpp does it.
int fail_with_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    try {
      return fail(static_cast<int>(error.code()), cli::with_options(error.what(), error.remedy()));
    } catch (const std::exception&) {  // no memory for a longer line
      return fail(static_cast<int>(error.code()), error.what());
    }
  } catch (const std::bad_alloc&) {
    return fail(NIBBLE_NO_SPACE, "out of memory");
  } catch (const std::system_error& error) {
    return fail(NIBBLE_IO, error.what());
  } catch (const std::exception& error) {
    return fail(NIBBLE_INTERNAL, error.what());
  } catch (...) {
    return fail(NIBBLE_INTERNAL, "ended for an unknown reason");
  }
}

// Once: no thread may run a codec meanwhile. If it throws, the next call tries again.
void choose_cpu_target() {
  static std::once_flag chosen;
  std::call_once(chosen, force_cpu_target_of_environment);
}

void require(const void* pointer, std::string_view name) {
  if (pointer == nullptr) throw Error(Errc::usage, fmt::format("{} is null", name));
}

void require_struct(const void* given, std::size_t struct_bytes, std::size_t known, std::string_view name) {
  require_struct_bytes(struct_bytes, known, name);
  const std::span bytes(static_cast<const std::byte*>(given), struct_bytes);
  const auto set = std::ranges::find_if(bytes.subspan(known), [](std::byte byte) { return byte != std::byte{0}; });
  if (set != bytes.end())
    throw Error(Errc::usage,
                fmt::format("{}: struct_bytes is {}; byte {} is not 0, and this library knows the first {}", name,
                            struct_bytes, set - bytes.begin(), known));
}

void clear_unknown(void* given, std::size_t struct_bytes, std::size_t known, std::string_view name) {
  require_struct_bytes(struct_bytes, known, name);
  std::memset(static_cast<std::byte*>(given) + known, 0, struct_bytes - known);
}

char* allocated(std::string_view text) {
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

}  // namespace nibble::c_api

int nibble_c_api_version() { return NIBBLE_C_API_VERSION; }

const char* nibble_version() { return nibble::version().data(); }  // a literal

const char* nibble_error_message() { return nibble::c_api::message().c_str(); }

void nibble_free(char* text) { std::free(text); }

int nibble_cpu_targets(char** targets, char** in_use) {
  using namespace nibble;
  return c_api::guarded([&] {
    c_api::require(targets, "targets");
    c_api::require(in_use, "in_use");
    const std::string all = fmt::format("{}", fmt::join(cpu_targets(), " "));
    *targets = nullptr;
    *in_use = c_api::allocated(cpu_target());
    *targets = c_api::allocated(all);
  });
}

int nibble_cpu_extensions(char** extensions) {
  using namespace nibble;
  return c_api::guarded([&] {
    c_api::require(extensions, "extensions");
    *extensions = c_api::allocated(fmt::format("{}", fmt::join(cpu_extensions(), " ")));
  });
}
