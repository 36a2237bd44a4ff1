#pragma once

#include <cstdint>

namespace nibble {

/// The role of a tensor in its model, from the table of architectures, or guessed from name and shape.
enum class Role : std::uint8_t {
  linear,             ///< weight of a linear layer that transformers replaces
  conv1d,             ///< the same for a Conv1D, which stores [in, out]
  output_embeddings,  ///< weight of the output layer: transformers keeps it by default
  kept,               ///< weight of another linear layer that transformers keeps by default
  embedding,
  expert,   ///< experts' matrices that transformers holds as one 3-D parameter
  other,    ///< known, but not a linear layer that could be replaced
  unknown,  ///< the table knows the architecture but not this tensor
};

/// Whether bitsandbytes' modules can hold a tensor in this role.
[[nodiscard]] constexpr bool is_replaceable(Role role) noexcept { return role <= Role::kept; }

}  // namespace nibble
