#pragma once

#include <memory>

#include "quant/quantizers/quantizer.hpp"

/// The quantizers, one file each.
namespace nibble {

class CastCodec;
class FourBitCodec;

/// Copies, of any type.
std::unique_ptr<const Quantizer> make_keeper();

/// Rounds every weight by itself.
std::unique_ptr<const Quantizer> make_caster(const CastCodec& codec, OnOverflow on_overflow);

/// Scales a block by its largest magnitude; with double quantization the absmax values, less their mean, likewise.
std::unique_ptr<const Quantizer> make_absmax_of_blocks(const FourBitCodec& codec, const QuantizerOptions& options);

/// Scales a row by its largest magnitude, as LLM.int8 does.
std::unique_ptr<const Quantizer> make_absmax_of_rows(const QuantizerOptions& options);

}  // namespace nibble
