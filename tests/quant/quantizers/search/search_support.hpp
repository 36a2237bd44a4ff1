#pragma once

#include <string_view>

#include "nibble/codec.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble::test {

/// Those of "nf4" or "fp4".
inline const FourBitTables& four_bit_tables(std::string_view codec) {
  static const auto nf4 = make_codec("nf4"), fp4 = make_codec("fp4");
  return dynamic_cast<const FourBitCodec&>(codec == "nf4" ? *nf4 : *fp4).tables();
}

}  // namespace nibble::test
