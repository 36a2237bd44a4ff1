#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <utility>

namespace nibble::cli {

/// Where a command prints, and what can stop it. The program's is the process itself (process_terminal.hpp). A library
/// that runs commands has one of its own, because stdout, stderr and signals belong to its host (python/c_api/).
class Terminal {
 public:
  Terminal() = default;
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  virtual ~Terminal() = default;

  /// The result: stdout. If some of it is lost, flush() says so.
  virtual void write(std::string_view text) = 0;
  template <class... T> void print(fmt::format_string<T...> format, T&&... arguments) {
    write(fmt::format(format, std::forward<T>(arguments)...));
  }
  /// Returns whether everything that was written has arrived.
  [[nodiscard]] virtual bool flush() noexcept = 0;

  /// A line for the user beside the result, "warning: ..." for example, without its end: stderr.
  virtual void note(std::string_view line) noexcept = 0;

  /// How far a command has come, for programs: as Progress::advance().
  virtual void advance(std::string_view /*tensor*/, std::uint64_t /*done*/, std::uint64_t /*total*/) {}
  /// The same for people, as text and control characters: stderr.
  virtual void draw(std::string_view text) noexcept = 0;

  /// From here on, a signal asks for an orderly end instead of ending the process at once.
  virtual void catch_interrupts() = 0;
  /// Whether somebody has asked for the end. Called from any thread.
  [[nodiscard]] virtual bool interrupted() const noexcept = 0;
};

}  // namespace nibble::cli
