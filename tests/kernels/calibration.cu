// The functions of the device layer that every device has, on random inputs.
#include "kernels/device/device.hpp"
#include "tests/kernels/calibration_inputs.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device::test {
namespace {

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
// Subnormal results, and arguments whose reciprocal overflows, too.
struct reciprocals {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    return {result(rcp_rn(float_of(v.x))), result(rcp_rn(float_of(v.y & 0x80ffffff))),
            result(rcp_rn(float_of((v.z & 0x81ffffff) | 0x7e000000))),
            result(rcp_rn(float_of((v.w & 0x807fffff) | 0x3f800000)))};
  }
};
// Exponents as they come, so that many results are not finite or one of the arguments; and near to each other.
struct packed_differences {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const u32 near_bf16 = (v.y & 0x81ff81ff) | 0x3c003c00, near_f16 = (v.y & 0x8fff8fff) | 0x30003000;
    return {sub_bf16x2(v.x, v.y), sub_bf16x2((v.x & 0x81ff81ff) | 0x3c003c00, near_bf16), sub_f16x2(v.z, v.w),
            sub_f16x2((v.x & 0x8fff8fff) | 0x30003000, near_f16)};
  }
};
// The bits of a NaN as they come: absmax is stored with them.
struct larger_of_two {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const float nan = float_of(v.z | 0x7f800001), near = float_of(v.x ^ (v.y & 3) ^ (v.y & 0x80000000));
    return {bits_of(max_nan(float_of(v.x), float_of(v.y))), bits_of(max_nan(float_of(v.x), near)),
            bits_of(max_nan(nan, float_of(v.w))), bits_of(max_nan(float_of(v.w), nan))};
  }
};
struct larger_of_two_zeros {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    const float a = float_of(v.x & 0x80000000), b = float_of(v.y & 0x80000000);
    return {bits_of(max_nan(a, b)), bits_of(max_nan(b, a)), bits_of(max_nan(a, float_of(v.z & 0x80000001))),
            bits_of(max_nan(float_of(v.w & 0x80000001), b))};
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
    return {prmt(v.x, v.y, v.z), lop3<0xea>(v.x, v.y, v.z), lop3<0x1b>(v.x, v.y, v.w),
            lop3<0x96>(opaque(v.y), v.z, v.w)};
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
// Two warps at a time wait for each other, by barriers of their own.
struct named_barriers {
  NIBBLE_DEVICE static u32x4 run(u32x4 v) {
    NIBBLE_SHARED(u32, value, threads_per_block);
    const u32 pair = warp_id() / 2, other = thread_id() ^ 32;
    sts(value + thread_id(), v.x);
    bar_sync(1 + pair, 64);
    const u32 first = lds(value + other);
    bar_sync(1 + pair, 64);
    if (warp_id() % 2 == 0) sts(value + thread_id(), v.y);
    u32 second = v.z;
    if (warp_id() % 2 == 0) {
      bar_arrive(3 + pair, 64);
    } else {
      bar_sync(3 + pair, 64);
      second = lds(value + other);
    }
    return {first, second, 0, 0};
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

// Copies of 4 and 16 bytes and of fewer, loads of all kinds, atomic operations.
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
    const Shared<u8> word = all + (2 * 16 * threads + thread_id() * 4);
    cp_async4(word, (in + i).as<const u8>() + 12, thread_id() % 5);
    cp_commit();
    cp_wait<0>();
    const u32x4 part = lds((all + thread_id() * 16).as<u32x4>());
    const u32x4 whole = lds((all + (threads + thread_id()) * 16).as<u32x4>());
    const Global<const u8> bytes = (in + i).as<const u8>();
    stcs(out + i, u32x4{part.x ^ whole.w, part.y ^ ldcs((bytes + 6).as<const u16>()), part.z ^ ld(bytes + 11),
                        part.w ^ lds(word.as<u32>())});
    atomic_add(sums, whole.x);
    atomic_add(sums + 1, whole.y >> 7);
    atomic_max((sums + 2).as<u64>(), u64{whole.z} << 32 | whole.w);
  }
};

// Blocks, numbered in all three directions, store values, and the last block to have done so adds those of all.
struct CalibrateLastBlock {
  static constexpr u32 threads = threads_per_block;
  Global<const u32x4> in;
  Global<u32> values;  // threads of each block
  Global<u32> arrived;
  Global<u32> out;  // threads
  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(u32, before, 1);
    const u32 block = (block_z() * grid_y() + block_y()) * grid_x() + block_x(), count = grid_x() * grid_y() * grid_z();
    const i64 own = i64{block} * threads + thread_id();
    st(values + own, ldg(in + own).x);
    sync_threads();
    if (thread_id() == 0) {
      threadfence();
      sts(before, atomic_add(arrived, 1));
      threadfence();
    }
    sync_threads();
    if (lds(before) != count - 1) return;
    u32 sum = 0;
    for (u32 b = 0; b < count; ++b) sum = sum * 3 + ld(values + (i64{b} * threads + (thread_id() ^ b) % threads));
    st(out + thread_id(), sum);
  }
};

// Nothing of it can be seen but a trap.
struct CalibratePrefetches {
  static constexpr u32 threads = threads_per_block;
  Global<const u32x4> in;
  Global<u32x4> out;
  NIBBLE_DEVICE void operator()() const {
    const i64 first = i64{block_x()} * threads, own = first + thread_id();
    prefetch_l2(in + own);
    if (thread_id() == 0) prefetch_l2(in + first, threads * 16);
    st(out + own, ldg(in + own));
  }
};

template <class Function> std::vector<u32> calibrate(const Inputs& inputs) {
  const auto in = DeviceArray<u32x4>::input(inputs.words);
  const auto out = DeviceArray<u32x4>::output(inputs.words.size());
  launch({blocks}, warps * 512, nullptr, Calibrate<Function>{in.data(), out.data()});
  return as_words(out.to_host());
}

std::vector<u32> calibrate_memory(const Inputs& inputs, bool sums_only) {
  const auto in = DeviceArray<u32x4>::input(inputs.words);
  const auto out = DeviceArray<u32x4>::output(inputs.words.size());
  const auto sums = DeviceArray<u32>::workspace({0, 0, 0, 0});
  launch({blocks}, (2 * 16 + 4) * threads_per_block, nullptr, CalibrateMemory{in.data(), out.data(), sums.data()});
  return sums_only ? sums.to_host() : as_words(out.to_host());
}
std::vector<u32> copies_and_loads(const Inputs& inputs) { return calibrate_memory(inputs, false); }
std::vector<u32> atomics(const Inputs& inputs) { return calibrate_memory(inputs, true); }

std::vector<u32> last_block(const Inputs& inputs) {
  const auto in = DeviceArray<u32x4>::input(inputs.words);
  const auto values = DeviceArray<u32>::workspace(std::vector<u32>(inputs.words.size()));
  const auto arrived = DeviceArray<u32>::workspace({0});
  const auto out = DeviceArray<u32>::output(threads_per_block);
  launch({blocks / 8, 4, 2}, 0, nullptr, CalibrateLastBlock{in.data(), values.data(), arrived.data(), out.data()});
  return out.to_host();
}

std::vector<u32> prefetches(const Inputs& inputs) {
  const auto in = DeviceArray<u32x4>::input(inputs.words);
  const auto out = DeviceArray<u32x4>::output(inputs.words.size());
  launch({blocks}, 0, nullptr, CalibratePrefetches{in.data(), out.data()});
  return as_words(out.to_host());
}

}  // namespace
}  // namespace nibble::device::test

namespace nibble::test::NIBBLE_CALIBRATION_SIDE {

std::vector<Entry> every_device() {
  using namespace nibble::device::test;
#define NIBBLE_ENTRY(function) \
  { #function, calibrate < function> }
  return {NIBBLE_ENTRY(float_arithmetic),
          NIBBLE_ENTRY(float_difference),
          NIBBLE_ENTRY(reciprocals),
          NIBBLE_ENTRY(packed_differences),
          NIBBLE_ENTRY(larger_of_two),
          NIBBLE_ENTRY(larger_of_two_zeros),
          NIBBLE_ENTRY(double_sum),
          NIBBLE_ENTRY(double_product),
          NIBBLE_ENTRY(conversions),
          NIBBLE_ENTRY(packs),
          NIBBLE_ENTRY(bytes),
          NIBBLE_ENTRY(shuffles),
          NIBBLE_ENTRY(votes),
          NIBBLE_ENTRY(named_barriers),
          NIBBLE_ENTRY(shared_accesses),
          NIBBLE_ENTRY(load_matrix),
          NIBBLE_ENTRY(load_matrix_transposed),
          NIBBLE_ENTRY(load_two_matrices),
          NIBBLE_ENTRY(multiply_bf16),
          NIBBLE_ENTRY(multiply_f16),
          {"copies_and_loads", copies_and_loads},
          {"atomics", atomics},
          {"last_block", last_block},
          {"prefetches", prefetches}};
#undef NIBBLE_ENTRY
}

}  // namespace nibble::test::NIBBLE_CALIBRATION_SIDE
