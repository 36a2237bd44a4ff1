#include "formats/adapters/adapter_identity.hpp"

#include <algorithm>
#include <filesystem>
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

// The files of weights, each opened when it is hashed: there may be more than the process may have open.
class WeightFiles {
 public:
  WeightFiles(const Adapter& adapter, const ReaderInternals::FileProgress& progress)
      : path_(adapter.path()), directory_(path_), progress_(progress) {
    for (const auto names : {adapter.weights().other_files(), adapter.weights().files()})
      for (const std::string& name : names) {
        names_.push_back(name);
        total_ += open(name).size();
      }
  }

  void add_to(Json& files) {
    for (const std::string& name : names_) files.push_back(hashed(name));
  }

 private:
  [[nodiscard]] InputFile open(const std::string& name) const {
    return {directory_.fd(), name, escaped((path_ / name).native())};
  }

  Json hashed(const std::string& name) {
    const InputFile file = open(name);
    std::vector<std::byte> block(std::min(file.size(), block_bytes));
    Xxh3Stream hash;
    for (std::uint64_t offset = 0; offset < file.size(); offset += block.size()) {
      const auto part = std::span(block).first(std::min<std::uint64_t>(block.size(), file.size() - offset));
      file.read(offset, part);
      hash.append(part);
      done_ += part.size();
      progress_(name, done_, total_);
    }
    return file_json(name, file.size(), hash.digest());
  }

  const std::filesystem::path& path_;
  Directory directory_;
  const ReaderInternals::FileProgress& progress_;
  std::vector<std::string> names_;
  std::uint64_t done_ = 0, total_ = 0;
};

}  // namespace

std::string adapter_identity(const Adapter& adapter, std::size_t tensors,
                             const ReaderInternals::FileProgress& progress) {
  const AdapterConfig& config = adapter.config();
  Json files = Json::array();
  if (!adapter.path().empty()) {
    // Its settings are those of the text that was read.
    files.push_back(file_json(AdapterConfig::file_name, adapter.config_bytes(), adapter.config_hash()));
    WeightFiles(adapter, progress).add_to(files);
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
