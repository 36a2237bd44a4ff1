// wgmma in all its forms, and registers that warpgroups hand to each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "kernels/device/device.hpp"
#include "tests/kernels/device/warpgroup_multiply.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device::test {
namespace {

using nibble::test::in_schedules;
using nibble::test::Outcome;
using nibble::test::outcome;
using nibble::test::survivors;
using simulator::Fault;
using simulator::ScopedOptions;

template <WgmmaForm form, PlantedWgmma fault = PlantedWgmma::nothing> bool multiply() {
  using Kernel = WarpgroupMultiply<form, fault>;
  std::mt19937 random(3);
  std::vector<u32> words((64 + form.n) * 32);
  for (u32& word : words) word = static_cast<u32>(random());
  const auto element = [&](u32 row, u32 k) {
    const u32 word = words[row * 32 + k / 2];
    return k % 2 == 0 ? Kernel::low_element(word) : Kernel::high_element(word);
  };
  std::vector<float> expected;
  for (u32 row = 0; row < 64; ++row)
    for (u32 column = 0; column < form.n; ++column) {
      float sum = 0;
      for (u32 k = 0; k < 64; ++k) sum += element(row, k) * element(64 + column, k);
      expected.push_back(sum);
    }
  const auto in = DeviceArray<u32>::input(words);
  const auto out = DeviceArray<float>::output(expected.size());
  launch({1}, Kernel::shared_bytes, nullptr, Kernel{in.data(), out.data()});
  return out.to_host() == expected;
}

TEST(Warpgroup, EveryFormIsExact) {
  const auto all = [] {
    EXPECT_TRUE((multiply<WgmmaForm{.n = 8}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 8, .cluster_barrier = true}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 96, .is_f16 = true}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 128}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 192, .replaces = true}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 256, .is_f16 = true}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 16, .a = Major::mn}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 32, .b = Major::mn, .replaces = true}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 64, .is_f16 = true, .a = Major::mn, .b = Major::mn}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 192, .b = Major::mn}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 256, .a = Major::mn, .b = Major::mn}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 64, .a_in_registers = true}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 128, .is_f16 = true, .a_in_registers = true, .replaces = true}>()));
    EXPECT_TRUE((multiply<WgmmaForm{.n = 256, .b = Major::mn, .a_in_registers = true}>()));
  };
  in_schedules(all);
  const ScopedOptions scope({.detect_races = false});
  all();
}

template <WgmmaForm form, PlantedWgmma fault> void expect_fault(const char* text) {
  const Outcome seen = outcome([] { return multiply<form, fault>(); });
  EXPECT_EQ(seen.passed, 0) << text;
  EXPECT_EQ(seen.reports.empty(), *text == 0);
  EXPECT_THAT(seen.reports, testing::Each(testing::HasSubstr(text)));
}

TEST(Warpgroup, FaultsAreCaught) {
  constexpr WgmmaForm registers{.n = 16, .a_in_registers = true};
  expect_fault<registers, PlantedWgmma::no_register_fence>("no wgmma_fence of these registers of A");
  expect_fault<registers, PlantedWgmma::old_registers_again>("no wgmma_fence of these registers of A");
  expect_fault<registers, PlantedWgmma::early_register_write>(
      "registers of A were written while the wgmma was in flight");
  expect_fault<registers, PlantedWgmma::scales_differ>("the lanes' scale_d differs");
  expect_fault<WgmmaForm{.n = 16, .a = Major::mn}, PlantedWgmma::lost_k_group>("");  // a wrong result
}

TEST(Warpgroup, EverySynchronizationIsNeeded) {
  EXPECT_THAT(survivors([] { return multiply<WgmmaForm{.n = 16, .b = Major::mn, .a_in_registers = true}>(); }),
              testing::IsEmpty());
  EXPECT_THAT(survivors([] { return multiply<WgmmaForm{.n = 16, .a = Major::mn}>(); }), testing::IsEmpty());
}

// Of 168 registers each, one warpgroup keeps 40 and the other two take what it gives up.
template <u32 Takes, u32 Keeps = 40> struct HandOver {
  static constexpr u32 threads = 384;
  u32 giver;
  NIBBLE_DEVICE void operator()() const {
    if (warp_id() / 4 == giver)
      setmaxnreg_dec<Keeps>();
    else
      setmaxnreg_inc<Takes>();
  }
};

template <class Kernel> Outcome hand_over() {
  return outcome([] {
    for (const u32 giver : {0u, 1u, 2u}) launch({1}, 0, nullptr, Kernel{giver});
    return true;
  });
}

TEST(Warpgroup, RegistersAreThoseThatOthersGaveUp) {
  EXPECT_EQ(hand_over<HandOver<232>>().passed, 1);
  in_schedules([] { launch({2}, 0, nullptr, HandOver<232>{2}); });
  EXPECT_EQ(hand_over<HandOver<168>>().passed, 1);  // nothing to wait for
  const Outcome too_many = hand_over<HandOver<240>>();
  EXPECT_EQ(too_many.passed, 0);
  EXPECT_THAT(too_many.faults, testing::Each(Fault::deadlock));
  EXPECT_THAT(too_many.reports, testing::Each(testing::HasSubstr("wait in setmaxnreg at")));
  const Outcome too_few = hand_over<HandOver<232, 48>>();
  EXPECT_THAT(too_few.faults, testing::Each(Fault::deadlock));
  EXPECT_EQ(too_few.passed, 0);
}

TEST(Warpgroup, RegistersGrowByIncAndShrinkByDec) {
  const Outcome shrinks = hand_over<HandOver<160>>();
  EXPECT_EQ(shrinks.passed, 0);
  EXPECT_THAT(shrinks.reports, testing::Each(testing::HasSubstr("setmaxnreg from 168 to 160 registers")));
  const Outcome grows = hand_over<HandOver<168, 176>>();
  EXPECT_EQ(grows.passed, 0);
  EXPECT_THAT(grows.reports, testing::Each(testing::HasSubstr("setmaxnreg from 168 to 176 registers")));
}

TEST(Warpgroup, IsWhatSm90aAloneHas) {
  for (const unsigned capability : {80u, 100u}) {
    const auto faults = [&](auto&& run) { return outcome(run, 1, {.capability = capability}).faults; };
    EXPECT_THAT(faults([] { return multiply<WgmmaForm{.n = 16}>(); }), testing::ElementsAre(Fault::misuse));
    EXPECT_THAT(faults([] { return launch({1}, 0, nullptr, HandOver<168, 168>{0}), true; }),
                testing::ElementsAre(Fault::misuse));
  }
}

}  // namespace
}  // namespace nibble::device::test
