// The command line as CLI11 sees it: the program's own help, its subcommands, and what is wrong with arguments.

#include "cli/run_program.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/options/usage_errors.hpp"
#include "nibble/error.hpp"
#include "nibble/version.hpp"

namespace nibble::cli {
void run_program(std::vector<std::string> arguments, Terminal& terminal) {
  CLI::App app("Converts model weights to smaller number formats, and measures what that costs in accuracy.", "nibble");
  app.set_version_flag("--version", fmt::format("nibble {}", version()));
  app.set_help_all_flag("--help-all", "Print the help of all subcommands and exit");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  nibble convert Llama-3.1-8B Llama-3.1-8B-nf4 --to nf4\n"
      "  nibble inspect Llama-3.1-8B-nf4\n\n"
      "Exit codes: 0 done, 1 a bug, 2 usage, 3 bad input, 4 I/O, 5 not enough memory or disk, 6 the output exists,\n"
      "7 the input changed, 8 a tensor breaks a limit of measure, 129 to 143 stopped by a signal.\n\n"
      "Environment: NIBBLE_CPU_TARGET selects one of the CPU targets that `nibble formats` lists, for tests and\n"
      "measurements; all of them write the same bytes. NIBBLE_CUDA_LIBRARY names the libnibble_cuda.so for --device.");
  for (const auto add : commands) add(app, terminal);

  arguments = with_help_option(app, with_dashes(std::move(arguments)));
  refuse_empty_values(app, arguments);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::Success& success) {
    std::ostringstream text;  // --help and --version
    app.exit(success, text, text);
    terminal.write(text.view());
  } catch (const CLI::ParseError& error) {
    throw Error(Errc::usage, explain(app, arguments, error));
  }
  // What was printed is part of the job: a full disk behind the pipe must not look like success.
  if (!terminal.flush()) throw Error(Errc::io, "cannot write to standard output");
}

}  // namespace nibble::cli
