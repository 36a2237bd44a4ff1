// What each instruction computes, and what of it the simulator refuses. tests/kernels/calibration.cu compares the same
// functions with a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/device/device.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device::test {
namespace {

using nibble::test::outcome;
using simulator::Fault;

// Runs body(thread_id()) in one warp and returns what each lane gave.
template <class T, class Body> struct Warp {
  static constexpr u32 threads = 32;
  Global<T> out;
  const Body* body;
  NIBBLE_DEVICE void operator()() const { st(out + thread_id(), (*body)(thread_id())); }
};
template <class T, class Body> std::vector<T> in_warp(const Body& body) {
  const auto out = DeviceArray<T>::output(32);
  launch({1}, 64 << 10, nullptr, Warp<T, Body>{out.data(), &body});
  return out.to_host();
}
template <class Body> Fault fault_in_warp(const Body& body) {
  try {
    in_warp<u32>([&](u32 lane) {
      body(lane);
      return 0u;
    });
  } catch (const simulator::Failure& failure) {
    return failure.fault();
  }
  ADD_FAILURE() << "nothing was found";
  return Fault::misuse;
}

TEST(Instructions, Shuffles) {
  const auto value = [](u32 lane) { return u64{lane} << 40 | lane; };
  const auto idx = in_warp<u64>([&](u32 lane) { return shfl_idx(~0u, value(lane), lane * 7 + 3); });
  const auto exclusive = in_warp<u64>([&](u32 lane) { return shfl_xor(~0u, value(lane), 5); });
  const auto down = in_warp<u64>([&](u32 lane) { return shfl_down(~0u, value(lane), 3); });
  for (u32 lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(idx[lane], value((lane * 7 + 3) % 32));
    EXPECT_EQ(exclusive[lane], value(lane ^ 5));
    EXPECT_EQ(down[lane], value(lane + 3 < 32 ? lane + 3 : lane));
  }
  const auto halves = in_warp<u32>([](u32 lane) {  // two groups of lanes, each with its own mask
    return lane < 16 ? shfl_idx(0x0000ffff, lane, 15 - lane) : shfl_idx(0xffff0000, lane, 47 - lane);
  });
  for (u32 lane = 0; lane < 32; ++lane) EXPECT_EQ(halves[lane], lane < 16 ? 15 - lane : 47 - lane);
}

TEST(Instructions, Votes) {
  EXPECT_EQ(in_warp<u32>([](u32 lane) { return ballot(~0u, lane % 3 == 0); }), std::vector<u32>(32, 0x49249249));
  EXPECT_EQ(in_warp<u32>([](u32 lane) { return any(~0u, lane == 7) ? 1u : 0u; }), std::vector<u32>(32, 1));
  EXPECT_EQ(in_warp<u32>([](u32 lane) { return all(~0u, lane != 7) ? 1u : 0u; }), std::vector<u32>(32, 0));
}

TEST(Instructions, LanesThatDoNotMeetAreReported) {
  EXPECT_EQ(fault_in_warp([](u32 lane) { return lane < 31 ? shfl_idx(~0u, lane, 0) : 0u; }), Fault::divergence);
  EXPECT_EQ(fault_in_warp([](u32 lane) { return shfl_idx(0x7fffffff, lane, 0); }), Fault::divergence);
  EXPECT_EQ(fault_in_warp([](u32 lane) { return lane < 8 ? shfl_idx(0xff, lane, 9) : 0u; }), Fault::divergence);
  EXPECT_EQ(fault_in_warp([](u32 lane) { lane < 16 ? sync_warp() : (void)shfl_idx(~0u, lane, 0); }), Fault::divergence);
  // An aligned operation from two lines. (Not in EXPECT_EQ: a macro is all on one line.)
  const auto from_two_lines = [](u32 lane) {
    const Shared<u8> all = dynamic_shared();
    if (lane < 16)
      (void)ldsm_x4(all);
    else
      (void)ldsm_x4(all);
  };
  EXPECT_EQ(fault_in_warp(from_two_lines), Fault::divergence);
}

TEST(Instructions, LoadMatrix) {
  // Element (row, column) of matrix i is 256 * i + 8 * row + column.
  const auto fill = [](u32 lane) {
    const Shared<u16> all = dynamic_shared().as<u16>();
    for (u32 column = 0; column < 8; ++column)
      sts(all + (lane * 8 + column), u16(256 * (lane / 8) + 8 * (lane % 8) + column));
    sync_warp();
    return dynamic_shared() + lane * 16;
  };
  const auto pair = [](u32 low, u32 high) { return low | high << 16; };
  for (u32 i = 0; i < 4; ++i) {
    const auto select = [i](u32x4 r) { return i == 0 ? r.x : i == 1 ? r.y : i == 2 ? r.z : r.w; };
    const auto plain = in_warp<u32>([&](u32 lane) { return select(ldsm_x4(fill(lane))); });
    const auto transposed = in_warp<u32>([&](u32 lane) { return select(ldsm_x4_t(fill(lane))); });
    const auto plain2 = in_warp<u32>([&](u32 lane) {
      const u32x2 r = ldsm_x2(fill(lane));
      return i % 2 == 0 ? r.x : r.y;
    });
    const auto transposed2 = in_warp<u32>([&](u32 lane) {
      const u32x2 r = ldsm_x2_t(fill(lane));
      return i % 2 == 0 ? r.x : r.y;
    });
    for (u32 lane = 0; lane < 32; ++lane) {
      const u32 g = lane / 4, q = lane % 4, row = 256 * i + 8 * g + 2 * q, column = 256 * i + 16 * q + g;
      EXPECT_EQ(plain[lane], pair(row, row + 1));
      EXPECT_EQ(transposed[lane], pair(column, column + 8));
      if (i < 2) {
        EXPECT_EQ(plain2[lane], pair(row, row + 1));
        EXPECT_EQ(transposed2[lane], pair(column, column + 8));
      }
    }
  }
}

// mma's fragments come from the matrices by the table of the PTX ISA, written down here once more.
template <class Half, class To, class Multiply> void expect_multiplies(To to_half, Multiply multiply) {
  std::mt19937 random(4);
  float a[16][16], b[16][8], c[16][8];
  const auto fill = [&](auto& matrix) {
    for (auto& row : matrix)
      for (float& value : row) value = static_cast<float>(static_cast<int>(random() % 21) - 10) / 4;
  };
  fill(a), fill(b), fill(c);
  const auto pack = [&](float low, float high) { return to_half(low).bits | u32{to_half(high).bits} << 16; };
  const auto d = in_warp<f32x4>([&](u32 lane) {
    const u32 g = lane / 4, q = 2 * (lane % 4);
    const u32 a_fragment[4] = {pack(a[g][q], a[g][q + 1]), pack(a[g + 8][q], a[g + 8][q + 1]),
                               pack(a[g][q + 8], a[g][q + 9]), pack(a[g + 8][q + 8], a[g + 8][q + 9])};
    const u32 b_fragment[2] = {pack(b[q][g], b[q + 1][g]), pack(b[q + 8][g], b[q + 9][g])};
    float sums[4] = {c[g][q], c[g][q + 1], c[g + 8][q], c[g + 8][q + 1]};
    multiply(sums, a_fragment, b_fragment);
    return f32x4{sums[0], sums[1], sums[2], sums[3]};
  });
  for (u32 row = 0; row < 16; ++row)
    for (u32 column = 0; column < 8; ++column) {
      float sum = c[row][column];  // exact: multiples of 1/16 below 2^12
      for (u32 k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      const f32x4 lane = d[row % 8 * 4 + column / 2];
      const float values[4] = {lane.x, lane.y, lane.z, lane.w};
      EXPECT_EQ(values[row / 8 * 2 + column % 2], sum) << row << ", " << column;
    }
}

TEST(Instructions, Multiply) {
  expect_multiplies<bf16>([](float value) { return to_bf16(value); },
                          [](auto& d, const auto& a, const auto& b) { mma_bf16_16816(d, a, b); });
  expect_multiplies<f16>([](float value) { return to_f16(value); },
                         [](auto& d, const auto& a, const auto& b) { mma_f16_16816(d, a, b); });
}

TEST(Instructions, CopiesLandAtTheWait) {
  std::vector<u8> bytes(64);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = u8(i + 1);
  const auto in = DeviceArray<u8>::input(bytes);
  const Global<const u8> from(in.data());
  const auto out = in_warp<u32>([&](u32 lane) {
    const Shared<u8> all = dynamic_shared();
    cp_async16(all + lane * 16, from + lane % 4 * 16, lane % 4 * 4);
    cp_commit();
    cp_async16_evict_first(all + (512 + lane * 16), from);
    cp_commit();
    cp_wait<1>();
    const u32 value = lds((all + (lane * 16 + 4)).as<u32>());  // its own copy: no barrier is needed
    cp_wait<0>();
    return value;
  });
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 first = lane % 4 * 16 + 5;
    EXPECT_EQ(out[lane], lane % 4 < 2 ? 0 : first | (first + 1) << 8 | (first + 2) << 16 | (first + 3) << 24);
  }
  EXPECT_EQ(fault_in_warp([&](u32 lane) {
              cp_async16(dynamic_shared() + lane * 16, from);
              cp_commit();
              (void)lds(dynamic_shared() + lane * 16);
            }),
            Fault::in_flight);
  EXPECT_EQ(fault_in_warp([&](u32 lane) { cp_async16(dynamic_shared() + lane * 16, from); }), Fault::in_flight);
  EXPECT_EQ(fault_in_warp([&](u32 lane) { cp_async16(dynamic_shared() + lane * 16, from + lane); }), Fault::misaligned);
}

TEST(Instructions, CopiesOf4BytesAreFilledWithZeros) {
  std::vector<u8> bytes(64);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = u8(i + 1);
  const auto in = DeviceArray<u8>::input(bytes);
  const Global<const u8> from(in.data());
  const auto out = in_warp<u32>([&](u32 lane) {
    const Shared<u8> own = dynamic_shared() + lane * 4;  // beside those of other lanes, which are under way
    cp_async4(own, from + lane % 16 * 4, lane % 5);
    cp_commit();
    cp_wait<0>();
    return lds(own.as<u32>());
  });
  for (u32 lane = 0; lane < 32; ++lane)
    for (u32 i = 0; i < 4; ++i)
      EXPECT_EQ(out[lane] >> 8 * i & 255, i < lane % 5 ? lane % 16 * 4 + i + 1 : 0) << lane << ", byte " << i;
  EXPECT_EQ(fault_in_warp([&](u32 lane) { cp_async4(dynamic_shared() + lane * 4, from + 2); }), Fault::misaligned);
  EXPECT_EQ(fault_in_warp([&](u32 lane) { cp_async4(dynamic_shared() + (lane * 4 + 2), from); }), Fault::misaligned);
  EXPECT_EQ(fault_in_warp([&](u32 lane) { cp_async4(dynamic_shared() + lane * 4, from, 5); }), Fault::misuse);
  EXPECT_EQ(fault_in_warp([&](u32 lane) { cp_async4(dynamic_shared() + lane * 4, from + 64); }), Fault::global_bounds);
}

TEST(Instructions, BulkCopiesReportToTheirMbarrier) {
  const auto in = DeviceArray<u8>::input(std::vector<u8>(256, 9));
  const Global<const u8> from(in.data());
  const auto copy = [&](u32 lane, u32 expected) {
    const Shared<u8> all = dynamic_shared().part(0, 256);
    const Shared<u64> mbarrier = dynamic_shared().part(256, 8).as<u64>();
    if (lane == 0) {
      mbar_init(mbarrier, 1);
      mbar_init_fence();
      mbar_expect_tx_arrive(mbarrier, expected);
      bulk_g2s(all, from, 256, mbarrier);
    }
    sync_warp();
    mbar_wait(mbarrier, 0);
    return u32{lds(all + (lane * 8 + 1))};
  };
  EXPECT_EQ(in_warp<u32>([&](u32 lane) { return copy(lane, 256); }), std::vector<u32>(32, 9));
  EXPECT_EQ(fault_in_warp([&](u32 lane) { copy(lane, 272); }), Fault::deadlock);
}

// The second warp tells the first that a value is there.
struct Handover {
  static constexpr u32 threads = 96;
  Global<u32> out;
  u32 count;
  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(u32, value, 1);
    if (warp_id() == 1) {
      if (lane_id() == 0) sts(value, 42u);
      bar_arrive(3, count);
    } else if (warp_id() == 0) {
      bar_sync(3, 64);
      st(out + thread_id(), lds(value));
    }
  }
};

TEST(Instructions, NamedBarriersOfPartsOfTheBlock) {
  nibble::test::in_schedules([] {
    const auto out = DeviceArray<u32>::output(32);
    launch({1}, 0, nullptr, Handover{out.data(), 64});
    EXPECT_EQ(out.to_host(), std::vector<u32>(32, 42));
  });
  const DeviceArray<u32> out(32);
  const auto seen = outcome([&] { return launch({1}, 0, nullptr, Handover{out.data(), 96}), true; });
  EXPECT_EQ(seen.passed, 0);
}

TEST(Instructions, Atomics) {
  const auto sum = DeviceArray<u64>::workspace({5, 5});
  const auto old = in_warp<u64>([&](u32 lane) {
    atomic_max(Global<u64>(sum.data()) + 1, u64{lane} << 33);
    return atomic_add(Global<u64>(sum.data()), u64{lane} << 33);
  });
  EXPECT_EQ(sum.to_host(), (std::vector<u64>{(u64{496} << 33) + 5, u64{31} << 33}));
  EXPECT_EQ(*std::min_element(old.begin(), old.end()), 5u);
  const auto floats = DeviceArray<float>::workspace({0.5f});
  in_warp<float>([&](u32) { return atomic_add(Global<float>(floats.data()), 1.0f); });
  EXPECT_EQ(floats.to_host(), std::vector<float>{32.5f});
}

TEST(Instructions, BytesInSharedMemoryRace) {
  EXPECT_EQ(in_warp<u32>([](u32 lane) {  // neighbours of one byte each
              const Shared<u8> all = dynamic_shared();
              sts(all + lane, u8(lane));
              return u32{lds(all + lane)};
            })[31],
            31u);
  EXPECT_EQ(fault_in_warp([](u32 lane) {
              sts(dynamic_shared() + lane, u8(lane));
              sts(dynamic_shared() + (lane ^ 1), u8(lane));
            }),
            Fault::race);
}

TEST(Instructions, BitsOfBytes) {
  EXPECT_EQ(prmt(0x33221100, 0x77665544, 0x7531), 0x77553311u);
  EXPECT_EQ(prmt(0x80221100, 0x77665584, 0xCB30), 0xFFFF8000u);  // 0x8 spreads the sign
  const u32 a = 0xdeadbeef, b = 0x12345678, c = 0x0f0f3355;
  EXPECT_EQ((lop3<0xea>(a, b, c)), (a & b) | c);
  EXPECT_EQ((lop3<0x96>(a, b, c)), a ^ b ^ c);
  EXPECT_EQ((lop3<0x6a>(a, b, c)), (a & b) ^ c);
}

// Every value, and around the middle between every two neighbours: nearest, ties to even.
TEST(Instructions, TheLargerOfTwoKeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(max_nan(-1.0f, -2.0f), -1.0f);
  EXPECT_EQ(max_nan(1.0f, inf), inf);
  EXPECT_EQ(bits_of(max_nan(-0.0f, 0.0f)), 0u);
  EXPECT_EQ(bits_of(max_nan(0.0f, -0.0f)), 0u);
  EXPECT_EQ(bits_of(max_nan(-0.0f, -0.0f)), 0x80000000u);
  EXPECT_TRUE(std::isnan(max_nan(nan, inf)));
  EXPECT_TRUE(std::isnan(max_nan(inf, nan)));
}

TEST(Instructions, ReciprocalsAreRoundedOnce) {
  EXPECT_EQ(rcp_rn(3.0f), 1.0f / 3.0f);
  EXPECT_EQ(rcp_rn(1e-38f), 1.0f / 1e-38f);
  EXPECT_EQ(rcp_rn(3e38f), 1.0f / 3e38f);  // subnormal
  EXPECT_EQ(rcp_rn(1e-45f), std::numeric_limits<float>::infinity());
}

TEST(Instructions, PackedDifferencesAreRoundedOnce) {
  EXPECT_EQ(sub_bf16x2(pack_bf16(3, -1), pack_bf16(1, 2)), pack_bf16(2, -3));
  EXPECT_EQ(sub_f16x2(pack_f16(3, -1), pack_f16(1, 2)), pack_f16(2, -3));
  // Ties: 256 - 1/2 between bf16's 255 and 256, 2048 - 1/2 between fp16's 2047 and 2048.
  EXPECT_EQ(sub_bf16x2(pack_bf16(256, 255), pack_bf16(0.5f, 0.5f)), pack_bf16(256, 254));
  EXPECT_EQ(sub_f16x2(pack_f16(2048, 2047), pack_f16(0.5f, 0.5f)), pack_f16(2048, 2046));
  EXPECT_EQ(sub_bf16x2(0, 0x80000000), 0u);                   // 0 - -0, 0 - 0
  EXPECT_EQ(sub_f16x2(0x80008000, 0), 0x80008000u);           // -0 - 0
  EXPECT_EQ(sub_f16x2(0x00010001, 0x00020003), 0x80018002u);  // subnormal
}

template <class Half, class To> void expect_rounding(To to_half, u16 infinity) {
  for (u32 bits = 0; bits < infinity; ++bits) {
    const float low = to_float(Half{u16(bits)});
    EXPECT_EQ(to_half(low).bits, bits);
    EXPECT_EQ(to_half(-low).bits, bits | 0x8000);
    // The step before infinity is as large as the one below it.
    const double high = bits + 1 < infinity ? double{to_float(Half{u16(bits + 1)})}
                                            : 2.0 * double{low} - double{to_float(Half{u16(bits - 1)})};
    const auto middle = static_cast<float>((double{low} + high) / 2);
    const u32 even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(to_half(middle).bits, even) << bits;
    ASSERT_EQ(to_half(std::nextafter(middle, 0.0f)).bits, middle == 0 ? 0u : bits) << bits;
    ASSERT_EQ(to_half(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, bits + 1) << bits;
  }
  EXPECT_EQ(to_half(std::numeric_limits<float>::infinity()).bits, infinity);
  EXPECT_EQ(to_half(-std::numeric_limits<float>::infinity()).bits, infinity | 0x8000);
  EXPECT_EQ(to_half(std::numeric_limits<float>::max()).bits, infinity);
  EXPECT_EQ(to_half(-std::numeric_limits<float>::quiet_NaN()).bits, 0x7fff);
  EXPECT_TRUE(std::isnan(to_float(Half{0x7fff})));
}

TEST(Instructions, ConversionsRoundToNearestEven) {
  expect_rounding<f16>([](float value) { return to_f16(value); }, 0x7c00);
  expect_rounding<bf16>([](float value) { return to_bf16(value); }, 0x7f80);
  EXPECT_EQ(pack_f16(1.0f, -2.0f), 0xC0003C00u);
  EXPECT_EQ(pack_bf16(1.0f, -2.0f), 0xC0003F80u);
}

}  // namespace
}  // namespace nibble::device::test
