// Each test in a process of its own: signals and what remembers them belong to all of one.

#include "cli/interrupt.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <utility>

#include "cli/progress.hpp"

namespace nibble::cli::interrupt_test {
namespace {

using testing::ExitedWithCode;
using testing::KilledBySignal;

// Ends with the exit code if signals were seen, as they were expected to be.
[[noreturn]] void end(bool expected = true) { std::_Exit(interrupted() == expected ? interrupt_exit_code() : 1); }

TEST(Interrupt, NothingHasCome) {
  EXPECT_EXIT(
      {
        if (interrupted()) std::_Exit(1);
        catch_interrupts();
        std::_Exit(interrupted() ? 1 : 0);
      },
      ExitedWithCode(0), "");
}

TEST(Interrupt, SignalsAreRemembered) {
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)})
    EXPECT_EXIT(
        {
          catch_interrupts();
          std::raise(signal);
          end();
        },
        ExitedWithCode(code), "");
}

TEST(Interrupt, ASecondOneOfTheKindEndsTheProcess) {
  for (const int signal : {SIGINT, SIGTERM})
    EXPECT_EXIT(
        {
          catch_interrupts();
          std::raise(signal);
          if (interrupted()) std::raise(signal);
          end();
        },
        KilledBySignal(signal), "");
}

// kill after Ctrl-C is still an orderly end, and the last one counts.
TEST(Interrupt, OneOfTheOtherKindDoesNot) {
  EXPECT_EXIT(
      {
        catch_interrupts();
        std::raise(SIGINT);
        std::raise(SIGTERM);
        end();
      },
      ExitedWithCode(143), "");
}

TEST(Interrupt, OtherSignalsAreLeftAlone) {
  EXPECT_EXIT(
      {
        (void)std::signal(SIGHUP, SIG_DFL);  // nohup, for one, has processes inherit that it is ignored
        catch_interrupts();
        std::raise(SIGHUP);
        end(false);
      },
      KilledBySignal(SIGHUP), "");
}

TEST(Interrupt, WorkThatShowsProgressIsCancelled) {
  EXPECT_EXIT(
      {
        catch_interrupts();
        const ProgressDisplay display(ProgressStyle::none);
        if (display.cancelled()) std::_Exit(1);
        std::raise(SIGINT);
        std::_Exit(display.cancelled() ? 0 : 2);
      },
      ExitedWithCode(0), "");
}

}  // namespace
}  // namespace nibble::cli::interrupt_test
