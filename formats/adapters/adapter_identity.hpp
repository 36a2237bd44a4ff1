#pragma once

#include <cstddef>
#include <string>

#include "formats/adapters/adapter.hpp"
#include "formats/checkpoint.hpp"

namespace nibble {

/// What nibble.json says about an adapter that changes so many tensors of the base, as a JSON object: its kind, the
/// rank and alpha that have no pattern of their own, and the name, size and XXH3-128 of each of its files. No paths.
///
/// Reads the files of weights and tells `progress` about it. If they are not those that were opened,
/// weights().check_unchanged() says so. Throws Error(io).
[[nodiscard]] std::string adapter_identity(const Adapter& adapter, std::size_t tensors,
                                           const ReaderInternals::FileProgress& progress);

}  // namespace nibble
