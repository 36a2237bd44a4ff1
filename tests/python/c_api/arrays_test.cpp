// Wrong arguments of the functions on arrays: a code and a sentence, and nothing is written.

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/python/c_api/call.hpp"

namespace nibble::c_api_test {
namespace {

using testing::HasSubstr;

constexpr std::size_t elements = 1000, blocksize = 64, blocks = 16;  // the last byte and the last block are not full

// The arguments of the 4-bit functions, without a fault until a test makes one.
struct FourBitCall {
  explicit FourBitCall(bool nested)
      : absmax(nested ? 0 : blocks * 4),
        absmax_codes(nested ? blocks : 0),
        nested_absmax(nested ? 4 : 0),
        nested_codebook(nested ? 1024 : 0),
        nested_offset(nested ? 4 : 0) {
    weight.struct_bytes = sizeof weight;
    weight.codebook = NIBBLE_NF4;
    weight.blocksize = blocksize;
    weight.elements = elements;
    weight.packed = packed.array();
    weights_array = weights.array();
    if (!nested) {
      weight.absmax = absmax.array();
      return;
    }
    weight.absmax_codes = absmax_codes.array();
    weight.nested_absmax = nested_absmax.array();
    weight.nested_codebook = nested_codebook.array();
    weight.nested_offset = nested_offset.array();
  }
  FourBitCall(const FourBitCall&) = delete;
  FourBitCall& operator=(const FourBitCall&) = delete;

  std::vector<Memory*> codes() {
    return {&packed, &absmax, &absmax_codes, &nested_absmax, &nested_codebook, &nested_offset};
  }
  std::vector<nibble_array*> arrays() {
    return {&weights_array,        &weight.packed,          &weight.absmax,       &weight.absmax_codes,
            &weight.nested_absmax, &weight.nested_codebook, &weight.nested_offset};
  }
  int quantize() { return nibble_cpu_quantize_4bit(weights_array, dtype, &weight, threads, &nonfinite); }
  int dequantize() { return nibble_cpu_dequantize_4bit(&weight, weights_array, dtype, threads); }

  Memory packed{elements / 2}, absmax, absmax_codes, nested_absmax, nested_codebook, nested_offset;
  Memory weights{elements * 4};
  nibble_array weights_array{};
  nibble_cpu_four_bit weight{};
  std::int32_t dtype = NIBBLE_F32;
  std::uint32_t threads = 0;
  std::uint64_t nonfinite = 12345;
};

struct Fault {
  const char* says;
  std::function<void(FourBitCall&)> make;
  bool nested = false;
};

char* misaligned(void* data) { return static_cast<char*>(data) + 1; }

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = {
      {"nibble_cpu_four_bit: struct_bytes is 0, not from 120 to 4096", [](auto& c) { c.weight.struct_bytes = 0; }},
      {"struct_bytes is 119", [](auto& c) { --c.weight.struct_bytes; }},
      {"struct_bytes is 4097", [](auto& c) { c.weight.struct_bytes = 4097; }},
      {"nibble_cpu_four_bit: struct_bytes is 124, not a multiple of 8, its alignment",
       [](auto& c) { c.weight.struct_bytes += 4; }},
      {"codebook is 2, neither 0 (NF4) nor 1 (FP4)", [](auto& c) { c.weight.codebook = 2; }},
      {"codebook is -1", [](auto& c) { c.weight.codebook = -1; }},
      {"blocksize is 0, not one of 32, 64, ..., 4096", [](auto& c) { c.weight.blocksize = 0; }},
      {"blocksize is 16,", [](auto& c) { c.weight.blocksize = 16; }},
      {"blocksize is 96,", [](auto& c) { c.weight.blocksize = 96; }},
      {"blocksize is 8192,", [](auto& c) { c.weight.blocksize = 8192; }},
      {"dtype is 3, not one of 0 (F32), 1 (F16) and 2 (BF16)", [](auto& c) { c.dtype = 3; }},
      {"dtype is -1,", [](auto& c) { c.dtype = -1; }},
      {"packed has 500 bytes, not 501", [](auto& c) { c.weight.elements = 1002; }},
      {"packed has 500 bytes, not 9223372036854775808", [](auto& c) { c.weight.elements = huge; }},
      {"packed has 499 bytes, not 500", [](auto& c) { --c.weight.packed.bytes; }},
      {"packed is null", [](auto& c) { c.weight.packed.data = nullptr; }},
      {"packed has 500 bytes at 0xfffffffffffffff0, past the last address",
       [](auto& c) { c.weight.packed.data = reinterpret_cast<void*>(-16); }},
      {"absmax has 64 bytes, not 128", [](auto& c) { c.weight.blocksize = 32; }},
      {"absmax has 60 bytes, not 64", [](auto& c) { c.weight.absmax.bytes -= 4; }},
      {"absmax is null", [](auto& c) { c.weight.absmax.data = nullptr; }},
      {"absmax is not aligned to 4 bytes", [](auto& c) { c.weight.absmax.data = misaligned(c.weight.absmax.data); }},
      {"absmax has 64 bytes, not 0", [](auto& c) { c.weight.absmax_codes = c.weight.packed; }},
      {"nested_absmax has 4 bytes, not 0",
       [](auto& c) {
         c.weight.nested_absmax = {c.absmax.array().data, 4};
       }},
      {"weights has 3999 bytes, not 4000", [](auto& c) { --c.weights_array.bytes; }},
      {"weights has 4000 bytes, not 2000", [](auto& c) { c.dtype = NIBBLE_BF16; }},
      {"weights is null", [](auto& c) { c.weights_array.data = nullptr; }},
      {"absmax_codes has 15 bytes, not 16", [](auto& c) { --c.weight.absmax_codes.bytes; }, true},
      {"nested_absmax has 8 bytes, not 4", [](auto& c) { c.weight.nested_absmax.bytes = 8; }, true},
      {"nested_absmax is null", [](auto& c) { c.weight.nested_absmax.data = nullptr; }, true},
      {"nested_absmax is not aligned to 4 bytes",
       [](auto& c) { c.weight.nested_absmax.data = misaligned(c.weight.nested_absmax.data); }, true},
      {"nested_codebook has 1020 bytes, not 1024", [](auto& c) { c.weight.nested_codebook.bytes -= 4; }, true},
      {"nested_codebook is null", [](auto& c) { c.weight.nested_codebook.data = nullptr; }, true},
      {"nested_offset has 0 bytes, not 4", [](auto& c) { c.weight.nested_offset.bytes = 0; }, true},
      {"nested_offset is null", [](auto& c) { c.weight.nested_offset.data = nullptr; }, true},
  };
  return all;
}

TEST(FourBitArguments, EachFaultIsNamedBeforeAnythingIsWritten) {
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.says);
    FourBitCall quantize(fault.nested);
    fault.make(quantize);
    EXPECT_EQ(quantize.quantize(), NIBBLE_USAGE);
    EXPECT_THAT(message(), HasSubstr(fault.says));
    for (const Memory* memory : quantize.codes()) EXPECT_TRUE(memory->untouched());
    EXPECT_EQ(quantize.nonfinite, 12345u);

    FourBitCall dequantize(fault.nested);
    fault.make(dequantize);
    EXPECT_EQ(dequantize.dequantize(), NIBBLE_USAGE);
    EXPECT_THAT(message(), HasSubstr(fault.says));
    EXPECT_TRUE(dequantize.weights.untouched());
  }
}

// Of a caller whose version of the struct has another member.
template <class T> struct Later {
  T known;
  std::uint64_t added;
};

TEST(FourBitArguments, MembersOfALaterVersionHaveToBeZero) {
  FourBitCall call(false);
  Later<nibble_cpu_four_bit> later{call.weight, 0};
  later.known.struct_bytes = sizeof later;
  const auto dequantize = [&] {
    return nibble_cpu_dequantize_4bit(&later.known, call.weights_array, call.dtype, call.threads);
  };
  EXPECT_EQ(dequantize(), NIBBLE_OK) << message();
  later.added = 1;
  EXPECT_EQ(dequantize(), NIBBLE_USAGE);
  EXPECT_EQ(message(),
            "nibble_cpu_four_bit: struct_bytes is 128; byte 120 is not 0, and this library knows the first 120");
}

TEST(FourBitArguments, WeightsNeedTheirAlignmentOnlyToBeWritten) {
  FourBitCall call(false);
  call.weights_array.data = misaligned(call.weights_array.data);
  EXPECT_EQ(call.quantize(), NIBBLE_OK);
  EXPECT_EQ(call.dequantize(), NIBBLE_USAGE);
  EXPECT_THAT(message(), HasSubstr("weights is not aligned to 4 bytes"));
}

TEST(FourBitArguments, NullIsNamed) {
  EXPECT_EQ(nibble_cpu_quantize_4bit({}, NIBBLE_F32, nullptr, 0, nullptr), NIBBLE_USAGE);
  EXPECT_EQ(message(), "the 4-bit weight is null");
  EXPECT_EQ(nibble_cpu_dequantize_4bit(nullptr, {}, NIBBLE_F32, 0), NIBBLE_USAGE);
  EXPECT_EQ(message(), "the 4-bit weight is null");
}

TEST(FourBitArguments, NothingIsAWeight) {
  nibble_cpu_four_bit weight{};
  weight.struct_bytes = sizeof weight;
  weight.blocksize = blocksize;
  std::uint64_t nonfinite = 1;
  EXPECT_EQ(nibble_cpu_quantize_4bit({}, NIBBLE_F32, &weight, 0, &nonfinite), NIBBLE_OK);
  EXPECT_EQ(nonfinite, 0u);
  EXPECT_EQ(nibble_cpu_dequantize_4bit(&weight, {}, NIBBLE_F32, 0), NIBBLE_OK);
}

struct Int8Call {
  Int8Call() {
    weight.struct_bytes = sizeof weight;
    weight.rows = 10;
    weight.columns = 33;
    weight.codes = codes.array();
    weight.absmax = absmax.array();
    weights_array = weights.array();
  }
  Int8Call(const Int8Call&) = delete;
  Int8Call& operator=(const Int8Call&) = delete;

  int quantize() { return nibble_cpu_quantize_int8(weights_array, dtype, &weight, threads, &nonfinite); }
  int dequantize() { return nibble_cpu_dequantize_int8(&weight, weights_array, dtype, threads); }

  Memory codes{330}, absmax{40}, weights{1320};
  nibble_array weights_array{};
  nibble_cpu_int8 weight{};
  std::int32_t dtype = NIBBLE_F32;
  std::uint32_t threads = 0;
  std::uint64_t nonfinite = 12345;
};

TEST(Int8Arguments, MembersOfALaterVersionHaveToBeZero) {
  Int8Call call;
  Later<nibble_cpu_int8> later{call.weight, std::uint64_t{1} << 56};
  later.known.struct_bytes = sizeof later;
  EXPECT_EQ(nibble_cpu_dequantize_int8(&later.known, call.weights_array, call.dtype, call.threads), NIBBLE_USAGE);
  EXPECT_EQ(message(), "nibble_cpu_int8: struct_bytes is 64; byte 63 is not 0, and this library knows the first 56");
}

TEST(Int8Arguments, EachFaultIsNamedBeforeAnythingIsWritten) {
  const std::vector<std::pair<const char*, std::function<void(Int8Call&)>>> all = {
      {"nibble_cpu_int8: struct_bytes is 8, not from 56 to 4096", [](auto& c) { c.weight.struct_bytes = 8; }},
      {"dtype is 7,", [](auto& c) { c.dtype = 7; }},
      {"codes has 330 bytes, not 340", [](auto& c) { ++c.weight.columns; }},
      {"codes has 330 bytes, not 363", [](auto& c) { ++c.weight.rows; }},
      {"codes: its size exceeds 64 bits", [](auto& c) { c.weight.rows = c.weight.columns = std::uint64_t{1} << 32; }},
      {"codes is null", [](auto& c) { c.weight.codes.data = nullptr; }},
      {"absmax: its size exceeds 64 bits",
       [](auto& c) {
         c.weight.rows = huge;
         c.weight.columns = 0;
         c.weight.codes = {};
       }},
      {"absmax has 39 bytes, not 40", [](auto& c) { --c.weight.absmax.bytes; }},
      {"absmax is null", [](auto& c) { c.weight.absmax.data = nullptr; }},
      {"absmax is not aligned to 4 bytes", [](auto& c) { c.weight.absmax.data = misaligned(c.weight.absmax.data); }},
      {"weights has 1316 bytes, not 1320", [](auto& c) { c.weights_array.bytes -= 4; }},
      {"weights has 1320 bytes, not 660", [](auto& c) { c.dtype = NIBBLE_F16; }},
      {"weights is null", [](auto& c) { c.weights_array.data = nullptr; }},
  };
  for (const auto& [says, make] : all) {
    SCOPED_TRACE(says);
    Int8Call quantize;
    make(quantize);
    EXPECT_EQ(quantize.quantize(), NIBBLE_USAGE);
    EXPECT_THAT(message(), HasSubstr(says));
    EXPECT_TRUE(quantize.codes.untouched());
    EXPECT_TRUE(quantize.absmax.untouched());
    EXPECT_EQ(quantize.nonfinite, 12345u);

    Int8Call dequantize;
    make(dequantize);
    EXPECT_EQ(dequantize.dequantize(), NIBBLE_USAGE);
    EXPECT_THAT(message(), HasSubstr(says));
    EXPECT_TRUE(dequantize.weights.untouched());
  }
  EXPECT_EQ(nibble_cpu_quantize_int8({}, NIBBLE_F32, nullptr, 0, nullptr), NIBBLE_USAGE);
  EXPECT_EQ(message(), "the int8 weight is null");
  EXPECT_EQ(nibble_cpu_dequantize_int8(nullptr, {}, NIBBLE_F32, 0), NIBBLE_USAGE);
  EXPECT_EQ(message(), "the int8 weight is null");
}

TEST(Int8Arguments, RowsWithoutColumnsAndColumnsWithoutRows) {
  for (const auto& [rows, columns] : {std::pair{3, 0}, std::pair{0, 3}, std::pair{0, 0}}) {
    Memory absmax(static_cast<std::size_t>(rows) * 4);
    nibble_cpu_int8 weight{};
    weight.struct_bytes = sizeof weight;
    weight.rows = static_cast<std::uint64_t>(rows);
    weight.columns = static_cast<std::uint64_t>(columns);
    weight.absmax = absmax.array();
    EXPECT_EQ(nibble_cpu_quantize_int8({}, NIBBLE_F32, &weight, 0, nullptr), NIBBLE_OK);
    EXPECT_EQ(nibble_cpu_dequantize_int8(&weight, {}, NIBBLE_F32, 0), NIBBLE_OK);
    EXPECT_TRUE(absmax.kept_inside());
  }
}

// A size that an array does not have. No claim is larger than what there is, unless no weight could be as large.
void claim_another_size(nibble_array& array, std::mt19937_64& random) {
  array.bytes = any<std::uint64_t>(random, {0, 1, array.bytes / 2, array.bytes - (array.bytes != 0), huge, huge - 3});
}

// Any bits are codes, absmax and weights: what they decode to may be NaN, but nothing outside the arrays is touched.
TEST(RandomArguments, FourBitsEndInACodeAndASentence) {
  std::mt19937_64 random(1);
  int passed = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    FourBitCall call(random() % 2 == 0);
    for (Memory* memory : call.codes()) memory->randomize(random);
    call.weights.randomize(random);
    call.threads = any<std::uint32_t>(random, {0, 1, 2, 7, 0xffffffff});
    for (std::uint64_t fault = random() % 4; fault > 0; --fault) {
      nibble_array& array = *call.arrays()[random() % call.arrays().size()];
      switch (random() % 7) {
        case 0:
          claim_another_size(array, random);
          break;
        case 1:
          array.data = nullptr;
          break;
        case 2:
          array = {};
          break;
        case 3:
          call.weight.elements = any<std::uint64_t>(random, {0, 1, 999, huge, huge / 2 + 1});
          break;
        case 4:
          call.weight.blocksize = any<std::uint32_t>(random, {0, 1, 31, 128, 4096, 8192, 0xffffffff});
          break;
        case 5:
          call.weight.codebook = any<std::int32_t>(random, {-1, 1, 2, 0x7fffffff});
          break;
        case 6:
          call.dtype = any<std::int32_t>(random, {-1, 1, 2, 3});
          break;
      }
    }
    const int code = random() % 2 == 0 ? call.quantize() : call.dequantize();
    ASSERT_TRUE(code == NIBBLE_OK || code == NIBBLE_USAGE || code == NIBBLE_BAD_INPUT) << code;
    if (code != NIBBLE_OK) message();
    for (const Memory* memory : call.codes()) ASSERT_TRUE(memory->kept_inside());
    ASSERT_TRUE(call.weights.kept_inside());
    ++(code == NIBBLE_OK ? passed : refused);
  }
  EXPECT_GT(passed, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(RandomArguments, Int8EndsInACodeAndASentence) {
  std::mt19937_64 random(2);
  int passed = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    Int8Call call;
    for (Memory* memory : {&call.codes, &call.absmax, &call.weights}) memory->randomize(random);
    call.threads = any<std::uint32_t>(random, {0, 1, 2, 7, 0xffffffff});
    for (std::uint64_t fault = random() % 3; fault > 0; --fault) {
      const std::array arrays = {&call.weights_array, &call.weight.codes, &call.weight.absmax};
      nibble_array& array = *arrays[random() % arrays.size()];
      switch (random() % 6) {
        case 0:
          claim_another_size(array, random);
          break;
        case 1:
          array.data = nullptr;
          break;
        case 2:
          array = {};
          break;
        case 3:
          call.weight.rows = any<std::uint64_t>(random, {0, 1, 9, huge, std::uint64_t{1} << 62});
          break;
        case 4:
          call.weight.columns = any<std::uint64_t>(random, {0, 1, 32, huge, std::uint64_t{1} << 63});
          break;
        case 5:
          call.dtype = any<std::int32_t>(random, {-1, 1, 2, 3});
          break;
      }
    }
    const int code = random() % 2 == 0 ? call.quantize() : call.dequantize();
    ASSERT_TRUE(code == NIBBLE_OK || code == NIBBLE_USAGE) << code;
    if (code != NIBBLE_OK) message();
    for (const Memory* memory : {&call.codes, &call.absmax, &call.weights}) ASSERT_TRUE(memory->kept_inside());
    ++(code == NIBBLE_OK ? passed : refused);
  }
  EXPECT_GT(passed, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace nibble::c_api_test
