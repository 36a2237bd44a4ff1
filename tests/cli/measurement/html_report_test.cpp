#include "cli/measurement/html_report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::cli::html_report_test {
namespace {

constexpr std::string_view data_begin = R"(<script type="application/json" id="data">)";

// What a browser would take for the data: all up to the first end of a script.
std::string data_of(const std::string& page) {
  const std::size_t begin = page.find(data_begin) + data_begin.size();
  return page.substr(begin, page.find("</script", begin) - begin);
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++found;
  return found;
}

class HtmlReportNames : public testing::TestWithParam<std::string> {};

TEST_P(HtmlReportNames, SurviveAndStayData) {
  const nlohmann::json document = {{"schema_version", 1}, {GetParam(), {{"name", GetParam()}}}};
  const std::string page = html_report(document.dump());
  const std::string data = data_of(page);
  EXPECT_EQ(nlohmann::json::parse(data), document);
  EXPECT_EQ(data.find('<'), std::string::npos);
  EXPECT_EQ(data.find("\u2028"), std::string::npos);
  EXPECT_EQ(data.find("\u2029"), std::string::npos);
  // The name adds no element: all that begins one is what a page of no data has.
  EXPECT_EQ(count(page, "<"), count(html_report("{}"), "<"));
}

INSTANTIATE_TEST_SUITE_P(Hostile, HtmlReportNames,
                         testing::Values("plain", "", "</script><script>alert(1)</script>", "</SCRIPT >",
                                         "<!--<script>", "-->", "]]>", "<img src=x onerror=alert(1)>",
                                         "a\u2028b\u2029c", "\xE2\x80\xA7\xE2\x80\xAA\xE2\x82\xAC", "\"'`${alert(1)}\\",
                                         "\\u003c/script>", "a&lt;b&amp;", std::string("\0\x01\t\r\n\x1F\x7F", 7),
                                         "\u202Etxt.exe", "\U0001F642", "@data@ @script@ @chart_js@"));

TEST(HtmlReport, KeepsTheBytesThatNeedNoEscape) {
  const std::string json = "{ \"a\" : [1, 2.50, 1e-5, null, true],\n \"\u20AC\" : \"x\\/y\" }";
  EXPECT_EQ(data_of(html_report(json)), json);
}

TEST(HtmlReport, KeepsBytesCutShortAtTheEnd) {
  // Not valid JSON, so not expected; still nothing may be read behind the end.
  for (const std::string_view json : {"\xE2", "\xE2\x80", "<"}) (void)html_report(json);
}

TEST(HtmlReport, NeedsNothingFromElsewhere) {
  const std::string page = html_report("{}");
  EXPECT_EQ(count(page, data_begin), 1U);
  EXPECT_NE(page.find("default-src 'none'; script-src 'sha256-"), std::string::npos);
  for (const char* const part :
       {"unsafe-inline", "unsafe-eval", " src=", "@import", "url(", "@script@", "@style@", "@chart_js@", "_hash@"})
    EXPECT_EQ(count(page.substr(0, page.find("<script>")), part), 0U) << part;
  EXPECT_EQ(count(page, "innerHTML"), 0U);
  EXPECT_NE(page.find("Chart.js v"), std::string::npos);
  EXPECT_NE(page.find("Permission is hereby granted"), std::string::npos);
}

}  // namespace
}  // namespace nibble::cli::html_report_test
