#pragma once

#include <filesystem>
#include <string>

namespace nibble::test {

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
