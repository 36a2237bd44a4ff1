// What the programs for a GPU print: lines of JSON, and what failed.
#pragma once
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/kernels/gpu/gpu.hpp"

namespace nibble::bench {

using Json = nlohmann::ordered_json;

constexpr int no_gpu_code = 77;

/// Prints `no GPU: nothing was measured` if there is none.
bool has_gpu();

/// The device, its clocks and the versions of CUDA: the first line of a program.
Json device_line();

/// The bandwidth of the memory, by its clock and width: 10^9 bytes a second.
double nominal_gb_s();

Json line_of(const std::string& name, const Times& times);

/// What main() returns: the result of run(), or 1 if it throws, which is then a line on stderr.
int result_of(int (*run)(int argc, char** argv), int argc, char** argv);

class Report {
 public:
  /// One line on stdout, at once.
  static void print(const Json& line);

  /// What fails is a line, too, and does not stop the rest: time on a GPU is dear. Returns whether it did not fail.
  template <class Body> bool attempt(const std::string& name, Body&& body) {
    try {
      body();
      return true;
    } catch (const std::exception& error) {
      print({{"name", name}, {"error", error.what()}});
      all_right_ = false;
      return false;
    }
  }
  [[nodiscard]] bool all_right() const { return all_right_; }

 private:
  bool all_right_ = true;
};

}  // namespace nibble::bench
