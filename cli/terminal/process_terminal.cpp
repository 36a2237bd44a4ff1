#include "cli/terminal/process_terminal.hpp"

#include <cstdio>

#include "cli/terminal/interrupt.hpp"

namespace nibble::cli {
namespace {

// Warnings and progress that nobody can see are no reason to stop: errors of stderr are ignored.
void say(std::string_view text) noexcept { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

void ProcessTerminal::write(std::string_view text) { (void)std::fwrite(text.data(), 1, text.size(), stdout); }

bool ProcessTerminal::flush() noexcept { return std::fflush(stdout) == 0 && std::ferror(stdout) == 0; }

void ProcessTerminal::note(std::string_view line) noexcept {
  say(line);
  say("\n");
}

void ProcessTerminal::draw(std::string_view text) noexcept { say(text); }

void ProcessTerminal::catch_interrupts() { cli::catch_interrupts(); }

bool ProcessTerminal::interrupted() const noexcept { return cli::interrupted(); }

}  // namespace nibble::cli
