// The command line. This file holds the only catch of the program: every error ends here as one line and an exit code.

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>

#include "cli/run_program.hpp"
#include "cli/terminal/interrupt.hpp"
#include "cli/terminal/process_terminal.hpp"
#include "cli/terminal/remedies.hpp"
#include "nibble/error.hpp"
#include "nibble/target.hpp"

namespace {

// At most 64 shards of the input are open at a time, and at most a sixteenth of the files that the process may have
// open (core/files/open_files.hpp): under a low soft limit they would be closed and reopened again and again.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// By default, glibc gives every thread a heap of its own, and once a large block has been freed it keeps blocks of that
// size instead of returning them to the system. Peak memory is computed to the megabyte, and nothing here allocates
// often.
void keep_heap_small() {
#ifdef __GLIBC__
  constexpr int large_block = 128 << 10;  // chunk buffers are larger and long-lived, so each gets a mapping of its own
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, large_block);
  mallopt(M_TRIM_THRESHOLD, large_block);
#endif
}

int fail(int code, const char* line) noexcept {
  std::fprintf(stderr, "error: %s\n", line);
  return code;
}

// If a signal caused the failure, report the signal: after SIGPIPE, for example, writing fails.
int exit_code(const nibble::Error& error) noexcept {
  const bool stopped =
      error.code() == nibble::Errc::interrupted || (error.code() == nibble::Errc::io && nibble::cli::interrupted());
  return stopped ? nibble::cli::interrupt_exit_code() : static_cast<int>(error.code());
}

int fail(const nibble::Error& error) noexcept {
  try {
    return fail(exit_code(error), nibble::cli::with_options(error.what(), error.remedy()).c_str());
  } catch (const std::exception&) {  // no memory for a longer line
    return fail(exit_code(error), error.what());
  }
}

// For exceptions that a library throws where none are allowed. The output is as it was; the next run removes the work
// directory beside it.
[[noreturn]] void end_at_once() noexcept {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    _exit(fail(static_cast<int>(nibble::Errc::no_space), "out of memory"));
  } catch (const std::runtime_error& error) {  // oneTBB, if the system refuses it a thread
    _exit(fail(static_cast<int>(nibble::Errc::io), error.what()));
  } catch (const std::exception& error) {
    _exit(fail(static_cast<int>(nibble::Errc::internal), error.what()));
  } catch (...) {
  }
  _exit(fail(static_cast<int>(nibble::Errc::internal), "ended for an unknown reason"));
}

}  // namespace

int main(int argc, char** argv) {
  allow_many_files();
  keep_heap_small();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of write(), which cleans up
  std::set_terminate(end_at_once);
  try {
    nibble::force_cpu_target_of_environment();
    nibble::cli::ProcessTerminal terminal;
    nibble::cli::run_program({argv + 1, argv + argc}, terminal);
    return 0;
  } catch (const nibble::Error& error) {
    return fail(error);
  } catch (const std::bad_alloc&) {
    return fail(static_cast<int>(nibble::Errc::no_space), "out of memory");
  } catch (const std::system_error& error) {
    return fail(static_cast<int>(nibble::Errc::io), error.what());  // fmt could not write to standard output
  } catch (const std::exception& error) {
    return fail(static_cast<int>(nibble::Errc::internal), error.what());
  }
}
