#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quant/codecs/absmax_choice.hpp"
#include "quant/quantizers/search/codes_around.hpp"

namespace nibble {

/// The numbers of double quantization that have to be known before the first block is quantized:
///
///   absmax = codebook[code] * nested_absmax[block / 256] + offset
///
/// They come from a first pass over the weights as they are, without corrections. An absmax that corrections have made
/// larger gets a code at the end of the range: some weights of its block are then clamped, and the columns that
/// follow make up for that as for any error. To leave room costs more. Where one block of a group has an outlier 60
/// times as large as other weights, nested_absmax is the magnitude of the outlier, which so keeps its value; with a
/// quarter of room, it is rounded by 0.8 %, and the corrections of that were the largest error of the whole matrix.
struct NestedRange {
  /// `largest` has the largest magnitude of every block of a weight.
  NestedRange(std::span<const float> largest, AbsmaxChoice choice);

  std::span<const float, 256> codebook;
  float offset;                      ///< their mean, or 0 for a search, which may find negative ones
  std::vector<float> nested_absmax;  ///< of 256 blocks each

  [[nodiscard]] float value_of(std::uint8_t code, std::uint64_t block) const;  ///< as nested::decode()
  [[nodiscard]] CodesAround around(float absmax, std::uint64_t block) const;

 private:
  CodesByValue codes_;
};

}  // namespace nibble
