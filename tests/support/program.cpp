#include "tests/support/program.hpp"

#include <sys/wait.h>

#include <cstdlib>

#include "tests/support/corrupt.hpp"

namespace nibble::test {

// Not a definition of the build system: the objects of the tests are those of other builds, too (tests/sanitizers.sh).
std::string built(std::string_view path) {
  static const auto directory = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  return directory / path;
}

Outcome run_command(const std::filesystem::path& directory, const std::string& command) {
  const TempDir streams;
  const std::string in_directory = "cd '" + directory.string() + "' && { " + command + "\n} >'" +
                                   (streams.path() / "out").string() + "' 2>'" + (streams.path() / "err").string() +
                                   "' </dev/null";
  const int status = std::system(in_directory.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(streams.path() / "out"),
          read_file(streams.path() / "err")};
}

Outcome run_program(const std::filesystem::path& directory, const std::string& arguments,
                    const std::string& environment) {
  return run_command(directory, environment + " '" + program() + "' " + arguments);
}

}  // namespace nibble::test
