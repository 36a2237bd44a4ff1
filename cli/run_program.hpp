#pragma once

namespace nibble::cli {

/// All that the program does, but for what becomes of errors. Throws Error, std::bad_alloc, std::system_error.
void run_program(int argc, char** argv);

}  // namespace nibble::cli
