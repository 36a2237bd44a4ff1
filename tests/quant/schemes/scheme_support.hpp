#pragma once

#include <utility>
#include <vector>

#include "quant/schemes/scheme.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/memory_checkpoint.hpp"

namespace nibble::test {

/// Parts and their bytes, in the order of Scheme::parts().
using StoredParts = std::vector<std::pair<TensorInfo, Bytes>>;

/// An encoded tensor as its scheme stores it.
inline StoredParts stored(const Codec& codec, const TensorInfo& tensor, const Encoded& encoded) {
  StoredParts out;
  for (const Part& part : stored_parts(codec, tensor))
    out.emplace_back(part.info, part.plane ? encoded.planes[*part.plane]
                                           : scheme_of(codec).own_bytes(codec, tensor, part, encoded.planes));
  return out;
}

inline StoredParts stored(const Codec& codec, const TensorInfo& tensor, std::span<const std::byte> weights) {
  return stored(codec, tensor, encode(codec, tensor, weights));
}

inline MemoryReader reader_of(const StoredParts& parts) {
  MemoryReader reader;
  for (const auto& [info, bytes] : parts) reader.add(info, bytes);
  return reader;
}

}  // namespace nibble::test
