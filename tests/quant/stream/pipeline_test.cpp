#include "quant/stream/pipeline.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "core/workers.hpp"
#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::pipeline_test {
namespace {

using test::error_of;

struct Tensor {
  std::uint64_t elements;
  std::uint64_t batch_weights;
};

struct Batch {
  Tensor* tensor = nullptr;
  std::uint64_t first = 0;
  std::uint64_t weights = 0;
  std::uint64_t seen = 0;  // by the second stage
};

// The batches that a pipeline of these tensors accounts for, as text.
std::string run(std::vector<Tensor> tensors, std::size_t tokens, unsigned threads) {
  std::string accounted;
  std::size_t next = 0;
  std::atomic<std::size_t> in_flight = 0, most = 0;
  Workers(threads).execute([&] {
    run_pipeline<Batch>(tokens, {.check = [] {},
                                 .next_tensor = [&] { return next < tensors.size() ? &tensors[next++] : nullptr; },
                                 .work =
                                     [&](Batch& batch) {
                                       const std::size_t now = ++in_flight;
                                       std::size_t before = most;
                                       while (before < now && !most.compare_exchange_weak(before, now)) {
                                       }
                                       batch.seen = batch.first + 1;
                                       --in_flight;
                                     },
                                 .account =
                                     [&](Batch& batch) {
                                       EXPECT_EQ(batch.seen, batch.first + 1);
                                       accounted += std::to_string(batch.tensor - tensors.data()) + ":" +
                                                    std::to_string(batch.first) + "+" + std::to_string(batch.weights) +
                                                    " ";
                                     }});
  });
  EXPECT_LE(most, std::min<std::size_t>(tokens, threads));
  return accounted;
}

TEST(Pipeline, CutsTensorsAndAccountsInOrder) {
  for (const std::size_t tokens : {1U, 2U, 7U})
    for (const unsigned threads : {1U, 4U})
      EXPECT_EQ(run({{10, 4}, {0, 4}, {3, 4}, {8, 4}}, tokens, threads), "0:0+4 0:4+4 0:8+2 1:0+0 2:0+3 3:0+4 3:4+4 ");
  EXPECT_EQ(run({}, 2, 2), "");
}

TEST(Pipeline, ManyBatchesGoThroughFewSlots) {
  std::string expected;
  for (int i = 0; i < 1000; ++i) expected += "0:" + std::to_string(i) + "+1 ";
  EXPECT_EQ(run({{1000, 1}}, 3, 4), expected);
}

// Whichever stage throws: the caller gets it, and nothing is accounted for after it.
TEST(Pipeline, ErrorsEndIt) {
  for (const std::string stage : {"check", "next", "work", "account"}) {
    Tensor tensor{100, 1};
    std::size_t checks = 0, accounted = 0;
    const auto fail_in = [&](const std::string& here) {
      if (stage == here) throw Error(Errc::io, "in " + here);
    };
    EXPECT_EQ(error_of(
                  [&] {
                    run_pipeline<Batch>(2, {.check =
                                                [&] {
                                                  if (++checks == 5) fail_in("check");
                                                },
                                            .next_tensor =
                                                [&] {
                                                  fail_in("next");
                                                  return &tensor;
                                                },
                                            .work =
                                                [&](Batch& batch) {
                                                  if (batch.first == 5) fail_in("work");
                                                },
                                            .account =
                                                [&](Batch& batch) {
                                                  if (batch.first == 5) fail_in("account");
                                                  ++accounted;
                                                }});
                  },
                  Errc::io),
              "in " + stage);
    EXPECT_LE(accounted, 5U);
  }
}

}  // namespace
}  // namespace nibble::pipeline_test
