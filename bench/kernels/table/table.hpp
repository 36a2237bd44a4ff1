// The speed table of the kernels: each operation on each shape, beside what the memory can do, cuBLASLt and
// bitsandbytes.
#pragma once
#include <string>
#include <vector>

#include "bench/kernels/table/session.hpp"

namespace nibble::bench {

/// Before a thing is timed, its result is compared with the plainest loops on the CPU, for a few rows.
class Table {
 public:
  /// Without contenders.
  Table() = default;
  /// Paths of libraries; an empty one of cuBLASLt's is looked for, an empty one of bitsandbytes' is not.
  Table(const std::string& cublaslt, const std::string& bitsandbytes);

  /// Prints the lines of these shapes: all operations, or products alone if blocks or rows are not the usual ones.
  /// Whether all results were right.
  bool run(const std::vector<Shape>& chosen);
  /// The lines of measure_several().
  bool run_several();

 private:
  template <class Body> bool run_between_bandwidths(Body&& body);
  void bandwidth(const std::string& suffix);
  void measure_shape(const Shape& shape);
  void measure_quantize(const Shape& shape, const std::vector<u16>& weights, const std::vector<Buffer>& originals,
                        std::vector<FourBit>& quantized);
  void measure_dequantize(const Shape& shape, const std::vector<FourBit>& quantized);
  void print_copies(const std::string& name, const std::vector<Contender>& contenders, u64 bytes) const;

  Session session_;
  std::string bitsandbytes_path_;
};

}  // namespace nibble::bench
