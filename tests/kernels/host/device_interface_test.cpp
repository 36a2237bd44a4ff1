// The device interface: from host memory to host memory, the bytes of the codecs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <thread>

#include "kernels/host/device_interface.h"
#include "nibble/fp4.hpp"
#include "nibble/int8.hpp"
#include "nibble/nf4.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/kernels/weights.hpp"

namespace nibble::kernels {
namespace {

using device::bf16;
using device::f16;
using device::u64;
using device::u8;
using test::dtype_of;
using test::narrowed;
using test::widened;
using testing::HasSubstr;
using testing::StrEq;

struct Destroy {
  void operator()(nibble_queue* queue) const { nibble_queue_destroy(queue); }
};
using Queue = std::unique_ptr<nibble_queue, Destroy>;

Queue make_queue() {
  nibble_queue* queue = nullptr;
  EXPECT_EQ(nibble_queue_create(0, &queue), NIBBLE_OK) << nibble_last_error();
  return Queue(queue);
}

std::vector<float> normal_weights(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> weights(size);
  for (float& weight : weights) weight = normal(random);
  return weights;
}

template <class T>
void expect_four_bit(nibble_queue* queue, const std::vector<float>& values, nibble_codebook codebook,
                     std::uint32_t blocksize, std::size_t shift = 0) {
  const std::vector<T> weights = narrowed<T>(values);
  const std::size_t size = weights.size(), blocks = (size + blocksize - 1) / blocksize;
  std::vector<u8> packed((size + 1) / 2), expected(packed.size());
  std::vector<float> absmax(blocks), expected_absmax(blocks);
  const std::size_t bad =
      (codebook == NIBBLE_NF4 ? nf4::encode : fp4::encode)(widened(weights), blocksize, expected, expected_absmax);
  std::vector<char> moved(size * sizeof(T) + shift);  // host memory needs no alignment
  std::memcpy(moved.data() + shift, weights.data(), size * sizeof(T));
  u64 nonfinite = 7;
  ASSERT_EQ(nibble_queue_quantize_four_bit(queue, moved.data() + shift, dtype_of<T>, size, codebook, blocksize,
                                           packed.data(), absmax.data(), &nonfinite),
            NIBBLE_OK)
      << nibble_last_error();
  ASSERT_EQ(nonfinite, bad);
  ASSERT_EQ(packed, expected);
  ASSERT_EQ(0, std::memcmp(absmax.data(), expected_absmax.data(), blocks * sizeof(float)));
}

template <class T>
void expect_int8(nibble_queue* queue, const std::vector<float>& values, std::size_t n, u64 bad_rows = 0) {
  const std::vector<T> weights = narrowed<T>(values);
  const std::vector<float> wide = widened(weights);
  const std::size_t k = weights.size() / n;
  std::vector<std::int8_t> codes(weights.size()), expected(weights.size());
  std::vector<float> absmax(n), expected_absmax(n);
  for (std::size_t row = 0; row < n; ++row)
    expected_absmax[row] =
        int8::encode_row(std::span(wide).subspan(row * k, k), std::span(expected).subspan(row * k, k));
  u64 nonfinite = 7;
  ASSERT_EQ(
      nibble_queue_quantize_int8(queue, weights.data(), dtype_of<T>, n, k, codes.data(), absmax.data(), &nonfinite),
      NIBBLE_OK)
      << nibble_last_error();
  ASSERT_EQ(nonfinite, bad_rows);
  ASSERT_EQ(codes, expected);
  ASSERT_EQ(absmax, expected_absmax);
}

// One queue for chunks of all sizes, large and small in turn: nothing is left over from the chunk before.
TEST(DeviceInterface, GivesTheBytesOfTheCodecs) {
  const Queue queue = make_queue();
  unsigned seed = 0;
  for (const std::uint32_t blocksize : {32u, 64u, 4096u})
    for (const std::size_t size : {1u, 63u, 12289u, 64u, 8192u})
      for (const nibble_codebook codebook : {NIBBLE_NF4, NIBBLE_FP4}) {
        const auto values = normal_weights(size, ++seed);
        expect_four_bit<float>(queue.get(), values, codebook, blocksize, seed % 4);
        expect_four_bit<bf16>(queue.get(), values, codebook, blocksize, seed % 2);
        expect_four_bit<f16>(queue.get(), values, codebook, blocksize);
      }
  for (const std::size_t n : {1u, 7u, 129u}) {
    const auto values = normal_weights(n * 131, ++seed);
    expect_int8<float>(queue.get(), values, n);
    expect_int8<bf16>(queue.get(), values, n);
    expect_int8<f16>(queue.get(), values, n);
  }
}

TEST(DeviceInterface, CountsWhatIsNotFinite) {
  const Queue queue = make_queue();
  auto values = normal_weights(640, 1);
  values[70] = std::numeric_limits<float>::quiet_NaN();
  values[639] = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < 2; ++i) {  // from zero each time
    expect_four_bit<float>(queue.get(), values, NIBBLE_NF4, 64);
    expect_int8<float>(queue.get(), values, 10, 2);
  }
}

TEST(DeviceInterface, QueuesOfSeveralThreads) {
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < 4; ++i)
    threads.emplace_back([i] {
      const Queue queue = make_queue();
      for (unsigned chunk = 0; chunk < 3; ++chunk)
        expect_four_bit<bf16>(queue.get(), normal_weights(4096 * (1 + i), 10 * i + chunk), NIBBLE_NF4, 64);
    });
}

TEST(DeviceInterface, FindsADevice) {
  int device = -1;
  char name[64] = "";
  ASSERT_EQ(nibble_find_device(&device, name, sizeof name), NIBBLE_OK) << nibble_last_error();
  EXPECT_GE(device, 0);
  EXPECT_STRNE(name, "");
  char cut[3];
  ASSERT_EQ(nibble_find_device(&device, cut, sizeof cut), NIBBLE_OK);
  EXPECT_EQ(std::strlen(cut), 2u);
  EXPECT_EQ(nibble_device_interface_version(), NIBBLE_DEVICE_INTERFACE_VERSION);
}

// A failure of the simulated device; a GPU knows none.
class ScopedFault {
 public:
  explicit ScopedFault(const char* name) { setenv("NIBBLE_SIMULATED_FAULT", name, 1); }
  ~ScopedFault() { unsetenv("NIBBLE_SIMULATED_FAULT"); }
  ScopedFault(const ScopedFault&) = delete;
  ScopedFault& operator=(const ScopedFault&) = delete;
};

// Arguments that are right, to be made wrong one by one.
struct FourBitCall {
  nibble_queue* queue;
  const void* weights;
  nibble_dtype dtype = NIBBLE_F32;
  u64 size = 64;
  nibble_codebook codebook = NIBBLE_NF4;
  std::uint32_t blocksize = 64;
  u8* packed;
  float* absmax;
  u64* nonfinite;
};
struct Int8Call {
  nibble_queue* queue;
  const void* weights;
  nibble_dtype dtype = NIBBLE_F32;
  u64 n = 2, k = 32;
  std::int8_t* codes;
  float* absmax;
  u64* nonfinite;
};
// As a caller in C, with any number for an enumerator.
[[gnu::no_sanitize("enum")]] int run(const FourBitCall& c) {
  return nibble_queue_quantize_four_bit(c.queue, c.weights, c.dtype, c.size, c.codebook, c.blocksize, c.packed,
                                        c.absmax, c.nonfinite);
}
[[gnu::no_sanitize("enum")]] int run(const Int8Call& c) {
  return nibble_queue_quantize_int8(c.queue, c.weights, c.dtype, c.n, c.k, c.codes, c.absmax, c.nonfinite);
}
// Why the call with a change is refused. It does not get as far as the device, which would fail.
template <class Call, class Change> std::string refusal_of(Call call, Change&& change) {
  change(call);
  const ScopedFault fault("use_device");
  EXPECT_EQ(run(call), NIBBLE_USAGE);
  return nibble_last_error();
}
// Any number into an enumeration, as C allows it.
template <class Enum> void put(Enum& value, int number) { std::memcpy(&value, &number, sizeof number); }
template <class T> T* moved(T* pointer, std::size_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + bytes);
}

TEST(DeviceInterface, RefusesWhatMakesNoSense) {
  const Queue queue = make_queue();
  const std::array<float, 64> weights{};
  std::array<u8, 64> packed{};
  std::array<std::int8_t, 64> codes{};
  std::array<float, 2> absmax{};
  u64 nonfinite = 0;
  const FourBitCall four_bit{.queue = queue.get(),
                             .weights = weights.data(),
                             .packed = packed.data(),
                             .absmax = absmax.data(),
                             .nonfinite = &nonfinite};
  const Int8Call int8{.queue = queue.get(),
                      .weights = weights.data(),
                      .codes = codes.data(),
                      .absmax = absmax.data(),
                      .nonfinite = &nonfinite};
  const auto both = [&](auto change) {
    const std::string text = refusal_of(four_bit, change);
    EXPECT_EQ(refusal_of(int8, change), text);
    return text;
  };
  EXPECT_EQ(both([](auto& c) { c.queue = nullptr; }), "queue is null");
  EXPECT_EQ(both([](auto& c) { c.weights = nullptr; }), "weights is null");
  EXPECT_EQ(both([](auto& c) { c.absmax = nullptr; }), "absmax is null");
  EXPECT_EQ(both([](auto& c) { c.absmax = moved(c.absmax, 2); }),
            "absmax is 2 bytes past a multiple of 4, its alignment");
  EXPECT_EQ(both([](auto& c) { c.nonfinite = nullptr; }), "nonfinite is null");
  EXPECT_EQ(both([](auto& c) { c.nonfinite = moved(c.nonfinite, 4); }),
            "nonfinite is 4 bytes past a multiple of 8, its alignment");
  EXPECT_EQ(both([](auto& c) { put(c.dtype, 3); }), "dtype is 3, not a nibble_dtype");
  EXPECT_EQ(refusal_of(four_bit, [](auto& c) { c.packed = nullptr; }), "packed is null");
  EXPECT_EQ(refusal_of(four_bit, [](auto& c) { put(c.codebook, 2); }), "codebook is 2, not a nibble_codebook");
  EXPECT_EQ(refusal_of(four_bit, [](auto& c) { c.blocksize = 48; }),
            "blocksize is 48, not a power of two from 32 to 4096");
  EXPECT_EQ(refusal_of(four_bit, [](auto& c) { c.size = (u64{1} << 48) + 1; }),
            "weights has 281474976710657 x 1 elements, at most 2^48 are possible");
  EXPECT_EQ(refusal_of(int8, [](auto& c) { c.codes = nullptr; }), "codes is null");
  EXPECT_EQ(refusal_of(int8, [](auto& c) { c.n = c.k = u64{1} << 32; }),
            "weights has 4294967296 x 4294967296 elements, at most 2^48 are possible");
  EXPECT_EQ(refusal_of(int8, [](auto& c) { c.n = 0; }), "weights has 0 x 32 elements, must have at least one");
  EXPECT_EQ(refusal_of(int8, [](auto& c) { c.k = 0; }), "weights has 2 x 0 elements, must have at least one");
  // The queue is as good as before.
  EXPECT_EQ(run(four_bit), NIBBLE_OK) << nibble_last_error();
  EXPECT_EQ(run(int8), NIBBLE_OK) << nibble_last_error();
  nibble_queue_destroy(nullptr);
}

TEST(DeviceInterface, NoWeightsNeedNoPointers) {
  const Queue queue = make_queue();
  u64 nonfinite = 7;
  EXPECT_EQ(run(FourBitCall{.queue = queue.get(),
                            .weights = nullptr,
                            .size = 0,
                            .packed = nullptr,
                            .absmax = nullptr,
                            .nonfinite = &nonfinite}),
            NIBBLE_OK)
      << nibble_last_error();
  EXPECT_EQ(nonfinite, 0u);
}

TEST(DeviceInterface, RefusesPlacesThatAreNone) {
  int device = 0;
  char name[8] = "";
  EXPECT_EQ(nibble_find_device(nullptr, name, sizeof name), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("device is null"));
  EXPECT_EQ(nibble_find_device(&device, nullptr, 0), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("name is null"));
  EXPECT_EQ(nibble_queue_create(0, nullptr), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("queue is null"));
  EXPECT_EQ(nibble_pin(0, nullptr, 4096), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("memory is null"));
}

TEST(DeviceInterface, PinsPages) {
  struct Free {
    void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{4096}); }
  };
  const std::unique_ptr<void, Free> memory(::operator new (3 * 4096, std::align_val_t{4096}));
  EXPECT_EQ(nibble_pin(0, memory.get(), 2 * 4096 + 1), NIBBLE_OK) << nibble_last_error();
  EXPECT_EQ(nibble_pin(0, static_cast<char*>(memory.get()) + 2 * 4096, 4096), NIBBLE_INTERNAL);  // it is pinned
  nibble_unpin(0, memory.get());
  EXPECT_EQ(nibble_pin(0, memory.get(), 4096), NIBBLE_OK) << nibble_last_error();
  nibble_unpin(0, memory.get());
  nibble_unpin(0, memory.get());
  EXPECT_EQ(nibble_pin(0, static_cast<char*>(memory.get()) + 8, 4096), NIBBLE_USAGE);
  EXPECT_THAT(nibble_last_error(), StrEq("memory is 8 bytes past a multiple of 4096, its alignment"));
}

// --- Failures, which a GPU does not have on demand

NIBBLE_SIMULATED_TEST(DeviceInterface, SaysWhatFailed) {
  const std::vector<float> weights = normal_weights(4096, 1);
  for (const char* const step : {"use_device", "memory", "copy_to_device", "clear", "copy_to_host", "wait"}) {
    const Queue queue = make_queue();
    std::vector<u8> packed(2048);
    std::vector<float> absmax(64);
    u64 nonfinite = 0;
    const ScopedFault fault(step);
    EXPECT_EQ(nibble_queue_quantize_four_bit(queue.get(), weights.data(), NIBBLE_F32, 4096, NIBBLE_NF4, 64,
                                             packed.data(), absmax.data(), &nonfinite),
              NIBBLE_INTERNAL)
        << step;
    EXPECT_THAT(nibble_last_error(), StrEq(std::string(step) + ": a fault was asked for"));
  }
  nibble_queue* queue = nullptr;
  const ScopedFault fault("stream");
  EXPECT_EQ(nibble_queue_create(0, &queue), NIBBLE_INTERNAL);
  EXPECT_EQ(queue, nullptr);
}

NIBBLE_SIMULATED_TEST(DeviceInterface, DevicesThatAreNotThere) {
  struct Free {
    void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{4096}); }
  };
  const std::unique_ptr<void, Free> memory(::operator new (4096, std::align_val_t{4096}));
  nibble_queue* queue = nullptr;
  EXPECT_EQ(nibble_queue_create(1, &queue), NIBBLE_INTERNAL);
  EXPECT_THAT(nibble_last_error(), StrEq("use_device: there is no device 1"));
  EXPECT_EQ(queue, nullptr);
  EXPECT_EQ(nibble_pin(1, memory.get(), 4096), NIBBLE_INTERNAL);
  EXPECT_THAT(nibble_last_error(), StrEq("use_device: there is no device 1"));
  // Also without the device, what was pinned is not any more.
  ASSERT_EQ(nibble_pin(0, memory.get(), 4096), NIBBLE_OK);
  nibble_unpin(1, memory.get());
  EXPECT_EQ(nibble_pin(0, memory.get(), 4096), NIBBLE_OK) << nibble_last_error();
  nibble_unpin(0, memory.get());
}

// After a failure the caller may free its memory, before the queue is destroyed or after it.
NIBBLE_SIMULATED_TEST(DeviceInterface, AfterAFailureNothingIsWritten) {
  const std::vector<float> weights = normal_weights(4096, 1);
  std::vector<u8> packed(2048);
  std::vector<float> absmax(64, 5.0f);
  u64 nonfinite = 7;
  Queue queue = make_queue();
  {
    const ScopedFault fault("wait");
    EXPECT_EQ(run(FourBitCall{.queue = queue.get(),
                              .weights = weights.data(),
                              .size = 4096,
                              .packed = packed.data(),
                              .absmax = absmax.data(),
                              .nonfinite = &nonfinite}),
              NIBBLE_INTERNAL);
  }
  packed.assign(2048, 0x5a);
  queue.reset();
  EXPECT_THAT(packed, testing::Each(0x5a));
  EXPECT_THAT(absmax, testing::Each(5.0f));
}

NIBBLE_SIMULATED_TEST(DeviceInterface, SaysWhyThereIsNoDevice) {
  int device = -1;
  char name[64] = "";
  const auto refusal = [&](const char* fault_name) {
    const ScopedFault fault(fault_name);
    EXPECT_EQ(nibble_find_device(&device, name, sizeof name), NIBBLE_INTERNAL);
    return std::string(nibble_last_error());
  };
  EXPECT_EQ(refusal("device_count"), "device_count: a fault was asked for");
  EXPECT_EQ(refusal("none"), "there is none");
  EXPECT_EQ(refusal("old"), "simulated device is sm_75, at least sm_80 is needed");
}

NIBBLE_SIMULATED_TEST(DeviceInterface, MemoryThatCannotBePinnedServesToo) {
  const ScopedFault fault("pin");
  expect_four_bit<float>(make_queue().get(), normal_weights(100, 1), NIBBLE_NF4, 64);
}

}  // namespace
}  // namespace nibble::kernels
