#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/models/architectures.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/codec.hpp"
#include "nibble/plan.hpp"
#include "nibble/recipe.hpp"
#include "nibble/tensor.hpp"

/// What quantized tensors are called on disk and in config.json. The names of parts are defined nowhere else.
namespace nibble {

/// A tensor of a checkpoint that holds a plane of a codec, or bytes that only the scheme knows.
struct Part {
  TensorInfo info;
  std::optional<std::size_t> plane;  ///< index into Codec::planes()
};

/// A quantized tensor, found among the parts of a checkpoint.
///
/// Give it its members one by one: where memory for the last of an aggregate's initializers is missing, GCC 12 destroys
/// those before it twice.
struct StoredTensor {
  TensorInfo info;  ///< as it was before, with the name of its first part
  CodecSpec codec;
  /// Indices into Reader::tensors(): those of Scheme::parts(), and what else a loader needs.
  std::vector<std::size_t> parts;
};

/// quant_method in config.json if only nibble's own loader can read the result.
inline constexpr std::string_view nibble_quant_method = "nibble";

/// Whether config.json says so.
[[nodiscard]] inline bool is_nibble_only(const ModelConfig& config) {
  return config.quant_method == nibble_quant_method;
}

/// The index of a tensor of this name in a checkpoint.
using FindTensor = std::function<std::optional<std::size_t>(std::string_view)>;

/// A way to store quantized tensors. Stateless and thread-safe; there is one object of each. A scheme that only reads
/// what other tools store leaves out the functions that are not pure.
class Scheme {
 public:
  virtual ~Scheme() = default;

  /// quant_method in config.json.
  [[nodiscard]] virtual std::string_view quant_method() const noexcept = 0;

  /// Whether config.json says that this scheme stored the model.
  [[nodiscard]] virtual bool is_declared(const ModelConfig& config) const {
    return config.quant_method == quant_method();
  }

  /// Whether it can store the planes of this codec.
  [[nodiscard]] virtual bool stores(const Codec& /*codec*/) const { return false; }

  /// The parts that a tensor is stored as: names, types and shapes follow from its header. The first holds the codes.
  [[nodiscard]] virtual std::vector<Part> parts(const Codec& /*codec*/, const TensorInfo& /*tensor*/) const {
    return {};
  }

  /// The bytes of a part that holds no plane. `loose` has, by plane, the bytes of the planes that no part holds.
  [[nodiscard]] virtual std::vector<std::byte> own_bytes(const Codec& /*codec*/, const TensorInfo& /*tensor*/,
                                                         const Part& /*part*/,
                                                         std::span<const std::vector<std::byte>> /*loose*/) const {
    return {};
  }

  /// The tensor whose first part in this scheme is tensor `first` of a checkpoint, whichever tool wrote it, with any
  /// options. Throws Error(bad_input) if its parts contradict each other or are missing.
  [[nodiscard]] virtual std::optional<StoredTensor> recognize(const Reader& in, std::size_t first,
                                                              const FindTensor& find) const = 0;

  /// The bytes of planes 1, 2, ... of a tensor that recognize() found, for Codec::decoder(). Throws Error(bad_input) if
  /// they contradict the tensor.
  [[nodiscard]] virtual std::vector<std::vector<std::byte>> read_planes(const Reader& in, const Codec& codec,
                                                                        const StoredTensor& tensor) const = 0;

  /// Whether a conversion takes its tensors as input, decoded to the type that they had. Tensors of other schemes are
  /// refused by open_checkpoint(), or kept as they are.
  [[nodiscard]] virtual bool is_source() const { return false; }

  /// Whether a tensor of this name can only be a part that this scheme stored.
  [[nodiscard]] virtual bool names(std::string_view /*part*/) const { return false; }

  /// Why a conversion cannot take a tensor of a checkpoint that recognize() does not know, but that this scheme stored
  /// all the same. Empty if it did not.
  [[nodiscard]] virtual std::string undecodable(const Reader& /*in*/, std::size_t /*part*/,
                                                const FindTensor& /*find*/) const {
    return {};
  }

  /// Why it can decode no tensor of a model with this quantization_config. is_declared() is true. Empty if it can. It
  /// is called once for each checkpoint.
  [[nodiscard]] virtual std::string undecodable_config(std::string_view /*quantization_config*/) const { return {}; }

  /// Why a tensor that recognize() found cannot be decoded, because it contradicts what quantization_config says of it.
  /// Empty if it does not.
  using Contradiction = std::function<std::string(const Reader& in, const StoredTensor& found)>;

  /// The check of all tensors of a model with this quantization_config; null if there is nothing to check.
  /// undecodable_config() of it is empty.
  [[nodiscard]] virtual Contradiction contradiction(std::string_view /*quantization_config*/) const { return {}; }

  /// Whether a tensor is not a weight, and useless once the tensors of a model that this scheme stored are decoded.
  /// Asked only for tensors that are not a part of any other. is_declared() is true.
  [[nodiscard]] virtual bool is_left_over(const Reader& /*in*/, std::size_t /*part*/) const { return false; }

  /// Whether its loader lets Recipe::compute_dtype choose the type in which it multiplies by weights in this codec.
  [[nodiscard]] virtual bool has_compute_dtype(const Codec& /*codec*/) const { return false; }

  /// Whether its loader replaces a module in this role by a quantized layer.
  [[nodiscard]] virtual bool replaces(Role /*role*/) const { return false; }

  /// Whether transformers leaves the plain weights of such a directory in the types in which they are stored, where it
  /// casts those of a plain one to the type of the model.
  [[nodiscard]] virtual bool leaves_plain_types() const { return false; }

  /// LoadingRules::replaces_every_linear.
  [[nodiscard]] virtual bool replaces_every_linear() const { return false; }

  /// Why transformers could not load a model directory with this plan: the first tensor that this scheme does not
  /// store, or that config.json cannot describe. Empty if there is none.
  [[nodiscard]] virtual std::string obstacle(const Plan& /*plan*/) const { return {}; }

  /// The value of quantization_config in config.json, as transformers writes it: its quant_method is this scheme's, or
  /// nibble_quant_method if the plan is nibble_only.
  [[nodiscard]] virtual std::string config(const Plan& /*plan*/) const { return {}; }
};

/// All schemes, in the order in which they are asked.
[[nodiscard]] std::span<const Scheme* const> schemes();

/// Those whose tensors a conversion takes.
[[nodiscard]] std::span<const Scheme* const> source_schemes();

/// Those whose tensors a conversion with this intake decodes.
[[nodiscard]] std::span<const Scheme* const> schemes_of(Intake intake);

/// As open_checkpoint(), for a conversion: refuses what it does not take, and what it could not decode as a whole.
[[nodiscard]] std::unique_ptr<Reader> open_input(const std::filesystem::path& path, Intake intake,
                                                 std::uint64_t max_memory);

/// The scheme that config.json names; null if there is none.
[[nodiscard]] const Scheme* declared_scheme(const ModelConfig& config);

/// Whether config.json says that the model is quantized in a way that one of these schemes decodes.
[[nodiscard]] bool is_declared_by(const Reader& in, std::span<const Scheme* const> by);

/// The first scheme that can store the planes of this codec. Throws Error(usage) if there is none.
[[nodiscard]] const Scheme& scheme_of(const Codec& codec);

/// The scheme that a recipe asks for: that of Recipe::to or, where that only casts, of the last rule that quantizes.
/// Null if nothing is to be quantized.
[[nodiscard]] const Scheme* scheme_of(const Recipe& recipe);

/// How tensors that a scheme stored are loaded. The scheme has to outlive it.
[[nodiscard]] LoadingRules loading_rules(const Scheme& scheme);

/// As Scheme::has_compute_dtype(), of the codec's scheme. False if nothing is quantized.
[[nodiscard]] bool has_compute_dtype(const Codec& codec);

/// The parts of a tensor in the codec's scheme, or a plain tensor if nothing is quantized.
[[nodiscard]] std::vector<Part> stored_parts(const Codec& codec, const TensorInfo& tensor);

/// As Scheme::obstacle(), of the scheme that config.json will name. Empty if nothing is quantized.
[[nodiscard]] std::string obstacle(const Plan& plan);

/// The value of quantization_config in config.json, as transformers writes it; empty if nothing is quantized.
[[nodiscard]] std::string quantization_config(const Plan& plan);

/// The bytes of all its parts.
[[nodiscard]] std::uint64_t stored_bytes(const Codec& codec, const TensorInfo& tensor);

}  // namespace nibble
