// What all parts of the speed table need: the contenders' libraries, bandwidths, and the members of a line.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/gpu/peers.hpp"
#include "bench/kernels/gpu/report.hpp"
#include "bench/kernels/operands/four_bit.hpp"

namespace nibble::bench {

struct Session {
  Report report;
  std::unique_ptr<Cublas> cublas;              // null if there is none
  std::unique_ptr<Bitsandbytes> bitsandbytes;  // the same
  Buffer codebook = nested_codebook();
  double copy_gb_s = 0, read_gb_s = 0, hbm_gb_s = nominal_gb_s();

  /// The contenders, without those for whose result of the first copy check_result(contender, name) throws.
  std::vector<Contender> right_ones(const std::string& name, const std::vector<Contender>& contenders, Buffer& out,
                                    const std::function<void(const Contender&, const std::string&)>& check_result);
};

double gb_s(u64 bytes, const Times& times);

/// Of what reads and writes so many bytes.
Json line_of(const std::string& name, const Times& times, u64 bytes);

/// How many times as fast as the others nibble is, if `own` is nibble.
void add_ratios(Json& line, const std::vector<Contender>& contenders, const std::vector<Times>& times, std::size_t own);

}  // namespace nibble::bench
