#include "formats/adapters/adapter_identity.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/files/file.hpp"
#include "core/xxh3.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t block_bytes = 1 << 20;

Json file_json(const std::string& name, std::uint64_t bytes, const Xxh3& hash) {
  return {{"name", name}, {"bytes", bytes}, {"xxh3_128", hash.hex()}};
}

Json hashed_file(const Directory& directory, const std::string& name, std::string label) {
  const InputFile file(directory.fd(), name, std::move(label));
  std::vector<std::byte> block(std::min(file.size(), block_bytes));
  Xxh3Stream hash;
  for (std::uint64_t offset = 0; offset < file.size(); offset += block.size()) {
    const auto part = std::span(block).first(std::min<std::uint64_t>(block.size(), file.size() - offset));
    file.read(offset, part);
    hash.append(part);
  }
  return file_json(name, file.size(), hash.digest());
}

}  // namespace

std::string adapter_identity(const Adapter& adapter, std::size_t tensors) {
  const AdapterConfig& config = adapter.config();
  Json files = Json::array();
  if (const auto& path = adapter.path(); !path.empty()) {
    const Directory directory(path);
    // Its settings are those of the text that was read.
    files.push_back(file_json(AdapterConfig::file_name, adapter.config_bytes(), adapter.config_hash()));
    for (const auto names : {adapter.weights().other_files(), adapter.weights().files()})
      for (const std::string& name : names)
        files.push_back(hashed_file(directory, name, escaped((path / name).native())));
  }
  const Json json = {{"peft_type", "LORA"},
                     {"r", config.rank()},
                     {"lora_alpha", config.alpha()},
                     {"use_rslora", config.is_rank_stabilized()},
                     {"use_dora", config.uses_dora()},
                     {"tensors", tensors},
                     {"files", std::move(files)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nibble
