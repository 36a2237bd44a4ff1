#pragma once

namespace nibble::cli {

/// Everything that the program does except reporting errors. Throws Error, std::bad_alloc, std::system_error.
void run_program(int argc, char** argv);

}  // namespace nibble::cli
