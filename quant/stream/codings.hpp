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

/// Those of a recipe, made once: a plan asks each about thousands of tensors.
class Codings {
 public:
  explicit Codings(const Recipe& recipe, Device* device = nullptr)
      : quantizer_options_{recipe.on_overflow, recipe.error_report != ErrorReport::none, device} {}

  const Coding& operator[](const CodecSpec& spec) {
    auto found = made_.find(spec);
    if (found == made_.end()) {
      auto codec = make_codec(spec);
      auto quantizer = make_quantizer(*codec, quantizer_options_);
      found = made_.emplace(spec, Coding{std::move(codec), std::move(quantizer)}).first;
    }
    return found->second;
  }

 private:
  QuantizerOptions quantizer_options_;
  std::map<CodecSpec, Coding> made_;
};

}  // namespace nibble
