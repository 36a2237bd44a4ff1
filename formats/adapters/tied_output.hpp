#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "formats/adapters/adapter.hpp"
#include "formats/adapters/tensor_updates.hpp"

namespace nibble {

/// An output layer that shares its weight with the embeddings, in a model of which an adapter changes either.
struct TiedOutput {
  std::size_t embeddings = 0;         ///< the tensor of the base with the weight of both
  std::string weight;                 ///< the name of the output layer's: "lm_head.weight"
  std::optional<std::size_t> stored;  ///< the tensor of that name, if the base has both
  bool unties = false;                ///< the trained model has two weights
  /// A tensor of the adapter that replaces the weight of both, saved under the name of one of them, beside its LoRA.
  std::optional<std::size_t> replacement;
};

/// The tied output layer of a base; nothing if the base is not tied, or if the adapter changes neither layer.
///
/// An adapter unties the two, so that each has a weight of its own, if it has
///
///   modules_to_save         of either: a copy of that module is trained, and the other keeps the weight that both had.
///                           Not if the adapter has the same weight for both, as peft saves it with ensure_weight_tying
///   LoRA                    of either: the trained model uses it in that layer only
///   trained rows            of the output layer; those of the embeddings alone are used in both
///
/// Throws Error(bad_input) if it changes embeddings that cannot be untied: those of a class that nibble does not know,
/// and of one where more than the output layer and one embedding share the weight, as in encoder-decoders.
[[nodiscard]] std::optional<TiedOutput> find_tied_output(const Adapter& adapter, const AdapterBase& base);

}  // namespace nibble
