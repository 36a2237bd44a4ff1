#include "formats/adapters/adapter_identity.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "core/xxh3.hpp"
#include "tests/support/adapter.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::adapter_identity_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;

std::string identity(const Adapter& adapter, std::size_t tensors) {
  return adapter_identity(adapter, tensors, [](std::string_view, std::uint64_t, std::uint64_t) {});
}

std::string hash(std::string_view text) { return xxh3(std::as_bytes(std::span(text))).hex(); }

std::string factor(const std::string& name, const Shape& shape) {
  test::WeightsFile file;
  file.add(name, DType::f32, shape, test::normal_weights(element_count(shape), 1));
  return file.bytes();
}

TEST(AdapterIdentity, IsThatOfItsFiles) {
  const std::string config = R"({"peft_type":"LORA","r":2,"lora_alpha":3,"use_rslora":true})";
  const std::string a = factor("q.lora_A.weight", {2, 300'000}), b = factor("q.lora_B.weight", {4, 2});
  const std::string index = R"({"weight_map":{"q.lora_A.weight":"a.safetensors","q.lora_B.weight":"b.safetensors"}})";
  const test::TempDir dir;
  dir.write("adapter_config.json", config);
  dir.write("a.safetensors", a);
  dir.write("b.safetensors", b);
  dir.write("adapter_model.safetensors.index.json", index);
  EXPECT_EQ(
      identity(Adapter(dir.path()), 7),
      Json({{"peft_type", "LORA"},
            {"r", 2},
            {"lora_alpha", 3.0},
            {"use_rslora", true},
            {"use_dora", false},
            {"tensors", 7},
            {"files",
             {{{"name", "adapter_config.json"}, {"bytes", config.size()}, {"xxh3_128", hash(config)}},
              {{"name", "adapter_model.safetensors.index.json"}, {"bytes", index.size()}, {"xxh3_128", hash(index)}},
              {{"name", "a.safetensors"}, {"bytes", a.size()}, {"xxh3_128", hash(a)}},
              {{"name", "b.safetensors"}, {"bytes", b.size()}, {"xxh3_128", hash(b)}}}}})
          .dump());
}

TEST(AdapterIdentity, TellsEveryMiBOfAllFiles) {
  constexpr std::uint64_t mib = 1 << 20;
  const std::string a = factor("q.lora_A.weight", {2, 300'000}), b = factor("q.lora_B.weight", {4, 2});
  const std::string index = R"({"weight_map":{"q.lora_A.weight":"a.safetensors","q.lora_B.weight":"b.safetensors"}})";
  const test::TempDir dir;
  dir.write("adapter_config.json", R"({"peft_type":"LORA","r":2})");
  dir.write("a.safetensors", a);
  dir.write("b.safetensors", b);
  dir.write("adapter_model.safetensors.index.json", index);
  const Adapter adapter(dir.path());
  const std::uint64_t total = index.size() + a.size() + b.size();
  using Told = std::tuple<std::string, std::uint64_t, std::uint64_t>;
  std::vector<Told> told;
  (void)adapter_identity(adapter, 1, [&](std::string_view file, std::uint64_t done, std::uint64_t of) {
    told.emplace_back(file, done, of);
  });
  EXPECT_THAT(told,
              ElementsAre(Told("adapter_model.safetensors.index.json", index.size(), total),
                          Told("a.safetensors", index.size() + mib, total),
                          Told("a.safetensors", index.size() + 2 * mib, total),
                          Told("a.safetensors", index.size() + a.size(), total), Told("b.safetensors", total, total)));
}

TEST(AdapterIdentity, OfOneFile) {
  const test::TempDir dir;
  dir.write("adapter_config.json", R"({"peft_type":"LORA"})");
  dir.write("adapter_model.safetensors", factor("w.weight", {2}));
  const Json told = Json::parse(identity(Adapter(dir.path()), 1));
  EXPECT_EQ(told.at("r"), 8);
  EXPECT_EQ(told.at("files").size(), 2u);
  EXPECT_EQ(told.at("files")[1].at("name"), "adapter_model.safetensors");
}

TEST(AdapterIdentity, OfPartsThereAreNoFiles) {
  const Json told = Json::parse(identity(test::AdapterMaker().add("w.weight", {2}).make(), 1));
  EXPECT_EQ(told.at("files").size(), 0u);
}

}  // namespace
}  // namespace nibble::adapter_identity_test
