#pragma once

#include <string>

#include "nibble/plan.hpp"
#include "quant/schemes/scheme.hpp"

namespace nibble {

/// Scheme::is_declared(), as in transformers: without a quant_method, the flags of bitsandbytes decide.
[[nodiscard]] bool is_bitsandbytes(const ModelConfig& config);

/// Scheme::obstacle() and Scheme::config() of bitsandbytes. The plan quantizes something.
[[nodiscard]] std::string bitsandbytes_obstacle(const Scheme& scheme, const Plan& plan);
[[nodiscard]] std::string bitsandbytes_config(const Scheme& scheme, const Plan& plan);

}  // namespace nibble
