#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "nibble/codec.hpp"
#include "nibble/recipe.hpp"
#include "quant/quantizers/quantizer.hpp"

namespace nibble {

/// A codec and the quantizer that a conversion uses with it.
struct Coding {
  std::unique_ptr<const Codec> codec;
  std::unique_ptr<const Quantizer> quantizer;
};

/// Those of a recipe, by the codec's name, made once: a plan asks each about thousands of tensors.
class Codings {
 public:
  explicit Codings(const Recipe& recipe, Device* device = nullptr)
      : options_(recipe.options),
        quantizer_options_{recipe.on_overflow, recipe.error_report != ErrorReport::none, device} {}

  const Coding& operator[](std::string_view name) {
    auto found = made_.find(name);
    if (found == made_.end()) {
      auto codec = make_codec(name, options_);
      auto quantizer = make_quantizer(*codec, quantizer_options_);
      found = made_.emplace(name, Coding{std::move(codec), std::move(quantizer)}).first;
    }
    return found->second;
  }

 private:
  CodecOptions options_;
  QuantizerOptions quantizer_options_;
  std::map<std::string, Coding, std::less<>> made_;
};

}  // namespace nibble
