#include "python/c_api/arrays.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "nibble/error.hpp"
#include "nibble/memory.hpp"

namespace nibble::c_api {

DType dtype_of(std::int32_t dtype) {
  switch (dtype) {
    case NIBBLE_F32:
      return DType::f32;
    case NIBBLE_F16:
      return DType::f16;
    case NIBBLE_BF16:
      return DType::bf16;
    default:
      throw Error(Errc::usage, fmt::format("dtype is {}, not one of 0 (F32), 1 (F16) and 2 (BF16)", dtype));
  }
}

void check_array(const nibble_array& array, Checked bytes, std::size_t alignment, std::string_view name) {
  if (!bytes.valid()) throw Error(Errc::usage, fmt::format("{}: its size exceeds 64 bits", name));
  if (array.bytes != bytes.value())
    throw Error(Errc::usage, fmt::format("{} has {} bytes, not {}", name, array.bytes, bytes.value()));
  if (array.data == nullptr && array.bytes != 0) throw Error(Errc::usage, fmt::format("{} is null", name));
  if (reinterpret_cast<std::uintptr_t>(array.data) % alignment != 0)
    throw Error(Errc::usage, fmt::format("{} is not aligned to {} bytes", name, alignment));
  if (array.bytes > std::numeric_limits<std::uintptr_t>::max() - reinterpret_cast<std::uintptr_t>(array.data))
    throw Error(Errc::usage,
                fmt::format("{} has {} bytes at {}, past the last address", name, array.bytes, array.data));
}

Workers& workers() {
  static Workers all(default_threads());
  return all;
}

}  // namespace nibble::c_api
