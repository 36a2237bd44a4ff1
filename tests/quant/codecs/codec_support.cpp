// A file of its own because the JSON library would cost every test two seconds to compile.
#include "tests/quant/codecs/codec_support.hpp"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace nibble::test {

namespace {

std::map<std::string_view, CodecFacts*>& all_facts() {
  static std::map<std::string_view, CodecFacts*> all;
  return all;
}

}  // namespace

CodecFacts::CodecFacts(std::string_view codec, Bound its_bound) : bound(its_bound) { all_facts()[codec] = this; }

const CodecFacts& facts_of(std::string_view codec) {
  const auto found = all_facts().find(codec);
  if (found == all_facts().end())
    throw std::runtime_error("no test has CodecFacts of " + std::string(codec) + ", see codec_support.hpp");
  return *found->second;
}

std::vector<CodecDigests>& all_digests() {
  static std::vector<CodecDigests> all;
  return all;
}

GiveDigests::GiveDigests(std::initializer_list<CodecDigests> digests) {
  all_digests().insert(all_digests().end(), digests);
}

Golden::Golden() {
  std::ifstream file(NIBBLE_TEST_DATA "/golden/codecs.safetensors", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t header = 0;
  if (bytes.size() < sizeof(header)) throw std::runtime_error("tests/golden/codecs.safetensors cannot be read");
  std::memcpy(&header, bytes.data(), sizeof(header));
  const auto entries = nlohmann::json::parse(bytes.substr(8, header));
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    const auto data = std::as_bytes(std::span(bytes)).subspan(8 + header + begin, end - begin);
    tensors_[name] = {{name, *find_dtype(entry["dtype"].get<std::string>()), entry["shape"].get<Shape>()},
                      {data.begin(), data.end()}};
  }
}

}  // namespace nibble::test
