// The same bytes for any number of threads, any size of chunks, on every CPU target and on a device (a simulated one),
// by the program itself.
//
// NIBBLE_PEER is the path of a nibble that was built otherwise and joins the comparison: by clang (tests/targets.sh),
// or with ThreadSanitizer, whose reports end it with an exit code.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/codec.hpp"
#include "nibble/codec_spec.hpp"
#include "nibble/tensor.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::cli::determinism_test {
namespace {

namespace fs = std::filesystem;

// What may differ between two conversions that write the same.
struct How {
  int threads = 1;
  std::string max_memory = "1GB";
  std::string target;
  std::string program = test::program();
  std::string device = "cpu";

  friend std::ostream& operator<<(std::ostream& out, const How& how) {
    return out << how.program << ", " << how.threads << " threads, " << how.max_memory << ", target '" << how.target
               << "', device " << how.device;
  }
};

// What leaves room for chunks of 1 MiB, of 512 KiB with 2 threads and 64 KiB with 64, and of 64 KiB with 2 threads.
constexpr const char* largest_chunks = "1GB";
constexpr const char* middling_chunks = "28MB";
constexpr const char* smallest_chunks = "18MB";

class File {
 public:
  void add(const std::string& name, DType dtype, const Shape& shape, const test::Bytes& bytes) {
    header_[name] = {
        {"dtype", traits(dtype).name}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  // Normal weights, with the given values spread among them.
  void add_normal(const std::string& name, DType dtype, const Shape& shape, const std::vector<float>& special = {}) {
    const TensorInfo tensor{name, dtype, shape};
    std::vector<float> weights = test::normal_weights(tensor.elements(), ++seed_, 0.05f);
    for (std::size_t i = 0; i < special.size(); ++i) weights[weights.size() * i / special.size()] = special[i];
    add(name, dtype, shape, test::stored_as(dtype, weights));
  }

  void write(const fs::path& path) const {
    std::ofstream(path, std::ios::binary) << test::safetensors_file(header_.dump(), data_);
  }

 private:
  nlohmann::ordered_json header_;
  std::string data_;
  unsigned seed_ = 0;
};

#ifdef NIBBLE_SIMULATOR
constexpr bool simulator = true;
#else
constexpr bool simulator = false;
#endif

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr DType weight_types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

// 20 MB: tensors of many chunks and of odd lengths, rows longer than a chunk, many small tensors in one pipeline,
// tensors that restart their file because they are kept.
void write_layers(const fs::path& path) {
  File file;
  file.add_normal("large.weight", DType::f32, {1031, 2049}, {0.0f, -0.0f, 1e-40f, -1e-45f, 3.0f, 60000.0f});
  file.add_normal("wide.weight", DType::f32, {3, 300'001}, {1e-30f});
  for (const DType dtype : weight_types) {
    const std::string type(traits(dtype).name);
    file.add_normal(type + ".weight", dtype, {257, 1023}, {1e-6f, -1e-8f, 2.0f});
    file.add_normal(type + ".nan.weight", dtype, {65, 131}, {1.0f, nan});
    file.add_normal(type + ".inf.weight", dtype, {31, 77}, {-infinity});
    file.add_normal(type + ".bias", dtype, {333});
  }
  for (std::size_t i = 0; i < 150; ++i)
    file.add_normal(fmt::format("small.{}.weight", i), weight_types[i % 4], {1 + i % 7, 1 + i * 13 % 200});
  file.add("empty.weight", DType::f32, {0, 64}, {});
  file.add("positions", DType::i64, {3}, test::Bytes(24, std::byte{7}));
  file.write(path);
}

// 6 MB of transposed matrices, in several output shards.
void write_gpt2(const fs::path& directory) {
  fs::create_directory(directory);
  std::ofstream(directory / "config.json") << R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2"})";
  File file;
  file.add_normal("transformer.wte.weight", DType::bf16, {501, 96});
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    file.add_normal(layer + "attn.c_attn.weight", DType::bf16, {96, 288});
    file.add_normal(layer + "mlp.c_fc.weight", i == 2 ? DType::f32 : DType::bf16, {97, 3001},
                    i == 1 ? std::vector<float>{1.0f, nan} : std::vector<float>{1.0f});
    file.add_normal(layer + "ln_1.weight", DType::bf16, {96});
  }
  file.write(directory / "model.safetensors");
}

// For every codec up to three formats: in the second and third, every option has another value.
std::vector<CodecSpec> formats() {
  std::vector<CodecSpec> formats;
  for (const std::string_view name : codec_names()) {
    if (CodecSpec(name).keeps()) continue;  // no target of a conversion
    for (std::size_t step = 0; step < 3; ++step) {
      CodecSpec format(name);
      for (const CodecOption& option : format.info().options)
        format = format.with(option.name, option.values[(option.default_value + step) % option.values.size()]);
      if (std::ranges::find(formats, format) == formats.end()) formats.push_back(format);
    }
  }
  return formats;
}

class Determinism : public testing::TestWithParam<CodecSpec> {
 protected:
  static void SetUpTestSuite() {
    root_ = new test::TempDir;
    write_layers(root_->path() / "layers.safetensors");
    write_gpt2(root_->path() / "gpt2");
  }
  static void TearDownTestSuite() { delete root_; }

  static std::string output_of(const std::string& command) {
    const test::Outcome outcome = test::run_command(root_->path(), command);
    EXPECT_EQ(outcome.code, 0) << command << ": " << outcome.err;
    return outcome.out;
  }

  static std::string convert(const std::string& in, const std::string& out, const CodecSpec& to, const How& how,
                             const char* dry_run = "") {
    return output_of(
        // A copy that is not from or to pinned memory would fail.
        fmt::format("NIBBLE_CUDA_LIBRARY='{}' NIBBLE_SIMULATED_FAULT=unpinned NIBBLE_CPU_TARGET='{}' "
                    "'{}' convert {} {} --to {} --threads {} --max-memory {} --device {} "
                    "{} {} --progress none --json {}",
                    test::built("tests/libnibble_cuda_simulated.so"), how.target, how.program, in, out, to.text(),
                    how.threads, how.max_memory, how.device, in == "gpt2" ? "--max-shard-size 200KB" : "",
                    make_codec(to)->quantizes() ? "--allow-nibble-only" : "", dry_run));
  }

  // All bytes that a conversion writes, by file. Reads what a run wrote and removes it.
  static std::map<std::string, std::string> converted(const CodecSpec& to, const How& how) {
    convert("layers.safetensors", "out/layers.safetensors", to, how);
    convert("gpt2", "out/gpt2", to, how);
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(root_->path() / "out"))
      if (entry.is_regular_file()) files[entry.path().string()] = test::read_file(entry.path());
    fs::remove_all(root_->path() / "out");
    return files;
  }

  static inline test::TempDir* root_ = nullptr;
};

TEST_P(Determinism, SameBytesHoweverTheyAreMade) {
  std::vector<How> ways;
  for (const int threads : {1, 2, 7, 64})
    for (const char* const max_memory : {largest_chunks, middling_chunks}) ways.push_back({threads, max_memory, {}});
  ways.push_back({2, smallest_chunks, {}});
  const auto formats = nlohmann::json::parse(output_of("'" + test::program() + "' formats --json"));
  for (const std::string target : formats.at("cpu_targets")) ways.push_back({2, middling_chunks, target});
  if (simulator)
    for (const auto& [threads, max_memory] :
         {std::pair(1, smallest_chunks), std::pair(2, largest_chunks), std::pair(7, middling_chunks)})
      ways.push_back({threads, max_memory, {}, test::program(), "cuda"});
  if (const char* const peer = std::getenv("NIBBLE_PEER"); peer != nullptr) {
    ways.push_back({7, smallest_chunks, {}, peer});
    const auto others = nlohmann::json::parse(output_of(fmt::format("'{}' formats --json", peer)));
    for (const std::string target : others.at("cpu_targets")) ways.push_back({2, middling_chunks, target, peer});
  }

  fs::create_directory(root_->path() / "out");
  const auto expected = converted(GetParam(), {});
  EXPECT_GE(expected.size(), 7u);  // a file, two manifests, a configuration, an index, at least two shards
  for (const How& how : ways) {
    fs::create_directory(root_->path() / "out");
    const auto files = converted(GetParam(), how);
    ASSERT_EQ(files.size(), expected.size()) << how;
    for (const auto& [name, bytes] : expected) EXPECT_TRUE(files.at(name) == bytes) << name << " differs: " << how;
  }
}

// Otherwise the test above compares equals, as it does for casts and for codecs that no device knows.
TEST_P(Determinism, TheDeviceEncodes) {
  if (!simulator) GTEST_SKIP() << "the simulator is not built";
  const How how{.threads = 2, .max_memory = middling_chunks, .target = {}, .device = "cuda"};
  const auto report = nlohmann::json::parse(convert("layers.safetensors", "out.safetensors", GetParam(), how));
  const bool uses_device =
      make_quantizer(*make_codec(GetParam()))->uses_device({"large.weight", DType::f32, {1031, 2049}});
  EXPECT_EQ(report.at("device"), uses_device ? "simulated device" : "cpu");
  for (const auto& warning : report.at("warnings")) EXPECT_THAT(warning, testing::Not(testing::HasSubstr("device")));
  fs::remove(root_->path() / "out.safetensors");
  fs::remove(root_->path() / "out.safetensors.nibble.json");
}

// The same for the next one.
TEST_P(Determinism, TheMemoriesCutDifferentChunks) {
  std::set<std::string> chunks;
  for (const char* const max_memory : {largest_chunks, middling_chunks, smallest_chunks}) {
    const std::string plan =
        convert("layers.safetensors", "out.safetensors", GetParam(), {2, max_memory, {}}, "--dry-run");
    const auto json = nlohmann::json::parse(plan);
    chunks.insert(json.at("chunk_bytes").dump() + " " + json.at("batch_bytes").dump());
  }
  EXPECT_EQ(chunks.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Codecs, Determinism, testing::ValuesIn(formats()),
                         [](const auto& each) { return std::string(each.param.name()) + std::to_string(each.index); });

}  // namespace
}  // namespace nibble::cli::determinism_test
