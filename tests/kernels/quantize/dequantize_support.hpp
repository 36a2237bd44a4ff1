// What the tests of nibble_dequantize_...() share: outputs of any type and layout, values as the CPU rounds them.
#pragma once
#include <bit>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/host/interface.hpp"
#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "tests/simulator/array.hpp"
#include "tests/simulator/global_memory.hpp"

namespace nibble::test {

using device::DeviceArray;
using device::u32;
using device::u64;
using device::u8;

inline constexpr nibble_dtype dtypes[] = {NIBBLE_F32, NIBBLE_F16, NIBBLE_BF16};

/// The bits of values that are rounded to `dtype`.
inline std::vector<u32> rounded_bits(nibble_dtype dtype, std::span<const float> values) {
  std::vector<u32> bits;
  bits.reserve(values.size());
  for (const float value : values)
    bits.push_back(dtype == NIBBLE_F32   ? std::bit_cast<u32>(value)
                   : dtype == NIBBLE_F16 ? fp16::from_float(value)
                                         : bf16::from_float(value));
  return bits;
}

/// Where a result lies, in elements: `gap` between rows, `offset` behind a multiple of 256 bytes.
struct Layout {
  u64 gap = 0, offset = 0;
};

/// A matrix for a function to write: each element once, and nothing else.
class Result {
 public:
  Result(nibble_dtype dtype, u64 rows, u64 k, Layout layout)
      : dtype_(dtype),
        rows_(rows),
        k_(k),
        stride_(k + layout.gap),
        bytes_(kernels::element_bytes(dtype)),
        memory_(make_memory(layout)) {}

  [[nodiscard]] nibble_matrix matrix() const {
    return {sizeof(nibble_matrix), dtype_, rows_, k_, stride_, memory_.data()};
  }

  /// The bits of the elements, row by row.
  [[nodiscard]] std::vector<u32> bits() const {
    const std::vector<u8> bytes = memory_.to_host();
    const u32 untouched = bytes_ == 4 ? 0xffffffff : 0xffff;
    std::vector<u32> bits;
    for (u64 i = 0; i * bytes_ < bytes.size(); ++i) {
      u32 element = 0;
      std::memcpy(&element, &bytes[i * bytes_], bytes_);
      if (i % stride_ < k_)
        bits.push_back(element);
      else if (element != untouched)
        throw std::runtime_error("an element between two rows was written");
    }
    return bits;
  }

 private:
  [[nodiscard]] DeviceArray<u8> make_memory(Layout layout) const {
    const u64 elements = rows_ == 0 ? 0 : (rows_ - 1) * stride_ + k_;
    const device::ArrayInfo info{.offset_bytes = layout.offset * bytes_, .name = "out"};
    return layout.gap == 0 ? DeviceArray<u8>::output(elements * bytes_, info)
                           : DeviceArray<u8>(elements * bytes_, info);
  }

  nibble_dtype dtype_;
  u64 rows_, k_, stride_, bytes_;
  DeviceArray<u8> memory_;
};

}  // namespace nibble::test
