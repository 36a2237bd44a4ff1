#include "cli/interrupt.hpp"

#include <atomic>
#include <csignal>

namespace nibble::cli {
namespace {

// The one global of the program: a signal handler has nowhere else to write.
std::atomic<int> signal_seen{0};
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { signal_seen = signal; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() noexcept { return signal_seen != 0; }

int interrupt_exit_code() noexcept { return 128 + signal_seen; }

}  // namespace nibble::cli
