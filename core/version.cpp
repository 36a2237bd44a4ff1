#include "nibble/version.hpp"

namespace nibble {

std::string_view version() noexcept { return NIBBLE_VERSION; }

}  // namespace nibble
