#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "formats/adapters/adapter.hpp"
#include "formats/adapters/tensor_updates.hpp"
#include "formats/models/architectures.hpp"

namespace nibble {

/// An output layer that shared its weight with the embeddings and gets one of its own.
struct UntiedOutput {
  std::size_t embeddings = 0;  ///< the tensor of the base with the weight of both
  std::string weight;          ///< the name of the output layer's: "lm_head.weight"; the base may have it, too
};

/// What becomes of the output layer of a tied base. As in peft, modules_to_save gives the module that it names a weight
/// of its own, and the other one keeps what both had. Nothing if both stay tied: modules_to_save names neither, or the
/// adapter has the same weight for both (ensure_weight_tying). `layers` are those of the class of the base.
///
/// Throws Error(bad_input) if the adapter replaces embeddings that cannot be untied: those of a class that nibble does
/// not know, and of one where more than the output layer and one embedding share the weight, as in encoder-decoders.
[[nodiscard]] std::optional<UntiedOutput> find_untied_output(const Adapter& adapter, const AdapterBase& base,
                                                             const EmbeddingLayers& layers);

}  // namespace nibble
