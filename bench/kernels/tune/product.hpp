// A product of which bench_tune measures several ways to compute it: its operands, and the loop that checks and times.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/gpu/gpu.hpp"
#include "bench/kernels/gpu/report.hpp"
#include "bench/kernels/gpu/sizes.hpp"
#include "bench/kernels/operands/operands.hpp"
#include "kernels/host/matmul/matmul_plan.hpp"

namespace nibble::bench {

/// A candidate whose result was right, the name of its line, and its times.
template <class Candidate> struct Timed {
  Candidate candidate;
  std::string name;
  Times times;
};

/// One shape and m. Weight is a FourBit or an Int8, and there are as many copies as one call after the other needs.
template <class Weight> class TunedProduct {
 public:
  TunedProduct(const Shape& shape, u64 m, const std::vector<Weight>& weights)
      : shape_(shape),
        m_(m),
        weights_(weights),
        host_x_(random_bf16(m * shape.k, 1, m)),
        x_(Buffer::of(host_x_)),
        y_(2 * m * shape.n),
        partial_(tuned_splits.back() * m * shape.n * sizeof(float), Buffer::Fill::nothing),
        counters_(Buffer::of(std::vector<std::uint32_t>(kernels::max_groups))) {}

  /// A TunedCall or an Int8Call. `more` is what the weight's argument() takes besides the shape.
  template <class Call, class... More> [[nodiscard]] Call call(std::size_t copy, const More&... more) const {
    return {.weight = weights_[copy].argument(shape_, more...),
            .m = static_cast<std::uint32_t>(m_),
            .x = x_.as<void>(),
            .y = y_.as<void>(),
            .partial = partial_.as<float>(),
            .counters = counters_.as<std::uint32_t>()};
  }

  /// Calls launch(candidate, copy, stream) once for each candidate and checks y; then measures those that were right,
  /// in turns. What fails is a line of the report.
  template <class Candidate, class NameOf, class Launch>
  std::vector<Timed<Candidate>> measured(Report& report, std::vector<Candidate> candidates, double seconds,
                                         NameOf&& name_of, Launch&& launch) {
    std::vector<Timed<Candidate>> right;
    std::vector<Contender> contenders;
    for (Candidate& candidate : candidates) {
      const std::string name = name_of(candidate);
      const bool is_right = report.attempt(name, [&] {
        y_.poison();
        launch(candidate, 0, nullptr);
        check_product(
            shape_, m_, host_x_, y_, [&](u64 n) { return weights_[0].row(shape_, n); }, name);
      });
      if (!is_right) continue;
      contenders.push_back({name, weights_.size(), [&launch, candidate](std::size_t copy, cudaStream_t stream) {
                              launch(candidate, copy, stream);
                            }});
      right.push_back({std::move(candidate), name, {}});
    }
    const std::vector<Times> times =
        measure(contenders, {.seconds = seconds, .min_replays = 5, .min_calls = tuned_calls});
    for (std::size_t i = 0; i < right.size(); ++i) right[i].times = times[i];
    return right;
  }

  /// The line of a result, with the shape and m.
  template <class Candidate> [[nodiscard]] Json line_of(const Timed<Candidate>& one) const {
    Json line = bench::line_of(one.name, one.times);
    line["shape"] = shape_.text();
    line["m"] = m_;
    return line;
  }
  /// 10^9 bytes a second: of the weight, x and y.
  template <class Candidate> [[nodiscard]] double gb_s(const Timed<Candidate>& one) const {
    const u64 bytes = weights_[0].bytes() + x_.bytes() + y_.bytes();
    return static_cast<double>(bytes) / one.times.median * 1e-3;
  }

 private:
  Shape shape_;
  u64 m_;
  const std::vector<Weight>& weights_;
  std::vector<u16> host_x_;
  Buffer x_, y_, partial_, counters_;
};

}  // namespace nibble::bench
