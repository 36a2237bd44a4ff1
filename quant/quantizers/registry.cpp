// Which quantizer a codec has: that of its kind, so a codec of a kind that is here adds nothing.

#include <string>

#include "nibble/error.hpp"
#include "quant/codecs/cast.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/quantizers/quantizers.hpp"

namespace nibble {

std::unique_ptr<const Quantizer> make_quantizer(const Codec& codec, const QuantizerOptions& options) {
  if (const auto* const four_bit = dynamic_cast<const FourBitCodec*>(&codec))
    return make_absmax_of_blocks(*four_bit, options);
  if (const auto* const cast = dynamic_cast<const CastCodec*>(&codec)) return make_caster(*cast, options.on_overflow);
  if (codec.granularity() == Granularity::row) return make_absmax_of_rows(options);
  if (!codec.quantizes()) return make_keeper();
  throw Error(Errc::usage, "codec " + std::string(codec.name()) + " has no quantizer");
}

}  // namespace nibble
