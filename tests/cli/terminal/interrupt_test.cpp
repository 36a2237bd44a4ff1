// Each test in a process of its own: signals and what remembers them belong to all of one.

#include "cli/terminal/interrupt.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <utility>

#include "cli/terminal/process_terminal.hpp"
#include "cli/terminal/progress.hpp"

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
  for (const auto& [signal, code] :
       {std::pair(SIGHUP, 129), std::pair(SIGINT, 130), std::pair(SIGPIPE, 141), std::pair(SIGTERM, 143)})
    EXPECT_EXIT(
        {
          (void)std::signal(signal, SIG_DFL);  // a test may be run by what ignores it
          catch_interrupts();
          std::raise(signal);
          end();
        },
        ExitedWithCode(code), "");
}

TEST(Interrupt, ASecondOneOfTheKindEndsTheProcess) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    EXPECT_EXIT(
        {
          (void)std::signal(signal, SIG_DFL);  // nohup ignores SIGHUP
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

// Every line that is written while the work ends brings one more.
TEST(Interrupt, ManyBrokenPipesAreOne) {
  EXPECT_EXIT(
      {
        (void)std::signal(SIGPIPE, SIG_DFL);
        catch_interrupts();
        std::raise(SIGPIPE);
        std::raise(SIGPIPE);
        end();
      },
      ExitedWithCode(141), "");
}

// nohup, for one, has processes inherit that it is ignored.
TEST(Interrupt, IgnoredSignalsStayIgnored) {
  EXPECT_EXIT(
      {
        (void)std::signal(SIGHUP, SIG_IGN);
        catch_interrupts();
        std::raise(SIGHUP);
        if (interrupted()) std::_Exit(1);
        std::_Exit(0);
      },
      ExitedWithCode(0), "");
}

// A shell ignores it for what it runs in the background.
TEST(Interrupt, IgnoredSigintIsCaughtAllTheSame) {
  EXPECT_EXIT(
      {
        (void)std::signal(SIGINT, SIG_IGN);
        catch_interrupts();
        std::raise(SIGINT);
        end();
      },
      ExitedWithCode(130), "");
}

TEST(Interrupt, OtherSignalsAreLeftAlone) {
  EXPECT_EXIT(
      {
        (void)std::signal(SIGUSR1, SIG_DFL);
        catch_interrupts();
        std::raise(SIGUSR1);
        end(false);
      },
      KilledBySignal(SIGUSR1), "");
}

TEST(Interrupt, WorkThatShowsProgressIsCancelled) {
  EXPECT_EXIT(
      {
        catch_interrupts();
        ProcessTerminal terminal;
        const ProgressDisplay display(terminal, ProgressStyle::none);
        if (display.cancelled()) std::_Exit(1);
        std::raise(SIGINT);
        std::_Exit(display.cancelled() ? 0 : 2);
      },
      ExitedWithCode(0), "");
}

}  // namespace
}  // namespace nibble::cli::interrupt_test
