#include <stdexcept>
#include <string>
#include <vector>

#include "bench/kernels/ceilings/ceilings.hpp"

namespace nibble::bench {

void measure_library(const Cublas& cublas, Report& report) {
  const Buffer codebook = nested_codebook();
  for (const Shape& shape : shapes) {
    const std::vector<Buffer> originals = bf16_copies(random_bf16(shape.size(), 0.02f, 1));
    const auto quantized = random_copies<FourBit>(shape);
    const std::vector<u16> host_x = random_bf16(library_m.back() * shape.k, 1, 2);
    const Buffer x = Buffer::of(host_x);
    Buffer y(2 * library_m.back() * shape.n);
    // With one row the fused kernels need almost no workspace, so equal sizes mean that there is no library.
    if (Matmul(shape, 1, quantized[0], codebook, 1).workspace_bytes() ==
        Matmul(shape, 1, quantized[0], codebook, NIBBLE_NO_LIBRARY).workspace_bytes())
      throw std::runtime_error("nibble finds no cuBLASLt");
    for (const u64 m : library_m) {
      const std::string name = "library/bf16/nf4-nested/" + shape.text() + "/m" + std::to_string(m);
      report.attempt(name, [&] {
        const Matmul library(shape, m, quantized[0], codebook, 1),
            fused(shape, m, quantized[0], codebook, NIBBLE_NO_LIBRARY);
        const auto plan =
            fastest_plan(cublas, {.m = m, .n = shape.n, .k = shape.k}, originals, x, y, proposal_effort(m));
        const std::vector<Contender> contenders{
            {"nibble-library", quantized.size(),
             [&](std::size_t copy, cudaStream_t stream) { library.run(quantized[copy], codebook, x, y, stream); }},
            {"nibble-fused", quantized.size(),
             [&](std::size_t copy, cudaStream_t stream) { fused.run(quantized[copy], codebook, x, y, stream); }},
            {"cublaslt", originals.size(), [&](std::size_t copy, cudaStream_t stream) {
               cublas.run(*plan, originals[copy].as<void>(), x.as<void>(), y.as<void>(), stream);
             }}};
        for (std::size_t i = 0; i < 2; ++i) {
          y.poison();
          contenders[i].run(0, nullptr);
          check_product(
              shape, m, host_x, y, [&](u64 n) { return quantized[0].row(shape, n); }, contenders[i].by);
        }
        const std::vector<Times> times = measure(contenders, final_effort(m));
        for (std::size_t i = 0; i < contenders.size(); ++i) {
          Json line = line_of(name + "/" + contenders[i].by, times[i]);
          line["tflop_s"] = 2e-6 * static_cast<double>(m * shape.size()) / times[i].median;
          if (i == 0) {
            line["faster_than"]["nibble-fused"] = times[1].median / times[0].median;
            line["share_of_bf16"] = times[2].median / times[0].median;
          }
          Report::print(line);
        }
      });
    }
  }
}

}  // namespace nibble::bench
