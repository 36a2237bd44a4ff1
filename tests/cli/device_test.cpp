// nibble convert --device, as its users meet it; the device is simulated (tests/CMakeLists.txt).
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::cli::device_test {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class DeviceOption : public testing::Test {
 protected:
  // w.safetensors is one matrix of 2 MiB, so it has chunks; large.safetensors has a hole of 256 MiB.
  DeviceOption() {
    write("w.safetensors", 512, 1024, 4);
    write("large.safetensors", 1 << 14, 1 << 13, 2);
  }

  void write(const char* name, std::size_t rows, std::size_t columns, std::size_t size) const {
    const nlohmann::json header = {{"layer.weight",
                                    {{"dtype", size == 4 ? "F32" : "BF16"},
                                     {"shape", {rows, columns}},
                                     {"data_offsets", {0, rows * columns * size}}}}};
    std::ofstream(root_.path() / name, std::ios::binary) << test::safetensors_file(header.dump());
    fs::resize_file(root_.path() / name, fs::file_size(root_.path() / name) + rows * columns * size);
  }

  Outcome run(const std::string& arguments, const std::string& environment = {}) const {
    const char* const to = arguments.find(" --to ") == std::string::npos ? " --to nf4" : "";
    return test::run_program(
        root_.path(), arguments + to + " --max-memory 20MB",
        "NIBBLE_CUDA_LIBRARY='" + test::built("tests/libnibble_cuda_simulated.so") + "' " + environment);
  }

  test::TempDir root_;
};

TEST_F(DeviceOption, SaysWhereCodecsRan) {
  EXPECT_THAT(run("convert w.safetensors a.safetensors --device cuda").out,
              HasSubstr("/s) on simulated device\n1 tensor: 1 nf4"));
  EXPECT_THAT(run("convert w.safetensors b.safetensors --device cpu").out,
              HasSubstr("/s) on the CPU\n1 tensor: 1 nf4"));
  const auto device = [&](const std::string& arguments) {
    return nlohmann::json::parse(run("convert w.safetensors c.safetensors --overwrite --json " + arguments).out)
        .at("device");
  };
  EXPECT_EQ(device("--device cuda"), "simulated device");
  EXPECT_EQ(device("--device cpu"), "cpu");
  // Nothing for a device to do.
  EXPECT_EQ(device("--device cuda --to fp8"), "cpu");
  EXPECT_EQ(device("--device cuda --tensor '.*=keep'"), "cpu");
  EXPECT_EQ(test::read_file(root_.path() / "a.safetensors"), test::read_file(root_.path() / "b.safetensors"));
  EXPECT_EQ(test::read_file(root_.path() / "a.safetensors.nibble.json"),
            test::read_file(root_.path() / "b.safetensors.nibble.json"));
}

TEST_F(DeviceOption, ErrorsAreOneLine) {
  struct Case {
    std::string environment;
    int code;
    std::string text;
  };
  for (const auto& [environment, code, text] : std::initializer_list<Case>{
           {"NIBBLE_CUDA_LIBRARY=/no/such.so", 2, "/no/such.so: cannot open shared object file"},
           {"NIBBLE_CUDA_LIBRARY='" + test::built("tests/libnibble_cuda_of_tomorrow.so") + "'", 2,
            "has version 2 of the device interface"},
           {"NIBBLE_SIMULATED_FAULT=none", 2, "no device can be used: there is none"},
           {"NIBBLE_SIMULATED_FAULT=old", 2, "sm_75"},
           {"NIBBLE_SIMULATED_FAULT=device_count", 2, "device_count: a fault"},
           {"NIBBLE_SIMULATED_FAULT=memory:2", 4, "simulated device: memory: a fault"},
           {"NIBBLE_SIMULATED_FAULT=copy_to_device:5", 4, "simulated device: copy_to_device: a fault"},
           {"NIBBLE_SIMULATED_FAULT=copy_to_host:6", 4, "simulated device: copy_to_host: a fault"},
           {"NIBBLE_SIMULATED_FAULT=wait:4", 4, "simulated device: wait: a fault"}}) {
    const Outcome outcome =
        run("convert w.safetensors out.safetensors --threads 2 --progress none --device cuda", environment);
    EXPECT_EQ(outcome.code, code) << environment;
    EXPECT_THAT(outcome.err, StartsWith("error: cannot use CUDA: "));
    EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    // w and large: nothing else
    EXPECT_EQ(std::distance(fs::directory_iterator(root_.path()), fs::directory_iterator()), 2) << environment;
  }
  EXPECT_EQ(run("convert w.safetensors out.safetensors --device gpu").code, 2);
}

// The library that was built, or none: where there is no GPU, that is what it says.
TEST_F(DeviceOption, WithoutAGpu) {
  const Outcome outcome = run("convert w.safetensors out.safetensors --device cuda", "NIBBLE_CUDA_LIBRARY=");
  if (outcome.code == 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, StartsWith("error: cannot use CUDA: "));
  EXPECT_EQ(run("convert w.safetensors out.safetensors --device auto", "NIBBLE_CUDA_LIBRARY=").code, 0);
}

// Which libraries the program looks for, as the loader tells.
TEST_F(DeviceOption, AutomaticStartsNothingInVain) {
  if (!std::ifstream("/proc/self/maps")) GTEST_SKIP() << "no Linux";
  const auto looked_for = [&](const std::string& arguments, const std::string& environment) {
    const Outcome outcome =
        run("convert " + arguments + " --dry-run", environment + " LD_DEBUG=libs LD_DEBUG_OUTPUT=loader");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::string text;
    for (const auto& entry : fs::directory_iterator(root_.path()))
      if (entry.path().filename().string().starts_with("loader")) {
        text += test::read_file(entry.path());
        fs::remove(entry.path());
      }
    EXPECT_THAT(text, HasSubstr("libtbb"));
    return text;
  };
  // Without a driver not even the library.
  const std::string plain = looked_for("large.safetensors x.safetensors --device auto", "NIBBLE_CUDA_LIBRARY=");
  EXPECT_THAT(plain, HasSubstr("libcuda.so.1"));
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) {
    EXPECT_THAT(plain, Not(HasSubstr("libnibble_cuda")));
  }
  // Little work, or the CPU: neither.
  for (const std::string arguments :
       {"w.safetensors x.safetensors --device auto", "large.safetensors x.safetensors --device cpu",
        "large.safetensors x.safetensors", "large.safetensors x.safetensors --device auto --to fp8"}) {
    EXPECT_THAT(looked_for(arguments, ""), Not(HasSubstr("nibble_cuda_simulated"))) << arguments;
    EXPECT_THAT(looked_for(arguments, "NIBBLE_CUDA_LIBRARY="), Not(HasSubstr("libcuda"))) << arguments;
  }
  EXPECT_THAT(looked_for("large.safetensors x.safetensors --device auto", ""), HasSubstr("nibble_cuda_simulated"));
  EXPECT_THAT(looked_for("w.safetensors x.safetensors --device cuda", ""), HasSubstr("nibble_cuda_simulated"));
}

}  // namespace
}  // namespace nibble::cli::device_test
