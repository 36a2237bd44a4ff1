#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// The largest number of dimensions that torch allows. A tensor with more is refused.
inline constexpr std::size_t max_dimensions = 64;

/// Element types, in the order in which the safetensors library sorts them (a file starts with the last).
enum class DType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

/// What a type is called in a safetensors header, and how many bits an element takes.
struct DTypeTraits {
  DType dtype;
  std::string_view name;        ///< safetensors: "BF16"
  std::string_view torch_name;  ///< torch and config.json: "bfloat16"
  std::uint8_t bits;
};

/// Indexed by DType.
inline constexpr std::array<DTypeTraits, 22> dtypes{{
    {DType::boolean, "BOOL", "bool", 8},
    {DType::f4, "F4", "float4_e2m1fn_x2", 4},
    {DType::f6_e2m3, "F6_E2M3", "float6_e2m3fn", 6},
    {DType::f6_e3m2, "F6_E3M2", "float6_e3m2fn", 6},
    {DType::u8, "U8", "uint8", 8},
    {DType::i8, "I8", "int8", 8},
    {DType::f8_e5m2, "F8_E5M2", "float8_e5m2", 8},
    {DType::f8_e4m3, "F8_E4M3", "float8_e4m3fn", 8},
    {DType::f8_e8m0, "F8_E8M0", "float8_e8m0fnu", 8},
    {DType::f8_e4m3fnuz, "F8_E4M3FNUZ", "float8_e4m3fnuz", 8},
    {DType::f8_e5m2fnuz, "F8_E5M2FNUZ", "float8_e5m2fnuz", 8},
    {DType::i16, "I16", "int16", 16},
    {DType::u16, "U16", "uint16", 16},
    {DType::f16, "F16", "float16", 16},
    {DType::bf16, "BF16", "bfloat16", 16},
    {DType::i32, "I32", "int32", 32},
    {DType::u32, "U32", "uint32", 32},
    {DType::f32, "F32", "float32", 32},
    {DType::c64, "C64", "complex64", 64},
    {DType::f64, "F64", "float64", 64},
    {DType::i64, "I64", "int64", 64},
    {DType::u64, "U64", "uint64", 64},
}};

[[nodiscard]] constexpr const DTypeTraits& traits(DType dtype) { return dtypes[static_cast<std::size_t>(dtype)]; }

/// The type with this safetensors name.
[[nodiscard]] constexpr std::optional<DType> find_dtype(std::string_view name) {
  for (const DTypeTraits& entry : dtypes)
    if (entry.name == name) return entry.dtype;
  return std::nullopt;
}

/// The type with this name in torch and config.json.
[[nodiscard]] constexpr std::optional<DType> find_torch_dtype(std::string_view name) {
  for (const DTypeTraits& entry : dtypes)
    if (entry.torch_name == name) return entry.dtype;
  return std::nullopt;
}

/// F64, F32, BF16 or F16: the types that codecs encode. All but F64 widen to fp32 exactly.
[[nodiscard]] constexpr bool is_weight_type(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// Whether the elements are floating-point numbers, of any width.
[[nodiscard]] constexpr bool is_floating_point(DType dtype) {
  switch (dtype) {
    case DType::f4:
    case DType::f6_e2m3:
    case DType::f6_e3m2:
    case DType::f8_e5m2:
    case DType::f8_e4m3:
    case DType::f8_e8m0:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
      return true;
    default:
      return is_weight_type(dtype);
  }
}

using Shape = std::vector<std::uint64_t>;

/// Product of the dimensions; 1 for the empty shape (a scalar), 0 if any dimension is 0.
/// Throws Error(bad_input) if it exceeds 64 bits.
[[nodiscard]] std::uint64_t element_count(std::span<const std::uint64_t> shape);
[[nodiscard]] inline std::uint64_t element_count(const Shape& shape) { return element_count(std::span(shape)); }

/// Bytes of `elements` elements. Throws Error(bad_input) on overflow of 64 bits, or if that is not a whole
/// number of bytes.
[[nodiscard]] std::uint64_t byte_count(DType dtype, std::uint64_t elements);

/// A tensor as a header describes it. Readers hand out only those whose sizes have been checked.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;

  [[nodiscard]] std::uint64_t elements() const { return element_count(shape); }
  [[nodiscard]] std::uint64_t bytes() const { return byte_count(dtype, elements()); }
  bool operator==(const TensorInfo&) const = default;
};

/// "4096 x 128", "scalar": for people. Shows 16 dimensions at most.
[[nodiscard]] std::string to_string(const Shape& shape);

}  // namespace nibble
