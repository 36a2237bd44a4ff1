#pragma once

#include <string_view>

#include "cli/terminal/terminal.hpp"

namespace nibble::cli {

/// The stdout, stderr and signals of this process.
class ProcessTerminal final : public Terminal {
 public:
  void write(std::string_view text) override;
  bool flush() noexcept override;
  void note(std::string_view line) noexcept override;
  void draw(std::string_view text) noexcept override;
  void catch_interrupts() override;
  bool interrupted() const noexcept override;
};

}  // namespace nibble::cli
