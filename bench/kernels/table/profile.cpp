#include "bench/kernels/table/profile.hpp"

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <regex>
#include <stdexcept>

#include "bench/kernels/operands/int8.hpp"

namespace nibble::bench {
namespace {

using Operation = ProfileCase::Operation;

Operation operation_of(const std::string& name) {
  if (name == "matmul") return Operation::matmul;
  if (name == "int8-matmul") return Operation::int8_matmul;
  return name == "dequantize" ? Operation::dequantize : Operation::quantize;
}

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
  static const std::regex pattern("(matmul|int8-matmul|dequantize|quantize),([0-9]{1,8})x([0-9]{1,8})(,([0-9]{1,4}))?");
  std::smatch found;
  if (std::regex_match(text, found, pattern)) {
    const auto operation = operation_of(found[1]);
    const bool is_matmul = operation == Operation::matmul || operation == Operation::int8_matmul;
    const Shape shape{std::stoull(found[2]), std::stoull(found[3])};
    const u64 m = found[5].matched ? std::stoull(found[5]) : 0;
    if (is_matmul == (m > 0) && shape.size() > 0 && shape.size() % nested_span == 0) return {operation, shape, m};
  }
  throw std::runtime_error(
      text + ": is not matmul,NxK,M, int8-matmul,NxK,M, dequantize,NxK or quantize,NxK with NxK a multiple of " +
      std::to_string(nested_span));
}

void profile(const ProfileCase& what) {
  constexpr auto nothing = Buffer::Fill::nothing;
  const u64 size = what.shape.size();
  const Buffer codebook = nested_codebook();
  switch (what.operation) {
    case Operation::matmul: {
      const FourBit weight = FourBit::random(what.shape, 1);
      const Buffer x = Buffer::of(random_bf16(what.m * what.shape.k, 1, 2)), y(2 * what.m * what.shape.n, nothing);
      const Matmul matmul(what.shape, what.m, weight, codebook);
      between_marks([&] { matmul.run(weight, codebook, x, y, nullptr); });
      break;
    }
    case Operation::int8_matmul: {
      const Int8 weight = Int8::random(what.shape, 1);
      const Buffer x = Buffer::of(random_bf16(what.m * what.shape.k, 1, 2)), y(2 * what.m * what.shape.n, nothing);
      const Int8Matmul matmul(what.shape, what.m, weight);
      between_marks([&] { matmul.run(weight, x, y, nullptr); });
      break;
    }
    case Operation::dequantize: {
      const FourBit weight = FourBit::random(what.shape, 1);
      const Buffer out(2 * size, nothing);
      between_marks([&] { dequantize(weight, what.shape, codebook, out, nullptr); });
      break;
    }
    case Operation::quantize: {
      const Buffer weights = Buffer::of(random_bf16(size, 0.02f, 1));
      const FourBit out(size, nothing);
      const Quantize quantize(size);
      between_marks([&] { quantize.run(weights, out, nullptr); });
      break;
    }
  }
}

}  // namespace nibble::bench
