#include "bench/kernels_profile.hpp"

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <regex>
#include <stdexcept>

namespace nibble::bench {
namespace {

template <class Launch> void between_marks(const Launch& launch) {
  Buffer(2 * uncached_bytes).poison();  // what the caches hold now is this
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaProfilerStart(), "cudaProfilerStart");
  launch();
  check(cudaGetLastError(), "the launch");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaProfilerStop(), "cudaProfilerStop");
}

}  // namespace

ProfileCase profile_case(const std::string& text) {
  static const std::regex pattern("(matmul|dequantize|quantize),([0-9]{1,8})x([0-9]{1,8})(,([0-9]{1,4}))?");
  std::smatch found;
  if (std::regex_match(text, found, pattern)) {
    const bool is_matmul = found[1] == "matmul";
    const Shape shape{std::stoull(found[2]), std::stoull(found[3])};
    const u64 m = found[5].matched ? std::stoull(found[5]) : 0;
    if (is_matmul == (m > 0) && shape.size() > 0 && shape.size() % nested_span == 0) {
      using Operation = ProfileCase::Operation;
      const Operation other = found[1] == "quantize" ? Operation::quantize : Operation::dequantize;
      return {is_matmul ? Operation::matmul : other, shape, m};
    }
  }
  throw std::runtime_error(text + ": is not matmul,NxK,M, dequantize,NxK or quantize,NxK with NxK a multiple of " +
                           std::to_string(nested_span));
}

void profile(const ProfileCase& what) {
  constexpr auto nothing = Buffer::Fill::nothing;
  const u64 size = what.shape.size();
  const Buffer codebook = nested_codebook();
  switch (what.operation) {
    case ProfileCase::Operation::matmul: {
      const FourBit weight = FourBit::random(what.shape, 1);
      const Buffer x = Buffer::of(random_bf16(what.m * what.shape.k, 1, 2)), y(2 * what.m * what.shape.n, nothing);
      const Matmul matmul(what.shape, what.m, weight, codebook);
      between_marks([&] { matmul.run(weight, codebook, x, y, nullptr); });
      break;
    }
    case ProfileCase::Operation::dequantize: {
      const FourBit weight = FourBit::random(what.shape, 1);
      const Buffer out(2 * size, nothing);
      between_marks([&] { dequantize(weight, what.shape, codebook, out, nullptr); });
      break;
    }
    case ProfileCase::Operation::quantize: {
      const Buffer weights = Buffer::of(random_bf16(size, 0.02f, 1));
      const FourBit out(size, nothing);
      const Quantize quantize(size);
      between_marks([&] { quantize.run(weights, out, nullptr); });
      break;
    }
  }
}

}  // namespace nibble::bench
