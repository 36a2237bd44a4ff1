#include "kernels/host/interface.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "nibble/nested.hpp"

namespace nibble::kernels {
namespace {

// An array, so that to fail needs no memory.
thread_local char last_error[512] = "";

// The integer that a C caller stored: in C++, loading a value that is not an enumerator would be undefined.
template <class Enum> int number_in(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

void check_null(const std::string& name, const void* pointer, const char* why) {
  if (pointer != nullptr) refuse(name + " is given, must be null " + why);
}

}  // namespace

void set_last_error(const char* text) noexcept { std::snprintf(last_error, sizeof last_error, "%s", text); }

void refuse(const std::string& text) { throw Error(Errc::usage, text); }

void check_struct(const std::string& name, const void* given, std::size_t bytes, std::size_t least, std::size_t known) {
  const std::string fact = name + ".struct_bytes is " + std::to_string(bytes);
  if (bytes < least || bytes > NIBBLE_MAX_STRUCT_BYTES)
    refuse(fact + ", not from " + std::to_string(least) + " to " + std::to_string(NIBBLE_MAX_STRUCT_BYTES));
  if (bytes % alignof(std::size_t) != 0)
    refuse(fact + ", not a multiple of " + std::to_string(alignof(std::size_t)) + ", its alignment");
  const auto* const begin = static_cast<const unsigned char*>(given);
  const auto* const end = begin + bytes;
  const auto* const set =
      std::find_if(begin + std::min(known, bytes), end, [](unsigned char byte) { return byte != 0; });
  if (set != end)
    refuse(fact + "; byte " + std::to_string(set - begin) + " is not 0, and this library knows the first " +
           std::to_string(known));
}

u64 checked_size(const std::string& name, u64 rows, u64 columns) {
  if (columns != 0 && rows > max_elements / columns)
    refuse(name + " has " + std::to_string(rows) + " x " + std::to_string(columns) +
           " elements, at most 2^48 are possible");
  return rows * columns;
}

void check_pointer(const std::string& name, const void* pointer, std::size_t alignment) {
  if (pointer == nullptr) refuse(name + " is null");
  const std::uintptr_t beyond = reinterpret_cast<std::uintptr_t>(pointer) % alignment;
  if (beyond != 0)
    refuse(name + " is " + std::to_string(beyond) + " bytes past a multiple of " + std::to_string(alignment) +
           ", its alignment");
}

void check_workspace(const void* workspace, std::size_t bytes, std::size_t needed) {
  if (bytes < needed)
    refuse("workspace_bytes is " + std::to_string(bytes) + ", at least " + std::to_string(needed) + " are needed");
  if (needed > 0) check_pointer("workspace", workspace, 16);
}

void check_dtype(const std::string& name, const nibble_dtype& dtype) {
  const int number = number_in(dtype);
  if (number != NIBBLE_F32 && number != NIBBLE_F16 && number != NIBBLE_BF16)
    refuse(name + " is " + std::to_string(number) + ", not a nibble_dtype");
}

void check_codebook(const std::string& name, const nibble_codebook& codebook) {
  const int number = number_in(codebook);
  if (number != NIBBLE_NF4 && number != NIBBLE_FP4)
    refuse(name + " is " + std::to_string(number) + ", not a nibble_codebook");
}

void check_blocksize(const std::string& name, u64 blocksize) {
  if (blocksize < 32 || blocksize > 4096 || (blocksize & (blocksize - 1)) != 0)
    refuse(name + " is " + std::to_string(blocksize) + ", not a power of two from 32 to 4096");
}

nibble_four_bit checked_four_bit(const std::string& name, const nibble_four_bit* given) {
  nibble_four_bit weight = whole(name, given);
  check_codebook(name + ".codebook", given->codebook);
  check_blocksize(name + ".blocksize", weight.blocksize);
  if (weight.stride == 0) weight.stride = weight.columns;
  if (weight.stride < weight.columns)
    refuse(name + ".stride is " + std::to_string(weight.stride) + ", less than its " + std::to_string(weight.columns) +
           " columns");
  if (checked_size(name, weight.rows, weight.columns) == 0) return weight;
  const u64 size = checked_size(name, weight.rows, weight.stride);
  if (weight.first > max_elements - size)
    refuse(name + ".first is " + std::to_string(weight.first) + ", beyond the 2^48 elements that are possible");
  check_pointer(name + ".packed", weight.packed, 1);
  if (weight.absmax_codes == nullptr) {
    if (weight.absmax == nullptr) refuse(name + " has neither absmax nor absmax_codes");
    check_pointer(name + ".absmax", weight.absmax, alignof(float));
    check_null(name + ".nested_absmax", weight.nested_absmax, "without absmax_codes");
    check_null(name + ".nested_codebook", weight.nested_codebook, "without absmax_codes");
    check_null(name + ".nested_offset", weight.nested_offset, "without absmax_codes");
    return weight;
  }
  check_null(name + ".absmax", weight.absmax, "with absmax_codes");
  check_pointer(name + ".nested_absmax", weight.nested_absmax, alignof(float));
  check_pointer(name + ".nested_codebook", weight.nested_codebook, alignof(float));
  check_pointer(name + ".nested_offset", weight.nested_offset, alignof(float));
  return weight;
}

nibble_int8 checked_int8(const std::string& name, const nibble_int8* given) {
  const nibble_int8 weight = whole(name, given);
  if (checked_size(name, weight.rows, weight.columns) == 0) return weight;
  check_pointer(name + ".codes", weight.codes, 1);
  check_pointer(name + ".absmax", weight.absmax, alignof(float));
  return weight;
}

nibble_matrix checked_matrix(const std::string& name, const nibble_matrix* given) {
  const nibble_matrix matrix = whole(name, given);
  check_dtype(name + ".dtype", given->dtype);
  if (matrix.stride < matrix.columns)
    refuse(name + ".stride is " + std::to_string(matrix.stride) + ", less than its " + std::to_string(matrix.columns) +
           " columns");
  checked_size(name, matrix.rows, matrix.stride);
  if (matrix.rows != 0 && matrix.columns != 0) check_pointer(name + ".data", matrix.data, element_bytes(matrix.dtype));
  return matrix;
}

nibble_matrix checked_rows(const std::string& name, const nibble_matrix* given, u64 first_row, u64 n, u64 k) {
  const nibble_matrix out = checked_matrix(name, given);
  if (out.columns != k)
    refuse(name + " has " + std::to_string(out.columns) + " columns, the weight has " + std::to_string(k));
  if (first_row > n || out.rows > n - first_row)
    refuse("first_row is " + std::to_string(first_row) + " and " + name + " has " + std::to_string(out.rows) +
           " rows, the weight has " + std::to_string(n));
  return out;
}

bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace nibble::kernels

const char* nibble_last_error(void) { return nibble::kernels::last_error; }

int nibble_kernels_version(void) { return NIBBLE_KERNELS_VERSION; }

const float* nibble_nested_codebook(void) { return nibble::nested::codebook.data(); }
