// Compensation of one weight, for bench/compensation.py: reads a weight [n, k] and a second moment [k, k] as raw fp32
// and fp64 numbers, writes the decoded weight, and prints a JSON object of seconds.
#include <oneapi/tbb/parallel_for.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "core/workers.hpp"
#include "nibble/error.hpp"
#include "nibble/int8.hpp"
#include "quant/quantizers/compensation/compensation.hpp"

namespace {

using namespace nibble;

template <class T> std::vector<T> read(const std::string& path, std::size_t n) {
  std::vector<T> numbers(n);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(numbers.data()), static_cast<std::streamsize>(n * sizeof(T))))
    throw nibble::Error(Errc::io, path + ": cannot read " + std::to_string(n) + " numbers");
  return numbers;
}

struct Job {
  std::string codec = "nf4:double-quant=no", weight, moment, out;
  std::size_t n = 0, k = 0;
  unsigned threads = 2;
  double damping = 0.01;
  bool largest_first = false;
};

// A time of day, and the processor time of all threads.
class Clock {
 public:
  [[nodiscard]] double seconds_since(const Clock& begin) const {
    return std::chrono::duration<double>(wall_ - begin.wall_).count();
  }
  [[nodiscard]] double processor_seconds_since(const Clock& begin) const {
    return static_cast<double>(processor_ - begin.processor_) / CLOCKS_PER_SEC;
  }

 private:
  std::chrono::steady_clock::time_point wall_ = std::chrono::steady_clock::now();
  std::clock_t processor_ = std::clock();
};

template <class F> void for_each_part(const Job& job, std::size_t part, F&& f) {
  tbb::parallel_for(std::size_t{0}, (job.n + part - 1) / part,
                    [&](std::size_t i) { f(i * part, std::min(part, job.n - i * part)); });
}

std::vector<float> four_bit(const Job& job, const FourBitCodec& codec, const InputFactor& factor,
                            std::span<const float> weights) {
  const std::size_t blocksize = codec.blocksize(), blocks = weights.size() / blocksize;
  std::vector<std::uint8_t> packed(weights.size() / 2), codes(codec.double_quant() ? blocks : 0);
  std::vector<float> absmax(blocks), decoded(weights.size());
  std::optional<NestedRange> range;
  if (codec.double_quant()) {
    encode_four_bit(codec.tables(), weights, blocksize, packed, absmax);
    range.emplace(absmax, codec.absmax_choice());
  }
  const FourBitCompensation compensation(codec, factor);
  for_each_part(job, 128, [&](std::size_t row, std::size_t rows) {
    const std::size_t at = row * job.k, n = rows * job.k, block = at / blocksize, of_rows = n / blocksize;
    compensation.encode(row, weights.subspan(at, n), range ? &*range : nullptr,
                        {std::span(packed).subspan(at / 2, n / 2), std::span(absmax).subspan(block, of_rows),
                         codes.empty() ? std::span<std::uint8_t>() : std::span(codes).subspan(block, of_rows)});
  });
  decode_four_bit(codec.tables(), packed, absmax, blocksize, decoded);
  return decoded;
}

std::vector<float> int8_rows(const Job& job, const InputFactor& factor, std::span<const float> weights) {
  std::vector<std::int8_t> codes(weights.size());
  std::vector<float> decoded(weights.size());
  for_each_part(job, 128, [&](std::size_t row, std::size_t rows) {
    std::vector<float> absmax(rows);
    for (std::size_t r = 0; r < rows; ++r) {
      bool plain = true;
      absmax[r] = int8::row_absmax(DType::f32, std::as_bytes(weights.subspan((row + r) * job.k, job.k)), plain);
    }
    compensate_int8(factor, row, weights.subspan(row * job.k, rows * job.k), absmax,
                    std::span(codes).subspan(row * job.k, rows * job.k));
    for (std::size_t r = 0; r < rows; ++r)
      int8::decode_row(std::span(codes).subspan((row + r) * job.k, job.k), absmax[r],
                       std::span(decoded).subspan((row + r) * job.k, job.k));
  });
  return decoded;
}

void run(const Job& job) {
  const auto weights = read<float>(job.weight, job.n * job.k);
  auto moment = read<double>(job.moment, job.k * job.k);
  const auto codec = make_codec(job.codec);
  const auto* const blocks = dynamic_cast<const FourBitCodec*>(codec.get());
  std::vector<float> decoded;
  Workers(job.threads).execute([&] {
    const Clock begin;
    const InputFactor factor(moment, job.k,
                             {blocks != nullptr ? blocks->blocksize() : job.k,
                              job.largest_first ? ColumnOrder::largest : ColumnOrder::stored, job.damping});
    const Clock factored;
    decoded = blocks != nullptr ? four_bit(job, *blocks, factor, weights) : int8_rows(job, factor, weights);
    const Clock end;
    std::printf(
        "{\"factor_s\": %.4f, \"code_s\": %.4f, \"factor_processor_s\": %.4f, \"code_processor_s\": %.4f, \"damping\": "
        "%g}\n",
        factored.seconds_since(begin), end.seconds_since(factored), factored.processor_seconds_since(begin),
        end.processor_seconds_since(factored), factor.damping());
  });
  if (!job.out.empty())
    std::ofstream(job.out, std::ios::binary)
        .write(reinterpret_cast<const char*>(decoded.data()),
               static_cast<std::streamsize>(decoded.size() * sizeof(float)));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app;
  Job job;
  app.add_option("weight", job.weight)->required();
  app.add_option("moment", job.moment)->required();
  app.add_option("n", job.n)->required();
  app.add_option("k", job.k)->required();
  app.add_option("--codec", job.codec, "With its options, as of `nibble convert --to`");
  app.add_option("--threads", job.threads);
  app.add_option("--damping", job.damping);
  app.add_flag("--largest-first", job.largest_first, "Blocks and columns by the mean square of their inputs");
  app.add_option("--out", job.out, "The decoded weight, fp32");
  CLI11_PARSE(app, argc, argv);
  try {
    run(job);
  } catch (const nibble::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
