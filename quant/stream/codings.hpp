#pragma once

#include <map>
#include <memory>

#include "nibble/codec.hpp"
#include "nibble/plan.hpp"
#include "nibble/recipe.hpp"
#include "quant/quantizers/quantizer.hpp"

namespace nibble {

class InputFactor;

/// A codec and the quantizer that a conversion uses with it.
struct Coding {
  std::unique_ptr<const Codec> codec;
  std::unique_ptr<const Quantizer> quantizer;
};

/// The codings of all codecs that a conversion may use. The constructor makes them all, so threads may share one
/// object.
class Codings {
 public:
  /// The codings that a recipe names, and those that tensors may get instead: "keep" and casts.
  explicit Codings(const Recipe& recipe, Device* device = nullptr);
  /// The same and those of planned tensors, for plans that do not come from make_plan().
  Codings(const Recipe& recipe, const PlannedTensors& tensors, Device* device = nullptr);

  /// Throws std::out_of_range for any other codec.
  [[nodiscard]] const Coding& operator[](const CodecSpec& spec) const { return made_.at(spec); }

  /// make_compensated_quantizer() for one of these codecs.
  [[nodiscard]] std::unique_ptr<const Quantizer> compensated(const CodecSpec& spec, const InputFactor* factor) const;

 private:
  void add(const CodecSpec& spec);

  QuantizerOptions quantizer_options_;
  std::map<CodecSpec, Coding> made_;
};

}  // namespace nibble
