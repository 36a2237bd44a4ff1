#include <array>
#include <string>

#include "nibble/error.hpp"
#include "quant/quantizers/quantizer.hpp"

// One line per quantizer: the file of this name defines make_<name>_quantizer(), which returns null for a codec
// of another kind than its own. A new codec of an existing kind needs no line.
#define NIBBLE_QUANTIZERS(X) \
  X(keep)                    \
  X(cast)                    \
  X(absmax_blocks)           \
  X(search_blocks)           \
  X(absmax_rows)             \
  X(absmax_regions)

namespace nibble {

using MakeQuantizer = std::unique_ptr<const Quantizer>(const Codec& codec, const QuantizerOptions& options);
#define NIBBLE_DECLARE(name) MakeQuantizer make_##name##_quantizer;
NIBBLE_QUANTIZERS(NIBBLE_DECLARE)
#undef NIBBLE_DECLARE

std::unique_ptr<const Quantizer> make_quantizer(const Codec& codec, const QuantizerOptions& options) {
#define NIBBLE_ADDRESS(name) &make_##name##_quantizer,
  static constexpr std::array all{NIBBLE_QUANTIZERS(NIBBLE_ADDRESS)};
#undef NIBBLE_ADDRESS
  for (MakeQuantizer* const make : all)
    if (auto quantizer = make(codec, options)) return quantizer;
  throw Error(Errc::usage, "codec " + std::string(codec.name()) + " has no quantizer");
}

}  // namespace nibble
