#pragma once

#include <memory>

#include "quant/codecs/int8_rows.hpp"
#include "quant/quantizers/compensation/input_factor.hpp"
#include "quant/quantizers/quantizer.hpp"

namespace nibble {

/// The quantizer of matrices in int8 rows whose errors are compensated. The absmax of a row is that of the row as it
/// is: its largest magnitude, or what a search finds in which the squared error of each column counts by
/// InputFactor::importance(). Chunks are whole rows. NaN, infinities and what fp16 cannot hold are replaced as by
/// int8::encode_row(), and what is passed on are the errors against these. There is no search in such rows.
///
/// Codec and factor have to outlive it. The factor may have any blocksize, and has the columns of the matrix. Without
/// a factor (null) the quantizer makes no encoder, and answers only how matrices are cut and what they take.
[[nodiscard]] std::unique_ptr<const Quantizer> make_compensated_rows_quantizer(const Int8Codec& codec,
                                                                               const InputFactor* factor);

}  // namespace nibble
