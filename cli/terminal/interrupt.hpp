#pragma once

namespace nibble::cli {

/// Makes SIGINT, SIGTERM, SIGHUP and SIGPIPE ask for an orderly end instead of ending the process at once; a second
/// signal of the same kind ends the process, except SIGPIPE, because every further line to a closed pipe raises it.
/// SIGHUP and SIGPIPE stay ignored if they are ignored when the program starts, as `nohup` asks for. SIGINT does not:
/// shells ignore it for programs that they run in the background, and scripts use it to stop their children.
void catch_interrupts();

/// Whether one of them has arrived.
[[nodiscard]] bool interrupted() noexcept;

/// 128 and the number of the signal: 129 after SIGHUP, 130 after SIGINT, 141 after SIGPIPE, 143 after SIGTERM.
[[nodiscard]] int interrupt_exit_code() noexcept;

}  // namespace nibble::cli
