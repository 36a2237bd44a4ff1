// What the functions of nibble/kernels.h share: how they end, and the checks of arguments that several of them take.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>

#include "kernels/device/types.hpp"
#include "nibble/error.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

using device::u32;
using device::u64;

void set_last_error(const char* text) noexcept;

/// Runs the body of a C function. An Error or a refused launch that it throws becomes the result, and its text what
/// nibble_last_error() says. Failures of the simulator pass through, so that a test sees them.
template <class Body> int result_of(Body&& body) {
  try {
    body();
    return NIBBLE_OK;
  } catch (const Error& error) {
    set_last_error(error.what());
    return static_cast<int>(error.code());
  } catch (const device::LaunchError& error) {
    set_last_error(error.what());
    return NIBBLE_INTERNAL;
  } catch (const std::bad_alloc&) {
    set_last_error("no memory on the host");
    return NIBBLE_INTERNAL;
  }
}

/// Error(usage).
[[noreturn]] void refuse(const std::string& text);

// The checks throw Error(usage); `name` is the argument's in the text: "weight.blocksize is 48, ...".

/// A larger size can only be a mistake of the caller, or an overflow.
inline constexpr u64 max_elements = u64{1} << 48;

/// rows * columns, at most max_elements.
u64 checked_size(const std::string& name, u64 rows, u64 columns);

/// Not null, and aligned to that many bytes.
void check_pointer(const std::string& name, const void* pointer, std::size_t alignment);

/// The same for a workspace, which must also be large enough; it may be null if no bytes are needed.
void check_workspace(const void* workspace, std::size_t bytes, std::size_t needed);

void check_dtype(const std::string& name, const nibble_dtype& dtype);
void check_codebook(const std::string& name, const nibble_codebook& codebook);
void check_blocksize(const std::string& name, u64 blocksize);

/// Refuses a struct of `bytes` if it has fewer than `least`, no multiple of its alignment, which is that of its first
/// member, or anything but zeros after the `known` ones.
void check_struct(const std::string& name, const void* given, std::size_t bytes, std::size_t least, std::size_t known);

/// A struct whose first member is its size, of which the caller may know fewer members than this library, or more. It
/// has at least `least` bytes; members that the caller does not know are 0.
template <class T> T whole(const std::string& name, const T* given, std::size_t least = sizeof(T)) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_bytes) == 0);
  static_assert(alignof(T) == alignof(std::size_t));
  if (given == nullptr) refuse(name + " is null");
  check_struct(name, given, given->struct_bytes, least, sizeof(T));
  T all{};
  std::memcpy(&all, given, std::min(given->struct_bytes, sizeof(T)));
  return all;
}

/// Element `index` of an array of such structs, whose elements all have the size that the first one says.
template <class T>
T whole_element(const std::string& name, const T* array, std::size_t index, std::size_t least = sizeof(T)) {
  if (array == nullptr) refuse(name + " is null");
  const std::size_t bytes = whole(name + "[0]", array, least).struct_bytes;
  const std::string own_name = name + "[" + std::to_string(index) + "]";
  const auto* const element = reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + index * bytes);
  if (element->struct_bytes != bytes)
    refuse(own_name + ".struct_bytes is " + std::to_string(element->struct_bytes) + ", " + name +
           "[0].struct_bytes is " + std::to_string(bytes));
  return whole(own_name, element, least);
}

/// Checks all members, and returns them with the stride that a stride of 0 stands for. With no elements, pointers may
/// be null. If absmax_codes is given, absmax is nested.
nibble_four_bit checked_four_bit(const std::string& name, const nibble_four_bit* given);
/// The same for these: all members, as the caller gave them.
nibble_int8 checked_int8(const std::string& name, const nibble_int8* given);
nibble_matrix checked_matrix(const std::string& name, const nibble_matrix* given);

/// A matrix that can hold rows of a weight [n, k] from first_row on.
nibble_matrix checked_rows(const std::string& name, const nibble_matrix* given, u64 first_row, u64 n, u64 k);

/// For kernels that are faster with aligned memory, but correct either way.
bool is_aligned(const void* pointer, std::size_t bytes);

constexpr std::size_t element_bytes(nibble_dtype dtype) { return dtype == NIBBLE_F32 ? 4 : 2; }

/// Calls body(T{}) with T = float, f16 or bf16.
template <class Body> decltype(auto) with_type(nibble_dtype dtype, Body&& body) {
  switch (dtype) {
    case NIBBLE_F16:
      return body(device::f16{});
    case NIBBLE_BF16:
      return body(device::bf16{});
    case NIBBLE_F32:
      break;
  }
  return body(float{});
}

}  // namespace nibble::kernels
