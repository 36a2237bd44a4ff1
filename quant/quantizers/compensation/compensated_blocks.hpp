#pragma once

#include <memory>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/quantizers/compensation/input_factor.hpp"
#include "quant/quantizers/quantizer.hpp"

namespace nibble {

/// The quantizer of matrices in 4-bit blocks whose errors are compensated. Chunks are whole rows, 16 of them if the
/// tensor has as many. With double quantization they are scanned first, which gives the NestedRange. NaN counts as 0
/// and an infinity as the largest finite magnitude of its block, and what is passed on are the errors against these.
///
/// Codec and factor have to outlive it. The factor has the codec's blocksize and the columns of the matrix. Without a
/// factor (null) the quantizer makes no encoder, and answers only how matrices are cut and what they take.
[[nodiscard]] std::unique_ptr<const Quantizer> make_compensated_blocks_quantizer(const FourBitCodec& codec,
                                                                                 const QuantizerOptions& options,
                                                                                 const InputFactor* factor);

}  // namespace nibble
