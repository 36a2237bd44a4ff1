// The command line. This file holds the only catch of the program: every error ends here as one line and an exit code.

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "nibble/error.hpp"
#include "nibble/target.hpp"
#include "nibble/version.hpp"

namespace {

// Every shard of the input stays open, so that it can be told whether it changed: some models have a thousand.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Left to itself, glibc gives every thread a heap, and once a large block was freed it keeps blocks of that size for
// later instead of returning them. Peak memory is planned to the megabyte, and nothing here allocates often.
void keep_heap_small() {
#ifdef __GLIBC__
  constexpr int large_block = 128 << 10;  // the buffers of chunks are larger and long-lived: each is mapped on its own
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, large_block);
  mallopt(M_TRIM_THRESHOLD, large_block);
#endif
}

int fail(int code, const char* line) noexcept {
  std::fprintf(stderr, "error: %s\n", line);
  return code;
}

// CLI11 explains over several lines; a program that reads our errors expects one.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

void run(int argc, char** argv) {
  nibble::force_cpu_target_of_environment();
  CLI::App app("Converts model weights to fp16, bf16, LLM.int8 and NF4, and says what that cost.", "nibble");
  app.set_version_flag("--version", fmt::format("nibble {}", nibble::version()));
  app.set_help_all_flag("--help-all", "Help of all subcommands");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  nibble convert Llama-3.1-8B Llama-3.1-8B-nf4 --to nf4\n"
      "  nibble inspect Llama-3.1-8B-nf4\n\n"
      "Exit codes: 0 done, 1 a bug, 2 usage, 3 bad input, 4 I/O, 5 not enough memory or disk, 6 the output exists,\n"
      "7 the input changed, 8 a limit of measure is broken, 130 and 143 interrupted.\n\n"
      "Environment: NIBBLE_CPU_TARGET is the CPU target to run on, for tests and measurements; all write the same\n"
      "bytes, and nibble formats lists them. NIBBLE_CUDA_LIBRARY is the libnibble_cuda.so to load for --device.");
  for (const auto add : nibble::cli::commands) add(app);

  try {
    std::vector<std::string> arguments = nibble::cli::with_dashes({argv + 1, argv + argc});
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(std::move(arguments));
  } catch (const CLI::Success& success) {
    app.exit(success);  // --help and --version
  } catch (const CLI::ParseError& error) {
    throw nibble::Error(nibble::Errc::usage, nibble::escaped(one_line(error.what())) + " (see nibble --help)");
  }
  // What was printed is part of the job: a full disk behind the pipe must not look like success.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw nibble::Error(nibble::Errc::io, "cannot write to standard output");
}

}  // namespace

int main(int argc, char** argv) {
  allow_many_files();
  keep_heap_small();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of write(), which cleans up
  try {
    run(argc, argv);
    return 0;
  } catch (const nibble::Error& error) {
    const bool stopped = error.code() == nibble::Errc::interrupted;
    return fail(stopped ? nibble::cli::interrupt_exit_code() : static_cast<int>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(static_cast<int>(nibble::Errc::no_space), "out of memory");
  } catch (const std::system_error& error) {
    return fail(static_cast<int>(nibble::Errc::io), error.what());  // fmt could not write to standard output
  } catch (const std::exception& error) {
    return fail(static_cast<int>(nibble::Errc::internal), error.what());
  }
}
