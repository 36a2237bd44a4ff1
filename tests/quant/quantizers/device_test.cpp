// A device behind the codecs and in a conversion: libnibble_cuda with the simulator in it (tests/CMakeLists.txt).
#include "quant/quantizers/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "nibble/error.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/jobs/convert/convert.hpp"
#include "quant/stream/conversion_memory.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/memory_checkpoint.hpp"
#include "tests/support/program.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::device_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

class Devices : public testing::Test {
 protected:
  Variable library_{"NIBBLE_CUDA_LIBRARY", test::built("tests/libnibble_cuda_simulated.so").c_str()};
};

std::string refusal() {
  return test::error_of([] { static_cast<void>(Device::open(DeviceChoice::cuda)); }, Errc::usage);
}

TEST_F(Devices, AreOpenedByChoice) {
  EXPECT_EQ(Device::open(DeviceChoice::cpu), nullptr);
  for (const DeviceChoice choice : {DeviceChoice::automatic, DeviceChoice::cuda}) {
    const auto device = Device::open(choice);
    ASSERT_NE(device, nullptr);
    EXPECT_EQ(device->name(), "simulated device");
    EXPECT_EQ(device->chunks(), 0u);
    EXPECT_THAT(device->warnings(), IsEmpty());
  }
}

// Asked for, what is missing is an error; chosen automatically, it is the CPU.
TEST_F(Devices, ThatCannotBeUsed) {
  for (const auto& [fault, why] : std::map<std::string, std::string>{
           {"none", "no device can be used: there is none"},
           {"old", "no device can be used: simulated device is sm_75, at least sm_80 is needed"},
           {"device_count", "no device can be used: device_count: a fault was asked for"},
           {"use_device", "simulated device cannot be used: use_device: a fault was asked for"},
           {"stream", "simulated device cannot be used: stream: a fault was asked for"}}) {
    const Variable asked("NIBBLE_SIMULATED_FAULT", fault.c_str());
    EXPECT_EQ(refusal(), "cannot use CUDA: " + why);
    EXPECT_EQ(test::remedy_of([] { (void)Device::open(DeviceChoice::cuda); }).kind, Remedy::Kind::device);
    EXPECT_EQ(Device::open(DeviceChoice::automatic), nullptr) << fault;
  }
}

TEST_F(Devices, LibrariesThatAreNotIt) {
  const std::string tomorrow = test::built("tests/libnibble_cuda_of_tomorrow.so");
  const std::string incomplete = test::built("tests/libnibble_cuda_incomplete.so");
  for (const auto& [file, why] : std::map<std::string, std::string>{
           {"/no/such/libnibble_cuda.so", "/no/such/libnibble_cuda.so: cannot open shared object file: No such file"},
           {NIBBLE_TEST_DATA "/CMakeLists.txt", "CMakeLists.txt: "},
           {"libc.so.6",
            "libc.so.6: has no nibble_device_interface_version, so it is not the libnibble_cuda of this version"},
           {incomplete, incomplete + ": has no nibble_last_error, so it is not the libnibble_cuda of this version"},
           {tomorrow, tomorrow + ": has version 2 of the device interface, this nibble needs 1"}}) {
    const Variable other("NIBBLE_CUDA_LIBRARY", file.c_str());
    EXPECT_THAT(refusal(), StartsWith("cannot use CUDA: "));
    EXPECT_THAT(refusal(), HasSubstr(why));
    EXPECT_THAT(refusal(), Not(HasSubstr("\n")));
    EXPECT_EQ(Device::open(DeviceChoice::automatic), nullptr) << file;
  }
}

TEST_F(Devices, PinnedMemoryBeginsPages) {
  const auto device = Device::open(DeviceChoice::cuda);
  std::pmr::memory_resource* const memory = DeviceEncoder(*device).pinned_memory();
  EXPECT_EQ(chunk_memory(device.get()), memory);
  EXPECT_EQ(chunk_memory(nullptr), nullptr);
  std::vector<void*> pieces;
  for (const std::size_t bytes : {1u, 4096u, 4097u, 100'000u}) {
    pieces.push_back(memory->allocate(bytes, 64));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pieces.back()) % 4096, 0u);
    std::memset(pieces.back(), 1, bytes);
  }
  for (const std::size_t bytes : {100'000u, 4097u, 4096u, 1u}) {
    memory->deallocate(pieces.back(), bytes, 64);
    pieces.pop_back();
  }
  EXPECT_THAT(device->warnings(), IsEmpty());  // each of them could be pinned
}

// --- Codecs

std::vector<CodecSpec> formats() {
  std::vector<CodecSpec> formats{"int8"};
  for (const std::string codec : {"nf4", "fp4"})
    for (const std::uint32_t blocksize : {32u, 64u, 512u, 4096u})
      for (const bool double_quant : {true, false}) formats.push_back(four_bit_spec(codec, blocksize, double_quant));
  return formats;
}

// Shapes with odd tails, of one row and of one column; chunks of one block or row to all of it.
TEST_F(Devices, EncodeAsTheCpuDoes) {
  const auto device = Device::open(DeviceChoice::cuda);
  unsigned seed = 0;
  for (const CodecSpec& format : formats())
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
      for (const Shape& shape : {Shape{1, 1}, Shape{3, 4099}, Shape{77, 1}, Shape{0, 5}}) {
        const TensorInfo tensor{"w", dtype, shape};
        const auto bytes = test::stored_as(dtype, test::normal_weights(tensor.elements(), ++seed, 0.05f));
        const auto codec = make_codec(format);
        const std::uint64_t before = device->chunks();
        for (const std::uint64_t limit : {100u, 4096u, 1u << 20})
          ASSERT_EQ(test::encode(*codec, tensor, bytes,
                                 {.limit = limit, .quantizer = {.sums_errors = true, .device = device.get()}}),
                    test::encode(*codec, tensor, bytes, {.limit = limit, .quantizer = {.sums_errors = true}}))
              << format.text() << ' ' << traits(dtype).name << ' ' << to_string(shape) << ' ' << limit;
        EXPECT_EQ(device->chunks() > before, dtype != DType::f64 && tensor.elements() > 0);
      }
}

// What is not finite is the CPU's, with its findings; the other chunks stay the device's.
TEST_F(Devices, LeaveWhatIsNotFiniteToTheCpu) {
  const auto device = Device::open(DeviceChoice::cuda);
  const TensorInfo tensor{"w", DType::bf16, {16, 4096}};
  auto weights = test::normal_weights(tensor.elements(), 1, 0.05f);
  weights[3 * 4096 + 17] = std::numeric_limits<float>::quiet_NaN();
  weights[5 * 4096] = -std::numeric_limits<float>::infinity();
  weights[9 * 4096 + 4095] = 70000.0f;  // beyond fp16, so for int8 alone
  const auto bytes = test::stored_as(tensor.dtype, weights);
  for (const std::string codec : {"nf4", "int8"}) {
    const std::uint64_t before = device->chunks();
    const auto encoded =
        test::encode(*make_codec(codec), tensor, bytes, {.limit = 4096, .quantizer = {.device = device.get()}});
    EXPECT_EQ(encoded, test::encode(*make_codec(codec), tensor, bytes, 4096));
    EXPECT_EQ(encoded.findings.nan, 1u);
    EXPECT_EQ(encoded.findings.inf, 1u);
    EXPECT_EQ(device->chunks() - before, codec == "int8" ? 13u : 14u);
  }
}

// --- Conversions

struct Result {
  std::map<std::string, std::vector<std::byte>> parts;
  std::string manifest;
  std::vector<std::string> warnings;
  bool committed = false;
};

Result converted(Device* device, ErrorReport error_report = ErrorReport::basic) {
  test::MemoryReader in;
  for (int i = 0; i < 3; ++i)
    in.add_normal("layer." + std::to_string(i) + ".weight", i == 1 ? DType::f32 : DType::bf16, {200, 1000});
  Recipe recipe;
  recipe.to = "nf4";
  recipe.error_report = error_report;
  recipe.rules = {{"layer.2.weight", "int8"}};
  recipe.allow_nibble_only = true;
  test::MemoryWriter out;
  Progress progress;
  const Report report =
      convert(in, make_plan(in, recipe), out, {.threads = 2, .max_memory = 17'000'000, .device = device}, progress);
  return {out.parts(), out.manifest(), test::texts(report.warnings), out.finish().has_value()};
}

void expect_same(const Result& actual, const Result& expected) {
  EXPECT_TRUE(actual.committed);
  EXPECT_TRUE(actual.parts == expected.parts);
  EXPECT_EQ(actual.manifest, expected.manifest);
}

TEST_F(Devices, ConvertToTheSameBytes) {
  for (const ErrorReport report : {ErrorReport::none, ErrorReport::basic, ErrorReport::full}) {
    const auto device = Device::open(DeviceChoice::cuda);
    const Result result = converted(device.get(), report);
    expect_same(result, converted(nullptr, report));
    EXPECT_EQ(result.warnings, converted(nullptr, report).warnings);
    EXPECT_GT(device->chunks(), 10u);
  }
}

// One that was asked for ends the conversion; of one that was chosen automatically the CPU takes over.
TEST_F(Devices, ThatFailInTheMiddle) {
  const Result expected = converted(nullptr);
  for (const std::string step :
       {"use_device:9", "memory:2", "copy_to_device:5", "clear:3", "copy_to_host:7", "wait:4"}) {
    const std::string text = step.substr(0, step.find(':')) + ": a fault was asked for";
    const auto asked = Device::open(DeviceChoice::cuda), automatic = Device::open(DeviceChoice::automatic);
    {
      const Variable fault("NIBBLE_SIMULATED_FAULT", step.c_str());
      EXPECT_THAT(test::error_of([&] { converted(asked.get()); }, Errc::io),
                  testing::AllOf(StartsWith("cannot use CUDA: simulated device"), testing::EndsWith(text)));
    }
    const Variable fault("NIBBLE_SIMULATED_FAULT", (step + " ").c_str());  // another text, so it counts anew
    const Result result = converted(automatic.get());
    expect_same(result, expected);
    EXPECT_THAT(result.warnings, Contains(HasSubstr(text + "; the CPU encoded the rest"))) << step;
  }
}

// Two threads need two queues, of which the device has made one when it is opened.
TEST_F(Devices, QueuesAreUsedAgain) {
  const auto device = Device::open(DeviceChoice::cuda);
  const Variable fault("NIBBLE_SIMULATED_FAULT", "stream:2");
  EXPECT_TRUE(converted(device.get()).committed);
}

TEST_F(Devices, MemoryThatCannotBePinnedIsAWarning) {
  const auto device = Device::open(DeviceChoice::cuda);
  const Variable fault("NIBBLE_SIMULATED_FAULT", "pin");
  const Result result = converted(device.get());
  expect_same(result, converted(nullptr));
  EXPECT_GT(device->chunks(), 10u);
  EXPECT_THAT(result.warnings, Contains("simulated device: memory could not be pinned, so copies wait for each other: "
                                        "pin: a fault was asked for"));
}

TEST_F(Devices, MemoryIsPlannedForThem) {
  test::MemoryReader in;
  in.add_normal("layer.weight", DType::bf16, {4096, 1000});
  Recipe recipe;
  recipe.to = "nf4";
  const Plan plan = make_plan(in, recipe);
  const auto device = Device::open(DeviceChoice::cuda);
  const ConversionMemory without = conversion_memory(plan, {.threads = 4}),
                         with = conversion_memory(plan, {4, 1'000'000'000, device.get()});
  EXPECT_EQ(with.chunk_bytes, without.chunk_bytes);
  // Four queues with the absmax of a chunk, each from the beginning of a page.
  EXPECT_EQ(with.total_bytes - without.total_bytes, 4 * (with.chunk_bytes / 16 + 4096));
}

}  // namespace
}  // namespace nibble::device_test
