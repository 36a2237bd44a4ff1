#include "bench/kernels/table/profile.hpp"

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <array>
#include <regex>
#include <stdexcept>
#include <vector>

#include "bench/kernels/operands/grouped.hpp"
#include "bench/kernels/operands/int8.hpp"

namespace nibble::bench {
namespace {

using Operation = ProfileCase::Operation;

struct Named {
  const char* name;
  Operation operation;
  bool is_matmul;
};
constexpr std::array<Named, 6> operations{{{"matmul", Operation::matmul, true},
                                           {"int8-matmul", Operation::int8_matmul, true},
                                           {"shared-matmul", Operation::shared_matmul, true},
                                           {"expert-matmul", Operation::expert_matmul, true},
                                           {"dequantize", Operation::dequantize, false},
                                           {"quantize", Operation::quantize, false}}};

template <class Launch> void between_marks(const Launch& launch) {
  Buffer(2 * uncached_bytes).poison();  // what the caches hold now is this
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaProfilerStart(), "cudaProfilerStart");
  launch();
  check(cudaGetLastError(), "the launch");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaProfilerStop(), "cudaProfilerStop");
}

constexpr auto nothing = Buffer::Fill::nothing;

void profile_several(const std::vector<Shape>& of, const std::vector<Shape>& of_weights, u64 m,
                     const Routing* routing) {
  const Buffer codebook = nested_codebook(), x = Buffer::of(random_bf16(m * of[0].k, 1, 2));
  std::vector<FourBit> weights;
  std::vector<Buffer> y;
  for (std::size_t i = 0; i < of.size(); ++i) {
    weights.push_back(FourBit::random(of_weights[i], i));
    y.emplace_back(2 * m * of[i].n, nothing);
  }
  const GroupedMatmul matmul(of, m, weights, routing, codebook, x, y);
  between_marks([&] { matmul.run(weights, routing, nullptr); });
}

}  // namespace

ProfileCase profile_case(const std::string& text) {
  static const std::regex pattern("([a-z0-9-]+),([0-9]{1,8})x([0-9]{1,8})(,([0-9]{1,4}))?");
  std::smatch found;
  if (std::regex_match(text, found, pattern)) {
    const std::string name = found[1];
    const Shape shape{std::stoull(found[2]), std::stoull(found[3])};
    const u64 m = found[5].matched ? std::stoull(found[5]) : 0;
    for (const Named& one : operations)
      if (one.name == name && one.is_matmul == (m > 0) && shape.size() > 0 && shape.size() % nested_span == 0)
        return {one.operation, shape, m};
  }
  std::string forms;
  for (const Named& one : operations) forms += std::string(one.name) + (one.is_matmul ? ",NxK,M " : ",NxK ");
  throw std::runtime_error(text + ": is none of " + forms + "with NxK a multiple of " + std::to_string(nested_span));
}

void profile(const ProfileCase& what) {
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
    case Operation::shared_matmul: {
      const std::vector<Shape> of = shared_shapes(what.shape);
      profile_several(of, of, what.m, nullptr);
      break;
    }
    case Operation::expert_matmul: {
      const Routing routing(what.m, 0);
      profile_several({what.shape}, {shape_of_experts(what.shape)}, routing.m, &routing);
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
