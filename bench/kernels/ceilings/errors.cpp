#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/kernels/ceilings/ceilings.hpp"
#include "nibble/bf16.hpp"

namespace nibble::bench {
namespace {

struct Errors {
  double squares = 0, largest = 0;
  void add(double error) {
    squares += error * error;
    largest = std::max(largest, std::fabs(error));
  }
};

// Of y in bf16, on the rows of the weight whose exact sums these are: sums[i * m + token] belongs to rows[i].
Errors errors_of(const Buffer& y, const Shape& shape, u64 m, const std::vector<u64>& rows,
                 const std::vector<double>& sums) {
  const auto values = y.to_host<u16>(0, m * shape.n);
  Errors errors;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (u64 token = 0; token < m; ++token)
      errors.add(double{bf16::to_float(values[token * shape.n + rows[i]])} - sums[i * m + token]);
  return errors;
}

}  // namespace

void measure_errors(const Cublas& cublas, Report& report) {
  constexpr u64 checked_rows = 256, max_tokens = decode_m.back();
  const Buffer codebook = nested_codebook();
  for (const Shape& shape : shapes) {
    const std::vector<u16> host_x = random_bf16(max_tokens * shape.k, 1, 2);
    const Buffer original = Buffer::of(random_bf16(shape.size(), 0.02f, 1)), x = Buffer::of(host_x);
    const FourBit weight(shape.size());
    std::vector<Buffer> dequantized;
    dequantized.emplace_back(2 * shape.size());
    std::vector<u64> rows(checked_rows);
    std::vector<double> sums;  // of max_tokens tokens for each of the rows
    const bool is_ready = report.attempt("errors/" + shape.text(), [&] {
      Quantize(shape.size()).run(original, weight, nullptr);
      dequantize(weight, shape, codebook, dequantized[0], nullptr);
      check_dequantized(weight, shape.size(), dequantized[0], "dequantize");
      for (u64 i = 0; i < checked_rows; ++i) {
        rows[i] = i * (shape.n - 1) / (checked_rows - 1);
        const std::vector<float> row = weight.row(shape, rows[i]);
        for (u64 token = 0; token < max_tokens; ++token) {
          double sum = 0;
          for (u64 k = 0; k < shape.k; ++k) sum += double{row[k]} * double{bf16::to_float(host_x[token * shape.k + k])};
          sums.push_back(sum);
        }
      }
    });
    if (!is_ready) continue;
    for (const u64 m : decode_m) {
      const std::string name = "errors/" + shape.text() + "/m" + std::to_string(m);
      report.attempt(name, [&] {
        std::vector<double> used;
        double squares = 0;
        for (u64 i = 0; i < checked_rows; ++i)
          for (u64 token = 0; token < m; ++token) {
            used.push_back(sums[i * max_tokens + token]);
            squares += used.back() * used.back();
          }
        const Buffer ours(2 * m * shape.n), theirs(2 * m * shape.n);
        Matmul(shape, m, weight, codebook).run(weight, codebook, x, ours, nullptr);
        const auto plan =
            fastest_plan(cublas, {.m = m, .n = shape.n, .k = shape.k}, dequantized, x, theirs, proposal_effort(m));
        cublas.run(*plan, dequantized[0].as<void>(), x.as<void>(), theirs.as<void>(), nullptr);
        const Errors own = errors_of(ours, shape, m, rows, used), peer = errors_of(theirs, shape, m, rows, used);
        Report::print({{"name", name},
                       {"unit", "relative to the root mean square of y"},
                       {"rms", std::sqrt(own.squares / squares)},
                       {"rms_cublaslt", std::sqrt(peer.squares / squares)},
                       {"rms_ratio", std::sqrt(own.squares / peer.squares)},
                       {"largest", own.largest / std::sqrt(squares / static_cast<double>(used.size()))},
                       {"largest_ratio", own.largest / peer.largest}});
        // 1 % of the root mean square, as check_product() allows; not so for a NaN either.
        require(own.squares <= 1e-4 * squares, name);
      });
    }
  }
}

}  // namespace nibble::bench
