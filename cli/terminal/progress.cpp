#include "cli/terminal/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "cli/terminal/json.hpp"
#include "cli/terminal/sizes.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto redraw_every = 100ms;
constexpr auto line_every = 5s;
constexpr std::size_t bar_width = 24;

std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string duration(double seconds) {
  const auto s = static_cast<std::uint64_t>(std::clamp(seconds, 0.0, 1e9));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

// At most `width` bytes of a printable name: its end tells layers apart.
std::string tail(std::string name, std::size_t width) {
  if (name.size() <= width) return name;
  if (width < 4) return {};
  std::size_t from = name.size() - (width - 3);
  while (from < name.size() && (static_cast<unsigned char>(name[from]) & 0xC0U) == 0x80U)
    ++from;  // not inside a character
  return "..." + name.substr(from);
}

}  // namespace

ProgressStyle progress_style(std::string_view name) {
  if (name == "auto") return isatty(STDERR_FILENO) != 0 ? ProgressStyle::bar : ProgressStyle::plain;
  if (name == "bar") return ProgressStyle::bar;
  if (name == "plain") return ProgressStyle::plain;
  if (name == "json") return ProgressStyle::json;
  if (name == "none") return ProgressStyle::none;
  throw Error(Errc::usage, fmt::format("--progress '{}': auto, bar, plain, json or none", printable(name)));
}

ProgressDisplay::ProgressDisplay(Terminal& terminal, ProgressStyle style)
    : terminal_(terminal), style_(style), start_(Clock::now()) {
  next_ = start_ + (style == ProgressStyle::plain ? Clock::duration(line_every) : Clock::duration(redraw_every));
}

ProgressDisplay::~ProgressDisplay() { close(); }

bool ProgressDisplay::cancelled() const { return terminal_.interrupted(); }

void ProgressDisplay::advance(std::string_view tensor, std::uint64_t done, std::uint64_t total) {
  terminal_.advance(tensor, done, total);
  if (style_ == ProgressStyle::none) return;
  const auto now = Clock::now();
  if (done < done_) {  // another pass
    start_ = now;
    begun_at_ = done;
  }
  done_ = done;
  if (now < next_ && !(done == total && style_ != ProgressStyle::plain)) return;
  next_ = now + (style_ == ProgressStyle::bar ? Clock::duration(redraw_every) : Clock::duration(line_every));
  draw(tensor, done, total, now);
}

void ProgressDisplay::draw(std::string_view tensor, std::uint64_t done, std::uint64_t total, Clock::time_point now) {
  const double seconds = std::max(1e-9, std::chrono::duration<double>(now - start_).count());
  const double rate = static_cast<double>(done - begun_at_) / seconds;
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  const double share = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  if (style_ == ProgressStyle::json) {
    const Json line = {{"done_bytes", done},
                       {"total_bytes", total},
                       {"bytes_per_second", rate},
                       {"seconds_left", left},
                       {"tensor", tensor}};
    terminal_.draw(fmt::format("{}\n", dump(line)));
    return;
  }
  const std::string text =
      fmt::format("{:3.0f} %  {} of {}  {}/s  {} left", std::min(100.0, 100 * share), size_short(done),
                  size_short(total), size_short(static_cast<std::uint64_t>(rate)), duration(left));
  if (style_ == ProgressStyle::plain) {
    terminal_.draw(fmt::format("{}  {}\n", text, printable(tensor)));
    return;
  }
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(bar_width));
  const std::string bar = fmt::format("[{:<{}}] {}", std::string(std::min(filled, bar_width), '#'), bar_width, text);
  const std::size_t width = terminal_width();
  // No wider, not even by a blank: the line would wrap, and every bar would leave a line behind.
  const std::string name = bar.size() + 3 < width ? "  " + tail(printable(tensor), width - bar.size() - 3) : "";
  terminal_.draw(fmt::format("\r\x1b[K{}{}", bar.substr(0, width - 1), name));
  drawn_ = true;
}

void ProgressDisplay::close() {
  if (drawn_) terminal_.draw("\r\x1b[K");
  drawn_ = false;
}

}  // namespace nibble::cli
