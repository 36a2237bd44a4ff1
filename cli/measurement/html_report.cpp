#include "cli/measurement/html_report.hpp"

#include <fmt/format.h>

#include <array>
#include <cassert>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include "cli/terminal/json.hpp"
#include "nibble/error.hpp"

namespace nibble {
extern const std::string_view
    html_report_page;  // cli/measurement/html_report/, put together by cmake/html_report.cmake
}

namespace nibble::cli {
namespace {

// In valid JSON these characters occur only inside strings, where an escape means the same. '<' could end the script or
// begin a comment that hides its end; the two line separators (E2 80 A8, E2 80 A9) end a line in old JavaScript.
void append_escaped(std::string& page, std::string_view json) {
  for (std::size_t at = 0;;) {
    const std::size_t next = json.find_first_of("<\xE2", at);
    page += json.substr(at, next - at);
    if (next == std::string_view::npos) return;
    at = next + 1;
    if (json[next] == '<') {
      page += "\\u003c";
    } else if (const std::string_view rest = json.substr(at, 2); rest == "\x80\xA8" || rest == "\x80\xA9") {
      page += rest == "\x80\xA8" ? "\\u2028" : "\\u2029";
      at += 2;
    } else {
      page += json[next];
    }
  }
}

}  // namespace

std::string html_report(std::string_view json, std::string_view made) {
  constexpr std::string_view made_begin = R"(<script type="application/json" id="report-made">)", made_empty = "{}";
  constexpr std::string_view data_begin = R"(<script type="application/json" id="data">)";
  const std::size_t made_at = html_report_page.find(made_begin);
  const std::size_t data_at = html_report_page.find(data_begin);
  assert(made_at < data_at && data_at != std::string_view::npos);
  const std::size_t made_end = made_at + made_begin.size(), data_end = data_at + data_begin.size();
  std::string page;
  page.reserve(html_report_page.size() + made.size() + json.size() + json.size() / 64);
  page += html_report_page.substr(0, made_end);
  append_escaped(page, made);
  page += html_report_page.substr(made_end + made_empty.size(), data_end - made_end - made_empty.size());
  append_escaped(page, json);
  page += html_report_page.substr(data_end);
  return page;
}

std::string report_made(const std::string& command) {
  std::time_t seconds = std::time(nullptr);
  if (const char* const epoch = std::getenv("SOURCE_DATE_EPOCH"); epoch != nullptr && *epoch != '\0') {
    const std::string_view text = epoch;
    std::int64_t given = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), given);
    constexpr std::int64_t last = 253402300799;  // of the year 9999
    if (error != std::errc() || end != text.data() + text.size() || given < 0 || given > last)
      throw Error(Errc::usage, fmt::format("SOURCE_DATE_EPOCH '{}': is not a number of seconds from 0 to {}",
                                           printable(text), last));
    seconds = given;
  }
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 32> date{};
  const std::size_t size = std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return dump({{"date", std::string_view(date.data(), size)}, {"command", command}});
}

}  // namespace nibble::cli
