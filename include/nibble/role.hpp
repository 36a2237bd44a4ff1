#pragma once

#include <cstdint>

namespace nibble {

/// The role of a tensor in its model, from the table of architectures, or guessed from name and shape.
enum class Role : std::uint8_t {
  linear,             ///< weight of a linear layer
  conv1d,             ///< the same for a Conv1D, which stores [in, out]
  output_embeddings,  ///< weight of the output layer: transformers keeps it by default
  kept,               ///< weight of another linear layer that transformers keeps by default
  embedding,
  expert,   ///< experts' matrices that transformers holds as one 3-D parameter
  other,    ///< known, but no linear layer, or one that is never quantized
  unknown,  ///< the table knows the architecture but not this tensor
};

}  // namespace nibble
