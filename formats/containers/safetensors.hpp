#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/file.hpp"
#include "core/json.hpp"
#include "formats/containers/part_list.hpp"
#include "nibble/tensor_list.hpp"

/// safetensors: eight bytes with the length of the header (little-endian), the header as JSON, the data.
///
///   {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2, 64], "data_offsets": [0, 512]}, ...}
///
/// data_offsets count from the end of the header. Source: the format section of the safetensors README, and, where that
/// is ambiguous, the library's version 0.8.0: it reads whatever is read here. Refused beyond what it refuses: the same
/// name or field twice (it keeps the last), an entry that is a list of its three values, more than 64 dimensions (torch
/// has no more), and unknown fields with values that are not strictly JSON; other unknown fields are skipped, as it
/// does.
namespace nibble::safetensors {

inline constexpr std::uint64_t max_header_bytes = 100'000'000;

struct Header {
  TensorList tensors;                  ///< in the order of their data, names unique
  std::vector<std::uint64_t> offsets;  ///< of each tensor from the beginning of the file; at the end the file's size
};

/// Parses and checks the JSON of a header, given where the data begins and the file ends. The data of the tensors
/// covers what lies between exactly. Nothing is kept of the metadata. Throws Error(bad_input), "<label>: ...", and
/// Error(no_space) if `memory` does not allow what it takes.
[[nodiscard]] Header parse_header(const json::Text& json, std::uint64_t data_begin, std::uint64_t file_bytes,
                                  std::string_view label, MemoryLimit& memory);

/// The same for a file.
[[nodiscard]] Header read_header(const InputFile& file, MemoryLimit& memory);

/// A file about to be written.
struct Layout {
  std::vector<std::uint32_t> order;    ///< the parts as their data lies in the file
  std::vector<std::uint64_t> offsets;  ///< where the data of each part begins, in the order the parts were given
  std::uint64_t header_bytes = 0;      ///< length, JSON, padding to a multiple of 8
  std::uint64_t file_bytes = 0;
};

/// Lays a file out as the library does, byte for byte: data ordered by type (the last of DType first), then by name;
/// metadata {"format": "pt"}. Throws Error(bad_input) if two parts have one name or the header grows too large.
[[nodiscard]] Layout lay_out(const PartList& parts);

/// Hands out the header, the first bytes of the file, in pieces of about 64 KiB: it may have up to 100 MB.
void write_header(const PartList& parts, const Layout& layout,
                  const std::function<void(std::uint64_t offset, std::string_view piece)>& write);

}  // namespace nibble::safetensors
