#include "nibble/dequantize.hpp"

#include <fmt/format.h>

#include "nibble/codec.hpp"
#include "nibble/error.hpp"

namespace nibble {

Recipe dequantization(const CodecSpec& to) {
  if (!make_codec(to)->cast_type())
    throw Error(Errc::usage, fmt::format("codec {} is no type of plain weights", to.text()));
  Recipe recipe;
  recipe.to = to;
  recipe.intake = Intake::quantized;
  recipe.decoded_as = DType::f32;
  return recipe;
}

}  // namespace nibble
