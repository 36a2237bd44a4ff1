// Finds the quantizer of a codec by the codec's kind. A new codec of a kind that is here needs no line.

#include <string>

#include "nibble/error.hpp"
#include "quant/codecs/cast.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/codecs/int8_rows.hpp"
#include "quant/quantizers/quantizers.hpp"

namespace nibble {

std::unique_ptr<const Quantizer> make_quantizer(const Codec& codec, const QuantizerOptions& options) {
  if (const auto* const four_bit = dynamic_cast<const FourBitCodec*>(&codec))
    return make_absmax_of_blocks(*four_bit, options);
  if (const auto* const cast = dynamic_cast<const CastCodec*>(&codec)) return make_caster(*cast, options.on_overflow);
  if (dynamic_cast<const Int8Codec*>(&codec) != nullptr) return make_absmax_of_rows(options);
  if (!codec.quantizes()) return make_keeper();
  throw Error(Errc::usage, "codec " + std::string(codec.name()) + " has no quantizer");
}

}  // namespace nibble
