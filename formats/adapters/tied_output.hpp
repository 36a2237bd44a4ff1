#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "formats/adapters/adapter.hpp"
#include "formats/adapters/tensor_updates.hpp"

namespace nibble {

/// An output layer that shares its weight with the embeddings. The adapter changes one of the two layers, or both.
struct TiedOutput {
  std::size_t embeddings = 0;         ///< the tensor of the base with the weight of both
  std::string weight;                 ///< the name of the output layer's: "lm_head.weight"
  std::optional<std::size_t> stored;  ///< the tensor of that name, if the base has both
  bool unties = false;                ///< the trained model has two weights
  /// A tensor of the adapter that replaces the weight of both, saved under the name of one of them, beside its LoRA.
  std::optional<std::size_t> replacement;
};

/// The tied output layer of a base. Nothing if the base is not tied, if the adapter changes neither layer, or if it
/// changes both alike and they cannot be untied.
///
/// An adapter unties the two layers, so that each has a weight of its own, if it has one of these:
///
///   modules_to_save   of either layer: peft trains a copy of it, and the other layer keeps the weight that both had.
///   Not
///                     if the adapter has the same weight for both, as peft saves it with ensure_weight_tying
///   LoRA              of either layer: the trained model uses it in that layer only
///   trained rows      of the output layer; rows of the embeddings are used in both layers
///
/// Any other tensor that replaces the weight of one of them replaces it for both.
///
/// Throws Error(bad_input) if it changes embeddings that cannot be untied: those of a class that nibble does not know,
/// and of one where more than the output layer and one embedding share the weight, as in encoder-decoders.
[[nodiscard]] std::optional<TiedOutput> find_tied_output(const Adapter& adapter, const AdapterBase& base);

}  // namespace nibble
