#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "nibble/codec.hpp"

namespace nibble {

inline constexpr std::string_view keep_codec = "keep";  ///< the codec that leaves a tensor as it is

/// Throws Error(bad_input) unless `rest` has the bytes of planes()[1...] of a tensor.
void check_planes(const Codec& codec, const TensorInfo& tensor, std::span<const std::span<const std::byte>> rest);

/// Codecs by name, made once: a plan asks each about thousands of tensors.
class Codecs {
 public:
  explicit Codecs(const CodecOptions& options) : options_(options) {}
  const Codec& operator[](std::string_view name) {
    auto found = made_.find(name);
    if (found == made_.end()) found = made_.emplace(name, make_codec(name, options_)).first;
    return *found->second;
  }

 private:
  CodecOptions options_;
  std::map<std::string, std::unique_ptr<const Codec>, std::less<>> made_;
};

}  // namespace nibble
