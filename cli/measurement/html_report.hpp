#pragma once

#include <string>
#include <string_view>

namespace nibble::cli {

/// One page that shows what `nibble measure --json` says. It needs no network, because it contains the document and the
/// code that draws it. `json` is a valid JSON document in UTF-8, preferably without indentation: the page is larger
/// than it by 260 kB, and by 5 bytes for each '<'. Whatever names the document holds, they cannot end the script, and
/// they appear on the page only as text. `made` is what report_made() says, or nothing.
[[nodiscard]] std::string html_report(std::string_view json, std::string_view made = "{}");

/// When and by which command a report is written, as JSON: the one thing in it that differs from run to run, so it
/// stays out of the document. The time is that of SOURCE_DATE_EPOCH, if the environment has it: then the page is the
/// same for the same input. Throws Error(usage) if that is not a time.
[[nodiscard]] std::string report_made(const std::string& command);

}  // namespace nibble::cli
