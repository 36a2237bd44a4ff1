#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "nibble/error.hpp"
#include "quant/schemes/scheme.hpp"

// One line per scheme: quant/schemes/<name>.cpp defines <name>_scheme().
#define NIBBLE_SCHEMES(X) \
  X(bitsandbytes)         \
  X(compressed_tensors)   \
  X(fp8_blocks)

namespace nibble {

#define NIBBLE_DECLARE(name) const Scheme& name##_scheme();
NIBBLE_SCHEMES(NIBBLE_DECLARE)

std::span<const Scheme* const> schemes() {
#define NIBBLE_ADDRESS(name) &name##_scheme(),
  static const std::array all{NIBBLE_SCHEMES(NIBBLE_ADDRESS)};
  return all;
}

std::span<const Scheme* const> source_schemes() {
  static const std::vector<const Scheme*> sources = [] {
    std::vector<const Scheme*> found;
    std::ranges::copy_if(schemes(), std::back_inserter(found), &Scheme::is_source);
    return found;
  }();
  return sources;
}

std::span<const Scheme* const> schemes_of(Intake intake) {
  return intake == Intake::plain ? source_schemes() : schemes();
}

const Scheme* declared_scheme(const ModelConfig& config) {
  const auto declared = std::ranges::find_if(schemes(), [&](const Scheme* s) { return s->is_declared(config); });
  return declared == schemes().end() ? nullptr : *declared;
}

bool is_declared_by(const Reader& in, std::span<const Scheme* const> by) {
  if (!in.config()) return false;
  // In models that only nibble reads, open_input() refuses the tensors that a conversion does not take.
  if (is_nibble_only(*in.config())) return true;
  return std::ranges::any_of(by, [&](const Scheme* scheme) { return scheme->is_declared(*in.config()); });
}

const Scheme& scheme_of(const Codec& codec) {
  for (const Scheme* const scheme : schemes())
    if (scheme->stores(codec)) return *scheme;
  throw Error(Errc::usage, "no scheme stores what codec " + std::string(codec.name()) + " makes");
}

const Scheme* scheme_of(const Recipe& recipe) {
  const auto scheme_for = [](const CodecSpec& spec) {
    const auto codec = make_codec(spec);
    return codec->quantizes() ? &scheme_of(*codec) : nullptr;
  };
  const Scheme* scheme = scheme_for(recipe.to);
  for (auto rule = recipe.rules.rbegin(); rule != recipe.rules.rend() && scheme == nullptr; ++rule)
    scheme = scheme_for(rule->codec);
  return scheme;
}

LoadingRules loading_rules(const Scheme& scheme) {
  // Of all codecs that it stores: which one a tensor gets is decided later.
  const auto companions = [&scheme](const std::string& weight) {
    std::vector<std::string> names;
    for (const std::string_view name : codec_names()) {
      const auto codec = make_codec(name);
      if (!scheme.stores(*codec)) continue;
      const std::vector<Part> parts = scheme.parts(*codec, {weight, DType::f32, {1, 1}});
      for (std::size_t i = 1; i < parts.size(); ++i) names.push_back(parts[i].info.name);
    }
    return names;
  };
  return {companions, scheme.replaces_every_linear()};
}

bool has_compute_dtype(const Codec& codec) { return codec.quantizes() && scheme_of(codec).has_compute_dtype(codec); }

std::vector<Part> stored_parts(const Codec& codec, const TensorInfo& tensor) {
  if (codec.quantizes()) return scheme_of(codec).parts(codec, tensor);
  const Plane plane = codec.planes(tensor).front();
  return {{{tensor.name, plane.dtype, plane.shape}, 0}};
}

namespace {

// The scheme that config.json names: that of Recipe::to, or where that only casts, of the first quantized tensor.
// Scheme::obstacle() finds the tensors of others.
const Scheme* scheme_of(const Plan& plan) {
  const auto is_quantized = [](const PlannedTensor& tensor) { return tensor.quantized; };
  const auto first = std::find_if(plan.tensors.begin(), plan.tensors.end(), is_quantized);
  if (first == plan.tensors.end()) return nullptr;
  const auto codec = make_codec(plan.recipe.to);
  return codec->quantizes() ? &scheme_of(*codec) : &scheme_of(*make_codec((*first).codec));
}

}  // namespace

std::string obstacle(const Plan& plan) {
  const Scheme* const scheme = scheme_of(plan);
  if (scheme == nullptr) return {};
  if (std::string why = scheme->obstacle(plan); !why.empty()) return why;
  // Roles follow from LoadingRules, which were chosen before the codecs of the tensors were known.
  if (const Scheme* const meant = scheme_of(plan.recipe); meant != nullptr && meant != scheme)
    return "the last rule that quantizes asks for " + std::string(meant->quant_method()) +
           ", but all quantized tensors are those of " + std::string(scheme->quant_method());
  return {};
}

std::string quantization_config(const Plan& plan) {
  const Scheme* const scheme = scheme_of(plan);
  return scheme == nullptr ? std::string() : scheme->config(plan);
}

std::string_view quant_method(const Plan& plan) {
  const Scheme* const scheme = scheme_of(plan);
  return scheme == nullptr ? std::string_view() : scheme->quant_method();
}

std::uint64_t stored_bytes(const Codec& codec, const TensorInfo& tensor) {
  std::uint64_t bytes = 0;
  for (const Part& part : stored_parts(codec, tensor)) bytes += part.info.bytes();
  return bytes;
}

}  // namespace nibble
