#include "cli/html_report.hpp"

#include <cassert>

namespace nibble {
extern const std::string_view html_report_page;  // cli/html_report/, put together by cmake/html_report.cmake
}

namespace nibble::cli {
namespace {

// In valid JSON these occur inside of strings only, where an escape says the same. '<' could end the script or begin
// a comment that hides its end; the two separators of lines (E2 80 A8, E2 80 A9) end a line in old JavaScript.
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

std::string html_report(std::string_view json) {
  constexpr std::string_view data = R"(<script type="application/json" id="data">)";
  const std::size_t begin = html_report_page.find(data);
  assert(begin != std::string_view::npos);
  const std::size_t split = begin + data.size();
  std::string page;
  page.reserve(html_report_page.size() + json.size() + json.size() / 64);
  page += html_report_page.substr(0, split);
  append_escaped(page, json);
  page += html_report_page.substr(split);
  return page;
}

}  // namespace nibble::cli
