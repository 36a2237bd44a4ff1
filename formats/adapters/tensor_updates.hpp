#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/adapters/adapter.hpp"
#include "formats/models/architectures.hpp"
#include "nibble/tensor_list.hpp"

namespace nibble {

/// The update of a tensor W by two factors. For each expert e (one if W is a matrix), with k from 0 to rank - 1:
///
///   dW[e, i, j] = scale * sum over k of B[out, k * experts + e] * A[e * rank + k, in]
///
/// where (out, in) is (i, j), or (j, i) if W is transposed, that is, stores [in, out]. Kernels of convolutions count as
/// matrices [out, in * height * width].
struct LowRankUpdate {
  std::size_t a = 0, b = 0;              ///< tensors of the adapter
  std::optional<std::size_t> magnitude;  ///< DoRA: W + dW is scaled to rows of these norms, one for each out
  std::uint64_t rank = 0;
  double scale = 0;
  bool transposed = false;
  std::uint64_t experts = 1;  ///< whose factors are in A and B

  // If the base stores the experts' matrices one by one, W is [rows, in] of one expert:
  std::optional<std::uint64_t> expert;
  std::uint64_t first_out = 0;  ///< its first row, in B
};

/// What an adapter does to one tensor of the base, in this order.
struct TensorUpdate {
  std::size_t tensor = 0;                  ///< of the base
  std::optional<std::size_t> replacement;  ///< the tensor of the adapter that replaces it
  std::optional<LowRankUpdate> low_rank;   ///< added to it
  std::optional<std::size_t> tokens;       ///< new values for these rows of it
  std::span<const std::uint64_t> token_rows;
  std::optional<std::size_t> bias;  ///< lora_bias: a tensor of its shape that is added to it
  double bias_scale = 0;
};

/// The model that an adapter is merged into, as its tensors were before they were quantized.
struct AdapterBase {
  std::string label;  ///< for errors
  const TensorList& tensors;
  RoleFinder& roles;
  bool tied = false;                        ///< the output layer shares the weight of the embeddings
  std::optional<std::uint64_t> vocab_size;  ///< of config.json: the rows of the embeddings of tokens
  bool guessed = false;                     ///< roles are guessed from names and shapes: the architecture is not known
  EmbeddingLayers layers;                   ///< of the architecture
  std::vector<bool> turned_conv1d;          ///< Conv1D weights that are stored as [out, in]; empty: none

  /// Whether a parameter of the model, by its name in memory, is the weight of a linear layer that the class ties.
  [[nodiscard]] bool is_tied_output(std::string_view parameter) const;
  /// Whether it is the weight of embeddings. Those of an encoder and of a decoder may be tied to each other.
  [[nodiscard]] bool is_embedding(std::string_view parameter) const;
};

/// The updates of all tensors that the adapter changes, in the order of the base. The names of an adapter are those of
/// the modules of the model in memory. The base may store them under other names (RoleFinder knows which), or with a
/// first component ("model.") more or less. Experts that transformers merges into one parameter when it loads the model
/// are updated one by one.
///
/// Throws Error(bad_input) if the adapter is for another base: a name that the base lacks, a shape that does not fit,
/// or a rank that is not the one in the configuration.
[[nodiscard]] std::vector<TensorUpdate> plan_updates(const Adapter& adapter, const AdapterBase& base);

}  // namespace nibble
