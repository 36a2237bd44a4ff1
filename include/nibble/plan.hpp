#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/codec_spec.hpp"
#include "nibble/recipe.hpp"
#include "nibble/remedy.hpp"
#include "nibble/role.hpp"
#include "nibble/tensor.hpp"
#include "nibble/tensor_list.hpp"

/// What a conversion will do, decided from a recipe and the headers of a checkpoint.
namespace nibble {

/// What decided the codec of a tensor.
enum class DecidedBy : std::uint8_t {
  model,  ///< its role in the model, and Recipe::to
  embeddings,
  lm_head,
  experts,
  all_layers,  ///< Recipe::default_skips is off
  rule,
  skip,
  loader,     ///< transformers would keep it in fp32, if it cast the plain weights of a quantized model
  nonfinite,  ///< Recipe::nonfinite, because of values found in the weights
};

/// A tensor of the output: where it comes from, what becomes of it, and why. Its texts belong to the list it is in.
struct PlannedTensor {
  TensorInfo info;                  ///< as the codec sees it: if it is a slice or transposed, after that
  std::size_t source = 0;           ///< index into Reader::tensors(); for a quantized input, its first part
  std::uint64_t source_offset = 0;  ///< bytes from the start of the source's weights to this slice of them
  bool transposed = false;
  /// Empty, or what the tensor is put together of: for each slice of its first dimension, the index of a tensor of that
  /// shape without it. One of them is `source`.
  std::vector<std::size_t> slices{};
  CodecSpec codec;
  std::string_view reason;  ///< for people
  DecidedBy decided_by = DecidedBy::model;
  Role role = Role::other;
  std::string_view module;         ///< its module's name in the model; stored names may differ
  bool decoded = false;            ///< its weights are those that codes in the input stand for
  bool quantized = false;          ///< as opposed to cast or kept
  std::uint64_t source_bytes = 0;  ///< of its part of the input
  std::uint64_t stored_bytes = 0;  ///< of all its parts
};

/// Planned tensors in compact form: 100,000 take 13 MB instead of 50. Elements are values, made when asked for.
class PlannedTensors {
 public:
  PlannedTensors() noexcept;
  PlannedTensors(const PlannedTensors& other);
  PlannedTensors& operator=(const PlannedTensors& other);
  PlannedTensors(PlannedTensors&&) noexcept;
  PlannedTensors& operator=(PlannedTensors&&) noexcept;
  ~PlannedTensors();

  /// `keeps`: the layers that stay plain if this tensor does, and that loading would replace.
  void push_back(const PlannedTensor& tensor, std::span<const std::string> keeps);

  /// Replaces a tensor by one of the same name and as many dimensions.
  void replace(std::size_t tensor, const PlannedTensor& by);

  [[nodiscard]] std::size_t size() const noexcept { return infos_.size(); }
  [[nodiscard]] bool empty() const noexcept { return infos_.empty(); }
  [[nodiscard]] PlannedTensor operator[](std::size_t tensor) const;
  [[nodiscard]] ElementIterator<PlannedTensors, PlannedTensor> begin() const { return {*this, 0}; }
  [[nodiscard]] ElementIterator<PlannedTensors, PlannedTensor> end() const { return {*this, size()}; }

  [[nodiscard]] std::vector<std::string> keeps(std::size_t tensor) const;
  [[nodiscard]] const TensorList& infos() const noexcept { return infos_; }

 private:
  struct Decisions;

  TensorList infos_;
  std::unique_ptr<Decisions> decisions_;  // of the same tensors; null for an empty list
};

/// A conversion, decided: which tensor gets which codec and why, and how the output is cut into shards.
struct Plan {
  Recipe recipe;
  ModelClass model;                     ///< without architecture if names and shapes decided
  bool tied = false;                    ///< the output layer is the embedding
  PlannedTensors tensors;               ///< in the order of the input
  std::vector<std::size_t> shard_ends;  ///< shard s holds tensors [shard_ends[s - 1], shard_ends[s])
  DType dtype = DType::f32;             ///< the type of most weights that are not quantized
  bool nibble_only = false;
  std::vector<Message> warnings;

  [[nodiscard]] std::uint64_t source_bytes() const;
  [[nodiscard]] std::uint64_t stored_bytes() const;
  /// Share of the weights' source bytes that is quantized, 0 to 1; 1 for a model without weights.
  [[nodiscard]] double quantized_share() const;

 private:
  friend struct PlanEstimates;
  std::uint64_t rewrite_bytes_ = 0;
  std::uint64_t decoder_bytes_ = 0;
};

/// Decides what becomes of every tensor, from headers alone.
///
/// Throws Error(usage) for a rule that matches nothing, a codec that does not exist, or a result that only nibble
/// could load unless the recipe allows that.
[[nodiscard]] Plan make_plan(const Reader& in, const Recipe& recipe);

/// The tool whose file format the result has: "bitsandbytes", "compressed-tensors"; empty if nothing is quantized.
[[nodiscard]] std::string_view quant_method(const Plan& plan);

}  // namespace nibble
