#pragma once

#include "nibble/codec_spec.hpp"
#include "nibble/recipe.hpp"

/// Quantized checkpoints back to plain weights. It is a conversion (nibble/convert.hpp) with this recipe:
///
///   convert("Llama-3.1-8B-nf4", "Llama-3.1-8B-bf16", dequantization("bf16"));
namespace nibble {

/// Decodes everything that is quantized, in the formats of bitsandbytes, of compressed-tensors (FP8), of DeepSeek-V3,
/// and in those that only nibble reads, and casts all weights to one type, "fp32", "fp16" or "bf16":
///
///   4 bits   weight = to(codebook[code] * absmax[block])
///   int8     weight = to((code * absmax[row]) * (1 / 127))
///   FP8      weight = to(code * scale[region])
///
/// where every operation is one of fp32, rounded to nearest even, and `to` rounds once more. The tensors get the names
/// and shapes that plain models have: a Conv1D is transposed back, and experts that nibble cut out of one tensor are
/// put together again. config.json loses its quantization_config.
///
/// A conversion by this recipe throws Error(bad_input) if nothing is quantized. Throws Error(usage) if `to` is not a
/// cast.
[[nodiscard]] Recipe dequantization(const CodecSpec& to);

}  // namespace nibble
