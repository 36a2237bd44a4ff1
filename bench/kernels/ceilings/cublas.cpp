#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include "bench/kernels/ceilings/ceilings.hpp"
#include "nibble/bf16.hpp"

namespace nibble::bench {
namespace {

using Type = Cublas::Type;

constexpr u64 max_m = ceiling_m.back();

std::string name_of(Type type) { return type == Type::bf16 ? "bf16" : type == Type::fp8 ? "fp8" : "s8"; }

u64 bytes_of(Type type) { return type == Type::bf16 ? 2 : 1; }

// Random values of the type as their bytes: bf16 nearly normal; fp8 of magnitudes below 2, no NaN; s8 of all values.
std::vector<u8> random_values(Type type, u64 count, u64 seed) {
  std::vector<u8> bytes(count * bytes_of(type));
  if (type == Type::bf16) {
    const std::vector<u16> values = random_bf16(count, 1, seed);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  std::mt19937_64 random(seed);
  const u64 mask = type == Type::fp8 ? 0xbfbfbfbfbfbfbfbf : ~u64{0};
  for (u64 i = 0; i + 8 <= bytes.size(); i += 8) {
    const u64 bits = random() & mask;
    std::memcpy(&bytes[i], &bits, 8);
  }
  return bytes;
}

double value_at(Type type, const std::vector<u8>& bytes, u64 i) {
  if (type == Type::s8) return static_cast<std::int8_t>(bytes[i]);
  if (type == Type::fp8) {  // e4m3, finite: 4 bits of exponent with bias 7, 3 of mantissa
    const int exponent = bytes[i] >> 3 & 15, mantissa = bytes[i] & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return bytes[i] & 0x80 ? -magnitude : magnitude;
  }
  u16 bits = 0;
  std::memcpy(&bits, &bytes[2 * i], 2);
  return double{bf16::to_float(bits)};
}

// A few rows and columns of y against sums in fp64. Sums of integers are exact. 3 % of the root mean square is more
// than any order of fp32 sums or the short sums of fp8 lose, and less than a wrong row does.
void check_some(const Cublas::Product& product, const std::vector<u8>& w, const std::vector<u8>& x, const Buffer& y,
                const std::string& what) {
  const u64 inner = product.backward ? product.n : product.k, columns = product.backward ? product.k : product.n;
  double squares = 0, errors = 0;
  for (const u64 m : {u64{0}, product.m / 2, product.m - 1}) {
    const auto row = [&]() -> std::function<double(u64)> {
      if (product.type == Type::s8)
        return [values = y.to_host<std::int32_t>(m * columns, columns)](u64 i) { return double(values[i]); };
      return [values = y.to_host<u16>(m * columns, columns)](u64 i) { return double{bf16::to_float(values[i])}; };
    }();
    for (u64 column = 0; column < columns; column += columns / 7) {
      double sum = 0;
      for (u64 i = 0; i < inner; ++i)
        sum += value_at(product.type, x, m * inner + i) *
               value_at(product.type, w, product.backward ? i * product.k + column : column * product.k + i);
      squares += sum * sum;
      errors += (row(column) - sum) * (row(column) - sum);
    }
  }
  require(product.type == Type::s8 ? errors == 0 : errors <= 1e-3 * squares, what);
}

}  // namespace

void measure_cublas(const Cublas& cublas, Type type, bool backward, Report& report) {
  for (const Shape& shape : shapes) {
    const u64 inner = backward ? shape.n : shape.k, columns = backward ? shape.k : shape.n;
    const std::vector<u8> host_w = random_values(type, shape.size(), 1), host_x = random_values(type, max_m * inner, 2);
    std::vector<Buffer> weights;
    for (std::size_t i = 0; i < copies_of(host_w.size()); ++i) weights.push_back(Buffer::of(host_w));
    const Buffer x = Buffer::of(host_x);
    Buffer y(max_m * columns * (type == Type::s8 ? 4 : 2));
    for (const u64 m : ceiling_m) {
      const Cublas::Product product{m, shape.n, shape.k, type, backward};
      const std::string name =
          "cublaslt/" + name_of(type) + (backward ? "-nn/" : "-nt/") + shape.text() + "/m" + std::to_string(m);
      std::shared_ptr<const Cublas::Plan> plan;
      try {
        plan = fastest_plan(cublas, product, weights, x, y, proposal_effort(m));
      } catch (const std::exception& error) {
        Report::print({{"name", name}, {"error", error.what()}});
        check(cudaDeviceSynchronize(), "after it");  // an error that stays ends the program
        continue;
      }
      report.attempt(name, [&] {
        y.poison();
        cublas.run(*plan, weights[0].as<void>(), x.as<void>(), y.as<void>(), nullptr);
        check_some(product, host_w, host_x, y, name);
        const Times times = measure({{"cublaslt", weights.size(),
                                      [&](std::size_t copy, cudaStream_t stream) {
                                        cublas.run(*plan, weights[copy].as<void>(), x.as<void>(), y.as<void>(), stream);
                                      }}},
                                    final_effort(m))[0];
        Json line = line_of(name, times);
        line["tflop_s"] = 2e-6 * static_cast<double>(m * shape.size()) / times.median;
        Report::print(line);
      });
    }
  }
}

void measure_scratch(const Cublas& cublas, Report& report) {
  const Buffer codebook = nested_codebook();
  for (const Shape& shape : shapes) {
    const std::vector<Buffer> originals = bf16_copies(random_bf16(shape.size(), 0.02f, 1));
    const auto quantized = random_copies<FourBit>(shape);
    const Buffer scratch(2 * shape.size());
    const Buffer x = Buffer::of(random_bf16(max_m * std::max(shape.n, shape.k), 1, 2));
    const Buffer y(2 * max_m * std::max(shape.n, shape.k));
    for (const bool backward : {false, true})
      for (const u64 m : scratch_m) {
        const std::string name =
            std::string("scratch/bf16-") + (backward ? "nn/" : "nt/") + shape.text() + "/m" + std::to_string(m);
        report.attempt(name, [&] {
          const Cublas::Product product{.m = m, .n = shape.n, .k = shape.k, .backward = backward};
          const auto plan = fastest_plan(cublas, product, originals, x, y, proposal_effort(m));
          const std::vector<Contender> contenders{
              {"cublaslt", originals.size(),
               [&](std::size_t copy, cudaStream_t stream) {
                 cublas.run(*plan, originals[copy].as<void>(), x.as<void>(), y.as<void>(), stream);
               }},
              {"dequantize-cublaslt", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                 dequantize(quantized[copy], shape, codebook, scratch, stream);
                 cublas.run(*plan, scratch.as<void>(), x.as<void>(), y.as<void>(), stream);
               }}};
          contenders[1].run(0, nullptr);
          check_dequantized(quantized[0], shape.size(), scratch, name);
          const std::vector<Times> times = measure(contenders, final_effort(m));
          for (std::size_t i = 0; i < contenders.size(); ++i) {
            Json line = line_of(name + "/" + contenders[i].by, times[i]);
            line["tflop_s"] = 2e-6 * static_cast<double>(m * shape.size()) / times[i].median;
            if (i == 1) line["share_of_bf16"] = times[0].median / times[1].median;
            Report::print(line);
          }
        });
      }
  }
}

}  // namespace nibble::bench
