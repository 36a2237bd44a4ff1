#pragma once

namespace nibble::cli {

/// Makes SIGINT and SIGTERM ask for an orderly end instead of ending the process at once. A second signal of the
/// same kind does that.
void catch_interrupts();

/// Whether one of them has come.
[[nodiscard]] bool interrupted() noexcept;

/// 130 after SIGINT, 143 after SIGTERM.
[[nodiscard]] int interrupt_exit_code() noexcept;

}  // namespace nibble::cli
