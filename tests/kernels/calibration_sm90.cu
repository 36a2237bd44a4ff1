// What came with sm_90, on random inputs. Code for sm_80 traps there, and newer devices than those of sm_90a run that:
// so these kernels say needs_sm90a, and the device is asked for their code before they are launched.
#include <stdexcept>
#include <utility>

#include "kernels/device/device.hpp"
#include "tests/kernels/calibration_inputs.hpp"
#include "tests/kernels/device/cluster_exchange.hpp"
#include "tests/kernels/device/warpgroup_multiply.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device::test {
namespace {

// Kernels are templates, because nvcc warns of a plain one whose body no code for sm_80 uses.
constexpr u32 copied_rows = 16, ring_rounds = 16, held_values = 160;

/// A kernel of the layer's own tests, as code for sm_90a alone.
template <class Kernel> struct OnSm90a : Kernel { static constexpr bool needs_sm90a = true; };

// An mbarrier, a copy of consecutive bytes and one of a box that reaches over the edges of its matrix.
template <u32 Rows> struct CalibrateCopies {
  static constexpr bool needs_sm90a = true;
  static constexpr u32 threads = 64, box_bytes = Rows * 128;
  TensorMap map;
  Global<const u8> in;
  Global<u32> out;  // 2 * box_bytes a block
  NIBBLE_DEVICE void operator()() const {
    const Shared<u8> all = dynamic_shared_aligned(1024);
    const Shared<u64> mbarrier = all.part(2 * box_bytes, 8).as<u64>();
    if (thread_id() == 0) {
      mbar_init(mbarrier, 1);
      mbar_init_fence();
      mbar_expect_tx_arrive(mbarrier, 2 * box_bytes);
      tma_load_2d(all, map, static_cast<i32>(block_x()) * 32 - 24, static_cast<i32>(block_x()) * 8 - 5, mbarrier);
      bulk_g2s(all + box_bytes, in + block_x() * 64, box_bytes, mbarrier);
    }
    sync_threads();
    mbar_wait(mbarrier, 0);
    for (u32 i = thread_id(); i < box_bytes / 2; i += threads)
      st(out + (i64{block_x()} * (box_bytes / 2) + i), lds((all + i * 4).as<u32>()));
  }
};

std::vector<u32> bulk_copies(const Inputs& inputs) {
  using Kernel = CalibrateCopies<copied_rows>;
  const auto in = DeviceArray<u32>::input(as_words(inputs.words));
  constexpr u32 count = 8;
  const auto out = DeviceArray<u32>::output(std::size_t{count} * Kernel::box_bytes / 2);
  const auto map = make_tensor_map(in.data(), 2, 200, 50, 512, 64, copied_rows, Swizzle::bytes128);
  launch({count}, 2 * Kernel::box_bytes + 8 + 1024, nullptr,
         Kernel{map, reinterpret_cast<const u8*>(in.data()), out.data()});
  return out.to_host();
}

// A ring of two stages that one warp fills and another empties: both mbarriers of a stage complete many times.
template <u32 Rounds> struct CalibrateRing {
  static constexpr bool needs_sm90a = true;
  static constexpr u32 threads = 64, stage_bytes = 512;
  Global<const u8> in;  // Rounds * stage_bytes a block
  Global<u32x4> out;    // 32 a block
  NIBBLE_DEVICE void operator()() const {
    const Shared<u8> all = dynamic_shared();
    const Shared<u64> full = all.part(2 * stage_bytes, 16).as<u64>(),
                      empty = all.part(2 * stage_bytes + 16, 16).as<u64>();
    if (thread_id() == 0) {
      for (u32 s = 0; s < 2; ++s) {
        mbar_init(full + s, 1);
        mbar_init(empty + s, 32);
      }
      mbar_init_fence();
    }
    sync_threads();
    if (warp_id() == 0) {
      if (lane_id() != 0) return;
      for (u32 i = 0; i < Rounds; ++i) {
        mbar_wait(empty + i % 2, (i / 2 & 1) ^ 1);
        mbar_expect_tx_arrive(full + i % 2, stage_bytes);
        bulk_g2s(all + i % 2 * stage_bytes, in + (i64{block_x()} * Rounds + i) * stage_bytes, stage_bytes,
                 full + i % 2);
      }
      return;
    }
    u32x4 sum{};
    for (u32 i = 0; i < Rounds; ++i) {
      mbar_wait(full + i % 2, i / 2 & 1);
      const u32x4 v = lds((all + (i % 2 * stage_bytes + lane_id() * 16)).as<u32x4>());
      mbar_arrive(empty + i % 2);
      sum = {sum.x * 5 + v.x, sum.y * 5 + v.y, sum.z * 5 + v.z, sum.w * 5 + v.w};
    }
    st(out + (i64{block_x()} * 32 + lane_id()), sum);
  }
};

std::vector<u32> mbarrier_ring(const Inputs& inputs) {
  using Kernel = CalibrateRing<ring_rounds>;
  const auto in = DeviceArray<u32x4>::input(inputs.words);
  constexpr u32 count = 16;
  const auto out = DeviceArray<u32x4>::output(32 * count);
  launch({count}, 2 * Kernel::stage_bytes + 32, nullptr, Kernel{reinterpret_cast<const u8*>(in.data()), out.data()});
  return as_words(out.to_host());
}

template <u32 Cluster> std::vector<u32> cluster(const Inputs& inputs) {
  using Kernel = OnSm90a<ClusterExchange<Cluster>>;
  std::vector<u32> words = as_words(inputs.words);
  words.resize(Kernel::threads * 64);
  const auto in = DeviceArray<u32>::input(words);
  const auto out = DeviceArray<u32>::output(words.size());
  launch({64}, Kernel::shared_bytes, nullptr, Kernel{{in.data(), out.data()}});
  return out.to_host();
}

// Blocks put values in their own shared memory and read each other's, round after round: the protocol of the sums of
// clusters. mbarriers say when the values are there, and when they have been read. A thread stores what it has read
// before it says so.
template <u32 Cluster> struct CalibrateClusterRounds {
  static constexpr bool needs_sm90a = true;
  static constexpr u32 threads = 64, cluster = Cluster, rounds = 8;
  Global<const u32> in;  // threads of each block
  Global<u32x4> out;     // rounds * threads of each block
  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(u32x2, own, threads);
    NIBBLE_SHARED(u64, sent, 1);
    NIBBLE_SHARED(u64, taken, 1);
    u32 value = ldg(in + (i64{block_x()} * threads + thread_id()));
    if (thread_id() == 0) {
      mbar_init(sent, Cluster);
      mbar_init(taken, Cluster * (threads / 32));
      mbar_init_fence();
    }
    cluster_arrive_relaxed();  // the mbarriers are there
    sync_threads();
    for (u32 round = 0; round < rounds; ++round) {
      if (round > 0)
        mbar_wait_cluster(taken, (round - 1) % 2);
      else
        cluster_wait();
      sts(own + thread_id(), u32x2{value, ~value});
      sync_threads();
      if (thread_id() < Cluster) mbar_arrive_cluster(mapa(sent, thread_id()));
      mbar_wait_cluster(sent, round % 2);
      u32x4 read{value, 0, 0, 0};
      for (u32 block = 0; block < Cluster; ++block) {
        const u32x2 theirs = ld_cluster(mapa(own, block) + (thread_id() * 5 + block) % threads);
        read = {read.x * 3 + theirs.x, read.y * 5 + theirs.y, theirs.x, theirs.y};
      }
      st(out + ((i64{block_x()} * rounds + round) * threads + thread_id()), read);
      sync_warp();
      if (lane_id() < Cluster) mbar_arrive_cluster_after_reads(mapa(taken, lane_id()));
      value = read.x ^ read.y;
    }
    mbar_wait_cluster(taken, (rounds - 1) % 2);  // others may still read
  }
};

template <u32 Cluster> std::vector<u32> cluster_rounds(const Inputs& inputs) {
  using Kernel = CalibrateClusterRounds<Cluster>;
  constexpr u32 count = 64;
  std::vector<u32> words = as_words(inputs.words);
  words.resize(count * Kernel::threads);
  const auto in = DeviceArray<u32>::input(words);
  const auto out = DeviceArray<u32x4>::output(words.size() * Kernel::rounds);
  launch({count}, 0, nullptr, Kernel{in.data(), out.data()});
  return as_words(out.to_host());
}

template <WgmmaForm form> std::vector<u32> wgmma(const Inputs& inputs) {
  using Kernel = OnSm90a<WarpgroupMultiply<form>>;
  const auto in = DeviceArray<u32>::input(as_words(inputs.words));
  const auto out = DeviceArray<float>::output(64 * Kernel::n);
  launch({1}, Kernel::shared_bytes, nullptr, Kernel{{in.data(), out.data()}});
  return as_words(out.to_host());
}

// One warpgroup gives registers to two others, which need them for as many values as they have.
template <u32 Values> struct CalibrateRegisters {
  static constexpr bool needs_sm90a = true;
  static constexpr u32 threads = 384;
  Global<const u32> in;
  Global<u32> out;
  NIBBLE_DEVICE void operator()() const {
    const i64 own = i64{block_x()} * threads + thread_id();
    if (warp_id() / 4 == 0) {
      setmaxnreg_dec<40>();
      st(out + own, ldg(in + own));
      return;
    }
    setmaxnreg_inc<232>();
    u32 value[Values], sum = 0;
    NIBBLE_UNROLL for (u32 i = 0; i < Values; ++i) value[i] = ldg(in + (own + i * 100));
    sync_warp();
    NIBBLE_UNROLL for (u32 i = 0; i < Values; ++i) sum = sum * 3 + value[Values - 1 - i];
    st(out + own, sum);
  }
};

std::vector<u32> set_registers(const Inputs& inputs) {
  using Kernel = CalibrateRegisters<held_values>;
  const auto in = DeviceArray<u32>::input(as_words(inputs.words));
  constexpr u32 count = 32;
  const auto out = DeviceArray<u32>::output(count * Kernel::threads);
  launch({count}, 0, nullptr, Kernel{in.data(), out.data()});
  return out.to_host();
}

// A chain of launches, each of which may begin before the one before has ended, and reads what that one wrote.
struct CalibrateDependencies {
  static constexpr u32 threads = threads_per_block;
  Global<const u32> factor;
  Global<u32> from, to;
  NIBBLE_DEVICE void operator()() const {
    const u32 own = block_x() * threads + thread_id(), other = (own * 5 + 1) % (grid_x() * threads);
    u32 by = ldg(factor + own);
    dependency_launch();
    for (u32 i = 0; i < own % 64; ++i) by = by * by + 1;  // blocks end at different times
    dependency_wait();
    st(to + own, ld(from + other) * 3 + by);
  }
};

std::vector<u32> dependent_launches(const Inputs& inputs) {
  std::vector<u32> words = as_words(inputs.words);
  words.resize(threads_per_block * blocks);
  const auto factor = DeviceArray<u32>::constant(words);
  const auto a = DeviceArray<u32>::workspace(words), b = DeviceArray<u32>::workspace(words);
  for (int i = 0; i < 20; ++i) {
    launch({blocks}, 0, nullptr, CalibrateDependencies{factor.data(), a.data(), b.data()}, Overlap::yes);
    launch({blocks}, 0, nullptr, CalibrateDependencies{factor.data(), b.data(), a.data()}, Overlap::yes);
  }
  return a.to_host();
}

template <u32 Cluster> Entry cluster_entry(const char* name) {
  return {name, cluster<Cluster>, is_loaded<OnSm90a<ClusterExchange<Cluster>>>};
}
template <u32 Cluster> Entry cluster_rounds_entry(const char* name) {
  return {name, cluster_rounds<Cluster>, is_loaded<CalibrateClusterRounds<Cluster>>};
}
template <WgmmaForm form> Entry wgmma_entry(const char* name) {
  return {name, wgmma<form>, is_loaded<OnSm90a<WarpgroupMultiply<form>>>};
}

}  // namespace
}  // namespace nibble::device::test

namespace nibble::test::NIBBLE_CALIBRATION_SIDE {

std::vector<Entry> from_sm90() {
  using namespace nibble::device::test;
  using device::Major;
  return {{"bulk_copies", bulk_copies, device::is_loaded<CalibrateCopies<copied_rows>>},
          {"mbarrier_ring", mbarrier_ring, device::is_loaded<CalibrateRing<ring_rounds>>},
          {"dependent_launches", dependent_launches},
          cluster_entry<2>("cluster_of_2"),
          cluster_entry<4>("cluster_of_4"),
          cluster_entry<8>("cluster_of_8"),
          cluster_rounds_entry<2>("rounds_of_a_cluster_of_2"),
          cluster_rounds_entry<4>("rounds_of_a_cluster_of_4"),
          cluster_rounds_entry<8>("rounds_of_a_cluster_of_8"),
          {"set_registers", set_registers, device::is_loaded<CalibrateRegisters<held_values>>},
          wgmma_entry<WgmmaForm{.n = 8}>("wgmma_bf16_n8"),
          wgmma_entry<WgmmaForm{.n = 16, .is_f16 = true}>("wgmma_f16_n16"),
          wgmma_entry<WgmmaForm{.n = 32}>("wgmma_bf16_n32"),
          wgmma_entry<WgmmaForm{.n = 64, .is_f16 = true}>("wgmma_f16_n64"),
          wgmma_entry<WgmmaForm{.n = 96}>("wgmma_bf16_n96"),
          wgmma_entry<WgmmaForm{.n = 128, .is_f16 = true}>("wgmma_f16_n128"),
          wgmma_entry<WgmmaForm{.n = 192}>("wgmma_bf16_n192"),
          wgmma_entry<WgmmaForm{.n = 256}>("wgmma_bf16_n256"),
          wgmma_entry<WgmmaForm{.n = 256, .is_f16 = true}>("wgmma_f16_n256"),
          wgmma_entry<WgmmaForm{.n = 64, .replaces = true}>("wgmma_scale_d"),
          wgmma_entry<WgmmaForm{.n = 32, .a = Major::mn}>("wgmma_bf16_a_along_m"),
          wgmma_entry<WgmmaForm{.n = 16, .b = Major::mn}>("wgmma_bf16_b_along_n_n16"),
          wgmma_entry<WgmmaForm{.n = 128, .is_f16 = true, .b = Major::mn}>("wgmma_f16_b_along_n_n128"),
          wgmma_entry<WgmmaForm{.n = 256, .b = Major::mn}>("wgmma_bf16_b_along_n_n256"),
          wgmma_entry<WgmmaForm{.n = 64, .is_f16 = true, .a = Major::mn, .b = Major::mn}>("wgmma_f16_both_along_mn"),
          wgmma_entry<WgmmaForm{.n = 8, .is_f16 = true, .a_in_registers = true}>("wgmma_f16_registers_n8"),
          wgmma_entry<WgmmaForm{.n = 16, .a_in_registers = true}>("wgmma_bf16_registers_n16"),
          wgmma_entry<WgmmaForm{.n = 32, .a_in_registers = true}>("wgmma_bf16_registers_n32"),
          wgmma_entry<WgmmaForm{.n = 32, .is_f16 = true, .a_in_registers = true}>("wgmma_f16_registers_n32"),
          wgmma_entry<WgmmaForm{.n = 64, .a_in_registers = true}>("wgmma_bf16_registers_n64"),
          wgmma_entry<WgmmaForm{.n = 64, .is_f16 = true, .a_in_registers = true}>("wgmma_f16_registers_n64"),
          wgmma_entry<WgmmaForm{.n = 96, .a_in_registers = true}>("wgmma_bf16_registers_n96"),
          wgmma_entry<WgmmaForm{.n = 96, .is_f16 = true, .a_in_registers = true}>("wgmma_f16_registers_n96"),
          wgmma_entry<WgmmaForm{.n = 128, .a_in_registers = true}>("wgmma_bf16_registers_n128"),
          wgmma_entry<WgmmaForm{.n = 128, .is_f16 = true, .a_in_registers = true}>("wgmma_f16_registers_n128"),
          wgmma_entry<WgmmaForm{.n = 192, .is_f16 = true, .a_in_registers = true}>("wgmma_f16_registers_n192"),
          wgmma_entry<WgmmaForm{.n = 256, .a_in_registers = true}>("wgmma_bf16_registers_n256"),
          wgmma_entry<WgmmaForm{.n = 128, .b = Major::mn, .a_in_registers = true, .replaces = true}>(
              "wgmma_bf16_registers_b_along_n")};
}

namespace {

std::vector<Entry> all_entries() {
  std::vector<Entry> all = every_device();
  for (const Entry& entry : from_sm90()) all.push_back(entry);
  return all;
}

Entry entry_of(const std::string& name) {
  for (const Entry& entry : all_entries())
    if (entry.name == name) return entry;
  throw std::out_of_range("no function is called " + name);
}

}  // namespace
}  // namespace nibble::test::NIBBLE_CALIBRATION_SIDE

namespace nibble::test {

#if defined(__CUDACC__)
std::vector<std::uint32_t> calibrate_gpu(const std::string& name, std::uint32_t seed) {
  return gpu::entry_of(name).run(gpu::Inputs(seed));
}

bool is_on_gpu(const std::string& name) { return gpu::entry_of(name).is_loaded(); }

unsigned gpu_capability() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? device::capability() : 0;
}
#else
std::vector<std::uint32_t> calibrate_simulator(const std::string& name, std::uint32_t seed) {
  return simulated::entry_of(name).run(simulated::Inputs(seed));
}

std::vector<std::string> calibrations() {
  std::vector<std::string> all;
  for (const simulated::Entry& entry : simulated::all_entries()) all.emplace_back(entry.name);
  return all;
}
#endif

}  // namespace nibble::test
