// The functions of the device layer on random inputs. What a function leaves open is kept out of the results: the bits
// of a NaN, the order of the sums in mma (its inputs are small integers), and of atomic operations.
#include "tests/kernels/calibration.hpp"

#include <cstring>
#include <random>

#include "kernels/device/device.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device::test {
namespace {

constexpr u32 warps = 4, threads_per_block = 32 * warps, blocks = 64;

NIBBLE_DEVICE u32 result(float value) { return value == value ? bits_of(value) : 0x7fffffffu; }
NIBBLE_DEVICE u32x2 result(double value) {
  if (!(value == value)) return {0, 0x7fffffffu};
  NIBBLE_SHARED(double, slot, threads_per_block);
  sts(slot + thread_id(), value);
  return lds((slot + thread_id()).as<u32x2>());
}
NIBBLE_DEVICE double double_of(u32 low, u32 high) {
  NIBBLE_SHARED(u32x2, slot, threads_per_block);
  sts(slot + thread_id(), u32x2{low, high});
  return lds((slot + thread_id()).as<double>());
}
NIBBLE_DEVICE Shared<u8> own_rows() { return dynamic_shared().part(warp_id() * 512, 512); }
// Small integers, exact in both half formats.
NIBBLE_DEVICE float integer(u32 bits) { return static_cast<float>(static_cast<i32>(bits % 17) - 8); }

// One function each: four random words to four words, by all lanes of a warp.
struct float_arithmetic {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const float a = float_of(v.x), b = float_of(v.y), c = float_of(v.z);
    return {result(fma_rn(a, b, c)), result(mul_rn(a, b)), result(add_rn(a, b)), result(div_rn(a, b))};
  }
};
struct float_difference {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    // Exponents near to each other, so that sums cancel and round.
    const float a = float_of((v.x & 0x83ffffff) | 0x3c000000), b = float_of((v.y & 0x83ffffff) | 0x3c000000);
    return {result(sub_rn(a, b)), result(fma_rn(a, b, -mul_rn(a, b))), result(div_rn(a, b)), result(add_rn(a, b))};
  }
};
struct double_sum {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const u32x2 sum = result(add_rn(double_of(v.x, v.y), double_of(v.z, v.w)));
    const u32x2 quotient = result(div_rn(double_of(v.x, v.y), double_of(v.z, v.w)));
    return {sum.x, sum.y, quotient.x, quotient.y};
  }
};
struct double_product {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const u32x2 product = result(mul_rn(double_of(v.x, v.y), double_of(v.z, v.w)));
    const u32x2 fused = result(fma_rn(double_of(v.x, v.y), double_of(v.z, v.w), double_of(v.y, v.z)));
    return {product.x, product.y, fused.x, fused.y};
  }
};
struct conversions {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const float near = float_of((v.y & 0x8fffffff) | 0x30000000);  // 2^-31 to 2, around fp16's subnormals
    return {u32{to_bf16(float_of(v.x)).bits} | u32{to_f16(near).bits} << 16,
            result(to_float(f16{static_cast<u16>(v.z)})), result(to_float(bf16{static_cast<u16>(v.w)})),
            u32{to_f16(float_of(v.z)).bits}};
  }
};
struct packs {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const float a = float_of(v.x), b = float_of((v.y & 0x8fffffff) | 0x30000000);
    return {pack_bf16(a, b), pack_f16(a, b), pack_bf16(b, a), pack_f16(b, float_of((v.z & 0x83ffffff) | 0x44000000))};
  }
};
struct bytes {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    return {prmt(v.x, v.y, v.z), lop3<0xea>(v.x, v.y, v.z), lop3<0x1b>(v.x, v.y, v.w), lop3<0x96>(v.y, v.z, v.w)};
  }
};
struct shuffles {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    return {shfl_idx(~0u, v.x, v.y % 32), shfl_xor(~0u, v.x, 13u), shfl_down(~0u, v.x, 5u),
            thread_id() % 32 < 16 ? shfl_xor(0x0000ffffu, v.z, 3u) : shfl_xor(0xffff0000u, v.w, 7u)};
  }
};
struct votes {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    return {ballot(~0u, (v.x & 1) != 0), any(~0u, v.y % 32 == 0) ? 1u : 0u, all(~0u, v.z % 32 != 0) ? 1u : 0u, 0};
  }
};
struct shared_accesses {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const Shared<u8> row = own_rows() + lane_id() * 16;
    sts(row.as<u32x4>(), v);
    sts(row + 3, static_cast<u8>(v.y));
    sts((row + 6).as<u16>(), static_cast<u16>(v.x));
    sync_warp();
    const Shared<u8> other = own_rows() + (lane_id() ^ 1) * 16;
    return {lds((other + 8).as<u32>()), lds((other + 4).as<u16>()), lds(other + 3), lds(other.as<u32x2>()).y};
  }
};
struct load_matrix {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    sts((own_rows() + lane_id() * 16).as<u32x4>(), v);
    sync_warp();
    return ldsm_x4(own_rows() + (lane_id() * 7 % 32) * 16);
  }
};
struct load_matrix_transposed {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    sts((own_rows() + lane_id() * 16).as<u32x4>(), v);
    sync_warp();
    return ldsm_x4_t(own_rows() + (lane_id() * 7 % 32) * 16);
  }
};
struct load_two_matrices {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    sts((own_rows() + lane_id() * 16).as<u32x4>(), v);
    sync_warp();
    const u32x2 plain = ldsm_x2(own_rows() + lane_id() * 16);
    const u32x2 transposed = ldsm_x2_t(own_rows() + (lane_id() * 5 % 32) * 16);
    return {plain.x, plain.y, transposed.x, transposed.y};
  }
};
struct multiply_bf16 {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const u32 a[4] = {pack_bf16(integer(v.x), integer(v.x >> 8)), pack_bf16(integer(v.y), integer(v.y >> 8)),
                      pack_bf16(integer(v.x >> 16), integer(v.x >> 24)),
                      pack_bf16(integer(v.y >> 16), integer(v.y >> 24))};
    const u32 b[2] = {pack_bf16(integer(v.z), integer(v.z >> 8)), pack_bf16(integer(v.z >> 16), integer(v.z >> 24))};
    float d[4] = {integer(v.w), integer(v.w >> 8), integer(v.w >> 16), integer(v.w >> 24)};
    mma_bf16_16816(d, a, b);
    return {result(d[0]), result(d[1]), result(d[2]), result(d[3])};
  }
};
struct multiply_f16 {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const u32 a[4] = {pack_f16(integer(v.x), integer(v.x >> 8)), pack_f16(integer(v.y), integer(v.y >> 8)),
                      pack_f16(integer(v.x >> 16), integer(v.x >> 24)),
                      pack_f16(integer(v.y >> 16), integer(v.y >> 24))};
    const u32 b[2] = {pack_f16(integer(v.z), integer(v.z >> 8)), pack_f16(integer(v.z >> 16), integer(v.z >> 24))};
    float d[4] = {integer(v.w), integer(v.w >> 8), integer(v.w >> 16), integer(v.w >> 24)};
    mma_f16_16816(d, a, b);
    return {result(d[0]), result(d[1]), result(d[2]), result(d[3])};
  }
};

template <class Function> struct Calibrate {
  static constexpr u32 threads = threads_per_block;
  Global<const u32x4> in;
  Global<u32x4> out;
  NIBBLE_DEVICE void operator()() const {
    const i64 i = i64{block_x()} * threads + thread_id();
    st(out + i, Function::run(ldg(in + i)));
  }
};

// Copies of fewer than 16 bytes, loads of all kinds, atomic operations.
struct CalibrateMemory {
  static constexpr u32 threads = threads_per_block;
  Global<const u32x4> in;
  Global<u32x4> out;
  Global<u32> sums;  // 4: two sums, a maximum and its upper half
  NIBBLE_DEVICE void operator()() const {
    const i64 i = i64{block_x()} * threads + thread_id();
    const Shared<u8> all = dynamic_shared();
    const u32 kept = thread_id() % 5 * 4;
    cp_async16(all + thread_id() * 16, (in + i).as<const u8>(), kept);
    cp_commit();
    cp_async16_evict_first(all + (threads + thread_id()) * 16, (in + i).as<const u8>());
    cp_commit();
    cp_wait<0>();
    const u32x4 part = lds((all + thread_id() * 16).as<u32x4>());
    const u32x4 whole = lds((all + (threads + thread_id()) * 16).as<u32x4>());
    const Global<const u8> bytes = (in + i).as<const u8>();
    stcs(out + i, u32x4{part.x ^ whole.w, part.y ^ ldcs((bytes + 6).as<const u16>()), part.z ^ ld(bytes + 11), part.w});
    atomic_add(sums, whole.x);
    atomic_add(sums + 1, whole.y >> 7);
    atomic_max((sums + 2).as<u64>(), u64{whole.z} << 32 | whole.w);
  }
};

// An mbarrier, a copy of consecutive bytes and one of a box that reaches over the edges of its matrix.
struct CalibrateCopies {
  static constexpr u32 threads = 32, rows = 16, box_bytes = rows * 128;
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
    sync_warp();
    mbar_wait(mbarrier, 0);
    for (u32 i = thread_id(); i < box_bytes / 2; i += threads)
      st(out + (i64{block_x()} * (box_bytes / 2) + i), lds((all + i * 4).as<u32>()));
  }
};

// A warpgroup multiplies two tiles that it wrote itself.
template <int N, bool is_f16> struct CalibrateWgmma {
  static constexpr u32 threads = 128;
  Global<const u32> in;
  Global<float> out;  // 64 * N
  NIBBLE_DEVICE void operator()() const {
    const Shared<u8> all = dynamic_shared_aligned(1024);
    const Shared<u8> a = all.part(0, 64 * 128), b = all.part(64 * 128, N * 128);
    for (u32 i = thread_id(); i < (64 + N) * 32; i += threads) {
      const u32 bits = ldg(in + i);
      const float low = integer(bits), high = integer(bits >> 8);
      sts((i < 64 * 32 ? a + swizzle128(i * 4) : b + swizzle128((i - 64 * 32) * 4)).as<u32>(),
          is_f16 ? pack_f16(low, high) : pack_bf16(low, high));
    }
    fence_proxy_async();
    sync_threads();
    float d[N / 2] = {};
    wgmma_fence(d);
    NIBBLE_UNROLL for (u32 step = 0; step < 4; ++step) {
      const u64 a_tile = tile_descriptor(a.address() + step * 32, 16, 1024, Swizzle::bytes128);
      const u64 b_tile = tile_descriptor(b.address() + step * 32, 16, 1024, Swizzle::bytes128);
      if constexpr (is_f16)
        wgmma_f16<N>(d, a_tile, b_tile);
      else
        wgmma_bf16<N>(d, a_tile, b_tile);
    }
    wgmma_commit();
    wgmma_wait<0>(d);
    NIBBLE_UNROLL for (i32 j = 0; j < N / 2; ++j)
        st(out + ((warp_id() * 16 + lane_id() / 4 + 8 * (j / 2 % 2)) * N + 8 * (j / 4) + 2 * (lane_id() % 4) + j % 2),
           d[j]);
  }
};

using Calibrations = std::vector<nibble::test::Calibration>;

struct Inputs {
  std::vector<u32x4> words;
  explicit Inputs(u32 seed) : words(threads_per_block * blocks) {
    std::mt19937 random(seed);
    const auto word = [&] { return static_cast<u32>(random()); };
    for (u32x4& value : words) value = {word(), word(), word(), word()};
  }
};

template <class T> std::vector<u32> as_words(const std::vector<T>& values) {
  std::vector<u32> words(values.size() * sizeof(T) / sizeof(u32));
  std::memcpy(words.data(), values.data(), words.size() * sizeof(u32));
  return words;
}

template <class Function> void calibrate(const char* name, const Inputs& inputs, Calibrations& all) {
  const auto in = DeviceArray<u32x4>::input(inputs.words);
  const auto out = DeviceArray<u32x4>::output(inputs.words.size());
  launch({blocks}, warps * 512, nullptr, Calibrate<Function>{in.data(), out.data()});
  all.push_back({name, as_words(out.to_host())});
}

void calibrate_memory(const Inputs& inputs, Calibrations& all) {
  const auto in = DeviceArray<u32x4>::input(inputs.words);
  const auto out = DeviceArray<u32x4>::output(inputs.words.size());
  const auto sums = DeviceArray<u32>::workspace({0, 0, 0, 0});
  launch({blocks}, 2 * 16 * threads_per_block, nullptr, CalibrateMemory{in.data(), out.data(), sums.data()});
  all.push_back({"copies and loads", as_words(out.to_host())});
  all.push_back({"atomics", sums.to_host()});
}

void calibrate_copies(const Inputs& inputs, Calibrations& all) {
  const std::vector<u32> words = as_words(inputs.words);
  const auto in = DeviceArray<u32>::input(words);
  constexpr u32 count = 8;
  const auto out = DeviceArray<u32>::output(std::size_t{count} * CalibrateCopies::box_bytes / 2);
  const auto map = make_tensor_map(in.data(), 2, 200, 50, 512, 64, CalibrateCopies::rows, Swizzle::bytes128);
  launch({count}, 2 * CalibrateCopies::box_bytes + 8 + 1024, nullptr,
         CalibrateCopies{map, reinterpret_cast<const u8*>(in.data()), out.data()});
  all.push_back({"bulk copies and TMA", out.to_host()});
}

template <int N, bool is_f16> void calibrate_wgmma(const char* name, const Inputs& inputs, Calibrations& all) {
  const auto in = DeviceArray<u32>::input(as_words(inputs.words));
  const auto out = DeviceArray<float>::output(64 * N);
  launch({1}, (64 + N) * 128 + 1024, nullptr, CalibrateWgmma<N, is_f16>{in.data(), out.data()});
  all.push_back({name, as_words(out.to_host())});
}

Calibrations calibrate_all(u32 seed) {
  const Inputs inputs(seed);
  Calibrations all;
#define NIBBLE_CALIBRATE(name) calibrate<name>(#name, inputs, all)
  NIBBLE_CALIBRATE(float_arithmetic);
  NIBBLE_CALIBRATE(float_difference);
  NIBBLE_CALIBRATE(double_sum);
  NIBBLE_CALIBRATE(double_product);
  NIBBLE_CALIBRATE(conversions);
  NIBBLE_CALIBRATE(packs);
  NIBBLE_CALIBRATE(bytes);
  NIBBLE_CALIBRATE(shuffles);
  NIBBLE_CALIBRATE(votes);
  NIBBLE_CALIBRATE(shared_accesses);
  NIBBLE_CALIBRATE(load_matrix);
  NIBBLE_CALIBRATE(load_matrix_transposed);
  NIBBLE_CALIBRATE(load_two_matrices);
  NIBBLE_CALIBRATE(multiply_bf16);
  NIBBLE_CALIBRATE(multiply_f16);
  calibrate_memory(inputs, all);
  if (capability() >= 90) calibrate_copies(inputs, all);
  if (capability() == 90) {  // wgmma is sm_90a's alone
    calibrate_wgmma<8, false>("wgmma_bf16<8>", inputs, all);
    calibrate_wgmma<16, true>("wgmma_f16<16>", inputs, all);
    calibrate_wgmma<32, false>("wgmma_bf16<32>", inputs, all);
    calibrate_wgmma<64, true>("wgmma_f16<64>", inputs, all);
  }
  return all;
}

}  // namespace
}  // namespace nibble::device::test

namespace nibble::test {

#if defined(__CUDACC__)
std::vector<Calibration> calibrate_gpu(std::uint32_t seed) { return device::test::calibrate_all(seed); }

unsigned gpu_capability() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? device::capability() : 0;
}
#else
std::vector<Calibration> calibrate_simulator(std::uint32_t seed) { return device::test::calibrate_all(seed); }
#endif

}  // namespace nibble::test
