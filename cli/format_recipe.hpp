#pragma once

#include <string>

#include "nibble/recipe.hpp"

/// A format and its options in one word, as `measure --to` takes it, and what it is as options of `convert`.
namespace nibble::cli {

/// "nf4", "nf4:block-size=32,double-quant=no": what `convert --to nf4 --block-size 32 --no-double-quant` would do. NaN
/// and infinities are kept, so that they show in the figures. Throws Error(usage).
[[nodiscard]] Recipe parse_format(const std::string& text);

/// "--to nf4 --block-size 32 --no-double-quant", without options that have their default.
[[nodiscard]] std::string convert_options(const Recipe& recipe);

}  // namespace nibble::cli
