#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "nibble/codec.hpp"
#include "quant/quantizers/compensation/input_factor.hpp"
#include "quant/quantizers/quantizer.hpp"

namespace nibble {

/// Of how many columns the rows of a matrix have to be a multiple so that their errors can be compensated: the block
/// size of a 4-bit codec, and 1 for int8. Nothing for other codecs, whose errors cannot be compensated. It is
/// InputFactor::Options::blocksize of the factor that the quantizer needs.
[[nodiscard]] std::optional<std::size_t> compensated_columns(const Codec& codec);

/// Whether the errors of a tensor can be compensated in this codec: a matrix with rows of such columns.
[[nodiscard]] bool can_be_compensated(const Codec& codec, const TensorInfo& tensor);

/// The quantizer of matrices whose errors are compensated; null for codecs without compensated_columns(). `factor` may
/// be null as compensated_blocks.hpp and compensated_rows.hpp say.
[[nodiscard]] std::unique_ptr<const Quantizer> make_compensated_quantizer(const Codec& codec,
                                                                          const QuantizerOptions& options,
                                                                          const InputFactor* factor);

}  // namespace nibble
