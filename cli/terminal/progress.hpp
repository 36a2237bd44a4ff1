#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "cli/terminal/terminal.hpp"
#include "nibble/convert.hpp"

namespace nibble::cli {

enum class ProgressStyle : std::uint8_t { bar, plain, json, none };

/// "auto" is a bar on a terminal and plain lines elsewhere. Throws Error(usage).
[[nodiscard]] ProgressStyle progress_style(std::string_view name);

/// Shows on stderr how far a conversion has come: bytes, rate, time left, the current tensor. Plain lines come every
/// five seconds, the first after five seconds, so that short conversions print none.
class ProgressDisplay : public Progress {
 public:
  ProgressDisplay(Terminal& terminal, ProgressStyle style);
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;
  ~ProgressDisplay() override;

  void advance(std::string_view tensor, std::uint64_t done, std::uint64_t total) override;
  [[nodiscard]] bool cancelled() const override;

  /// Ends the display, so that other lines can follow.
  void close();

 private:
  using Clock = std::chrono::steady_clock;

  void draw(std::string_view tensor, std::uint64_t done, std::uint64_t total, Clock::time_point now);

  Terminal& terminal_;
  ProgressStyle style_;
  Clock::time_point start_;     // when this pass began,
  std::uint64_t begun_at_ = 0;  // and how many bytes were done then
  std::uint64_t done_ = 0;
  Clock::time_point next_;
  bool drawn_ = false;
};

}  // namespace nibble::cli
