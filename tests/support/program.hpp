#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace nibble::test {

/// A file of the build directory that the tests are in, such as "tests/libnibble_cuda_simulated.so".
[[nodiscard]] std::string built(std::string_view path);

/// The command line program.
[[nodiscard]] inline std::string program() { return built("nibble"); }

/// How a run of a program ended, and what it said.
struct Outcome {
  int code = 0;  ///< 128 + signal if one ended it
  std::string out;
  std::string err;
};

/// Runs a command of the shell in a directory, where it leaves nothing of its own.
[[nodiscard]] Outcome run_command(const std::filesystem::path& directory, const std::string& command);

/// Runs `nibble ARGUMENTS` there; `environment` goes before it: assignments, or a program that runs it.
[[nodiscard]] Outcome run_program(const std::filesystem::path& directory, const std::string& arguments,
                                  const std::string& environment = {});

}  // namespace nibble::test
