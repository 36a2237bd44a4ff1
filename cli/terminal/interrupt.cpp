#include "cli/terminal/interrupt.hpp"

#include <atomic>
#include <csignal>

namespace nibble::cli {
namespace {

// The one global of the program: a signal handler has nowhere else to write.
std::atomic<int> signal_seen{0};
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

void catch_interrupts() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    struct sigaction action {};
    const bool may_be_ignored = signal == SIGHUP || signal == SIGPIPE;
    if (may_be_ignored && sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = [](int seen) { signal_seen = seen; };
    action.sa_flags = signal == SIGPIPE ? SA_RESTART : static_cast<int>(SA_RESETHAND);
    sigaction(signal, &action, nullptr);
  }
}

bool interrupted() noexcept { return signal_seen != 0; }

int interrupt_exit_code() noexcept { return 128 + signal_seen; }

}  // namespace nibble::cli
