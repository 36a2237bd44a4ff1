#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "nibble/codec.hpp"

namespace nibble {

inline constexpr std::string_view keep_codec = "keep";  ///< the codec that leaves a tensor as it is

/// Codecs by name, made once: a plan asks each for the parts of thousands of tensors.
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
