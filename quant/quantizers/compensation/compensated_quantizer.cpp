#include "quant/quantizers/compensation/compensated_quantizer.hpp"

#include "quant/quantizers/compensation/compensated_blocks.hpp"
#include "quant/quantizers/compensation/compensated_rows.hpp"

namespace nibble {

std::optional<std::size_t> compensated_columns(const Codec& codec) {
  if (const auto* const four_bit = dynamic_cast<const FourBitCodec*>(&codec)) return four_bit->blocksize();
  if (dynamic_cast<const Int8Codec*>(&codec) != nullptr) return 1;
  return std::nullopt;
}

bool can_be_compensated(const Codec& codec, const TensorInfo& tensor) {
  const auto columns = compensated_columns(codec);
  return columns && tensor.shape.size() == 2 && tensor.shape[1] % *columns == 0;
}

std::unique_ptr<const Quantizer> make_compensated_quantizer(const Codec& codec, const QuantizerOptions& options,
                                                            const InputFactor* factor) {
  if (const auto* const four_bit = dynamic_cast<const FourBitCodec*>(&codec))
    return make_compensated_blocks_quantizer(*four_bit, options, factor);
  if (const auto* const int8 = dynamic_cast<const Int8Codec*>(&codec))
    return make_compensated_rows_quantizer(*int8, factor);
  return nullptr;
}

}  // namespace nibble
