// What stderr gets to see. Nothing here waits: a display says how far it came at the end, whatever the clock says.

#include "cli/terminal/progress.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/terminal/process_terminal.hpp"
#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::cli::progress_test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

// What `f` writes to a stderr that is no terminal.
template <class F> std::string in_a_file(F&& f) {
  testing::internal::CaptureStderr();
  f();
  return testing::internal::GetCapturedStderr();
}

// What it writes to one that is, of so many columns.
template <class F> std::string on_a_terminal(unsigned columns, F&& f) {
  int controller = -1, end = -1;
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  termios raw{};
  ::cfmakeraw(&raw);
  if (::openpty(&controller, &end, nullptr, &raw, &size) != 0) throw std::runtime_error("openpty");
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(end, STDERR_FILENO);
  ::close(end);
  f();
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  std::string out;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(controller, buffer, sizeof(buffer))) > 0;)
    out.append(buffer, static_cast<std::size_t>(n));
  ::close(controller);
  return out;
}

ProcessTerminal terminal;

constexpr std::string_view erased = "\r\x1b[K";

TEST(ProgressStyles, AreChosenByName) {
  EXPECT_EQ(progress_style("bar"), ProgressStyle::bar);
  EXPECT_EQ(progress_style("plain"), ProgressStyle::plain);
  EXPECT_EQ(progress_style("json"), ProgressStyle::json);
  EXPECT_EQ(progress_style("none"), ProgressStyle::none);
}

TEST(ProgressStyles, AutoIsABarOnTerminalsOnly) {
  ProgressStyle style = ProgressStyle::none;
  (void)in_a_file([&] { style = progress_style("auto"); });
  EXPECT_EQ(style, ProgressStyle::plain);
  (void)on_a_terminal(80, [&] { style = progress_style("auto"); });
  EXPECT_EQ(style, ProgressStyle::bar);
}

TEST(ProgressStyles, OthersAreUsage) {
  EXPECT_EQ(test::error_of([] { (void)progress_style("loud\n"); }, Errc::usage),
            "--progress 'loud\\n': auto, bar, plain, json or none");
  EXPECT_NE(test::error_of([] { (void)progress_style(""); }, Errc::usage), "");
  EXPECT_NE(test::error_of([] { (void)progress_style("Bar"); }, Errc::usage), "");
}

TEST(Progress, NoneIsSilent) {
  EXPECT_EQ(in_a_file([] {
              ProgressDisplay display(terminal, ProgressStyle::none);
              display.advance("w", 1, 2);
              display.advance("w", 2, 2);
              display.close();
            }),
            "");
}

// Where this process was stopped for so long, it says nothing about short work: then it is tried again.
TEST(Progress, PlainIsSilentAboutShortWork) {
  std::string said;
  std::chrono::steady_clock::time_point start;
  do {
    start = std::chrono::steady_clock::now();
    said = in_a_file([] {
      ProgressDisplay display(terminal, ProgressStyle::plain);
      display.advance("w", 1, 2);
      display.advance("w", 2, 2);
    });
  } while (std::chrono::steady_clock::now() - start >= std::chrono::seconds(5));
  EXPECT_EQ(said, "");
}

nlohmann::ordered_json last_json(std::string_view tensor, std::uint64_t bytes) {
  const std::string out = in_a_file([&] {
    ProgressDisplay display(terminal, ProgressStyle::json);
    display.advance(tensor, bytes, bytes);
  });
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
  EXPECT_THAT(out, EndsWith("}\n"));
  return nlohmann::ordered_json::parse(out);
}

TEST(Progress, JsonEndsWithAllThatWasDone) {
  const auto line = last_json("a \"b\"", 3'000'000'000'000);
  std::vector<std::string> keys;
  for (const auto& [key, value] : line.items()) keys.push_back(key);
  EXPECT_THAT(keys, testing::ElementsAre("done_bytes", "total_bytes", "bytes_per_second", "seconds_left", "tensor"));
  EXPECT_EQ(line.at("done_bytes"), 3'000'000'000'000);
  EXPECT_EQ(line.at("total_bytes"), 3'000'000'000'000);
  EXPECT_GT(line.at("bytes_per_second"), 0);
  EXPECT_EQ(line.at("seconds_left"), 0);
  EXPECT_EQ(line.at("tensor"), "a \"b\"");
}

TEST(Progress, JsonOfNothingAndOfNamesThatAreNoUtf8) {
  const auto nothing = last_json("", 0);
  EXPECT_EQ(nothing.at("bytes_per_second"), 0);
  EXPECT_EQ(nothing.at("seconds_left"), 0);
  EXPECT_EQ(last_json("\xff.weight", 1).at("tensor"), "\uFFFD.weight");
}

// After a merge, what is left of the updates is measured: the rate is that of the pass.
TEST(Progress, AnotherPassBeginsAnew) {
  const std::string out = in_a_file([] {
    ProgressDisplay display(terminal, ProgressStyle::json);
    display.advance("a", 200, 200);
    display.advance("b", 100, 100);  // as far as it was when it began
  });
  const auto second = nlohmann::ordered_json::parse(out.substr(out.find('\n') + 1));
  EXPECT_EQ(second.at("done_bytes"), 100);
  EXPECT_EQ(second.at("bytes_per_second"), 0);
}

// The bar after all of `bytes`, between what erases the line before and after it. How long it takes is not known, so
// the rate may have any number of digits: 200 columns have room for all.
std::string last_bar(std::string_view tensor, std::uint64_t bytes, unsigned columns = 200) {
  std::string out = on_a_terminal(columns, [&] {
    ProgressDisplay display(terminal, ProgressStyle::bar);
    display.advance(tensor, bytes, bytes);
  });
  EXPECT_THAT(out, StartsWith(std::string(erased)));
  EXPECT_THAT(out, EndsWith(std::string(erased)));
  if (out.size() < 2 * erased.size()) return {};
  return out.substr(erased.size(), out.size() - 2 * erased.size());
}

TEST(Progress, BarIsFullAtTheEnd) {
  EXPECT_THAT(last_bar("w", 2'000'000),
              MatchesRegex(R"(\[#{24}\] 100 %  2\.00 MB of 2\.00 MB  [0-9.]+ (bytes|kB|MB|GB|TB)/s  0:00 left  w)"));
  EXPECT_THAT(last_bar("", 0),
              StartsWith("[########################] 100 %  0 bytes of 0 bytes  0 bytes/s  0:00 left"));
}

// A line that is too long would be continued on the next one, and stay there: without its name, then cut.
TEST(Progress, BarStaysOnItsLine) {
  for (const unsigned columns : {1U, 2U, 20U, 40U, 80U, 90U, 200U})
    for (const std::uint64_t bytes : {1'000ULL, 140'000'000'000ULL}) {
      const std::string bar = last_bar("model.layers.0.self_attn.q_proj.weight", bytes, columns);
      EXPECT_LE(bar.size(), columns - 1) << bar;
      EXPECT_GE(bar.size(), std::min(columns - 1, 26U)) << bar;
    }
}

// Of 80 columns where nobody says how many there are.
TEST(Progress, BarInAFileHas80Columns) {
  const std::string out = in_a_file([&] {
    ProgressDisplay display(terminal, ProgressStyle::bar);
    display.advance(std::string(100, 'x'), 1, 1);
  });
  EXPECT_THAT(out, StartsWith(std::string(erased) + "[########################] 100 %  1 bytes of 1 bytes  "));
  EXPECT_LE(out.size(), 79U + 2 * erased.size());
}

// The end of a name tells layers apart. Nothing is cut within a character.
TEST(Progress, LongNamesLoseTheirBeginning) {
  std::string name;
  for (int i = 0; i < 100; ++i) name += "\u00E9";  // two bytes each
  for (const unsigned columns : {120U, 121U}) {
    const std::string bar = last_bar(name + ".q_proj", 2'000'000, columns);
    EXPECT_LE(bar.size(), columns - 1) << bar;
    EXPECT_GE(bar.size(), columns - 2) << bar;
    EXPECT_THAT(bar, HasSubstr("left  ...\u00E9"));
    EXPECT_THAT(bar, EndsWith("\u00E9.q_proj"));
  }
}

TEST(Progress, NamesDoNotReachTheTerminal) {
  EXPECT_THAT(last_bar("\x1b[31m\r\n", 1), EndsWith("left  \\x1b[31m\\r\\n"));
}

TEST(Progress, CloseErasesTheBarOnce) {
  const auto erasures = [](const std::string& out) {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = out.find(erased, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(in_a_file([] { ProgressDisplay display(terminal, ProgressStyle::bar); }), "");
  EXPECT_EQ(erasures(in_a_file([] {
              ProgressDisplay display(terminal, ProgressStyle::bar);
              display.advance("w", 1, 1);
              display.close();
              display.close();
            })),
            2U);
  EXPECT_EQ(erasures(in_a_file([] {
              ProgressDisplay display(terminal, ProgressStyle::json);
              display.advance("w", 1, 1);
            })),
            0U);
}

}  // namespace
}  // namespace nibble::cli::progress_test
