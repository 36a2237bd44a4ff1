#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quant/schemes/scheme.hpp"

/// FP8 codes with their scales beside them, as several schemes store them.
namespace nibble {

/// As Scheme::recognize(), where the scales have the name of the codes and `suffix`. The type before is that of the
/// scales; of F32 scales it is the 16-bit type that config.json gives the model, or `otherwise`.
[[nodiscard]] std::optional<StoredTensor> recognize_fp8(const Reader& in, std::size_t first, const FindTensor& find,
                                                        std::string_view suffix, DType otherwise);

/// As Scheme::undecodable(): codes that have such scales, or matrices of no weight type where config.json names
/// `quant_method`.
[[nodiscard]] std::string undecodable_fp8(const Reader& in, std::size_t part, const FindTensor& find,
                                          std::string_view suffix, std::string_view quant_method);

/// As Scheme::read_planes().
[[nodiscard]] std::vector<std::vector<std::byte>> read_fp8_scales(const Reader& in, const StoredTensor& tensor);

}  // namespace nibble
