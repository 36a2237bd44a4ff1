#pragma once

#include <string>
#include <string_view>

namespace nibble::cli {

/// One page that shows what `nibble measure --json` says, and needs no network: the document is in it, with the code
/// that draws it. `json` is a valid JSON document in UTF-8, preferably without indentation: the page is larger than
/// it by 260 kB, and by 5 bytes for each '<'. Whatever its names hold ends neither the script nor reaches the page as
/// anything but text.
[[nodiscard]] std::string html_report(std::string_view json);

}  // namespace nibble::cli
