#include "formats/containers/sharded.hpp"

#include <algorithm>
#include <utility>

#include "core/refuse.hpp"
#include "core/text/text_pool.hpp"

namespace nibble {
namespace {

constexpr std::string_view weight_map = "weight_map";

bool is_component(std::string_view name) {
  constexpr std::size_t max_bytes = 255;  // NAME_MAX of every file system in use
  return !name.empty() && name.size() <= max_bytes && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

class IndexEvents final : public json::Events {
 public:
  IndexEvents(std::string_view label, TakenMemory& memory, const std::function<void(const std::string&)>& check_shard)
      : label_(label), memory_(memory), check_shard_(check_shard) {}

  NameList names;                     // of tensors
  std::vector<std::uint32_t> shards;  // of each tensor: a number in the pool below
  TextPool shard_names;
  std::uint32_t shard_count = 0;
  bool found = false;

  void on_key(std::string& name) override {
    if (depth_ == 1) {
      inside_ = name == weight_map;
      if (inside_ && found) refuse(label_, "duplicate key '{}'", weight_map);
      found = found || inside_;
    } else if (inside_) {
      memory_.add(growing * (name.size() + bytes_per_tensor) + NameIndex::bytes_per_name);
      names.push_back(name);
    }
  }

  void on_string(std::string& value) override {
    if (!in_map()) return scalar("a string");
    if (!is_component(value))
      refuse(label_, "{}: tensor '{}' is in '{}', which does not name a file in the same directory", weight_map,
             printable(latest()), printable(value));
    shards.push_back(shard_names.add(value));
    if (shards.back() < shard_count) return;
    ++shard_count;
    memory_.add(growing * (value.size() + bytes_per_shard) + value.size());
    check_shard_(value);
  }

  void on_unsigned(std::uint64_t) override { scalar("a number"); }
  void on_null() override { scalar("null"); }
  void on_other(std::string_view kind) override { scalar(kind); }
  void on_object() override { open("an object", true); }
  void on_object_end() override { --depth_; }
  void on_array() override { open("an array", false); }
  void on_array_end() override { --depth_; }

 private:
  static constexpr std::uint64_t growing = 2;  // lists double when they are full
  static constexpr std::uint64_t bytes_per_tensor = NameList::bytes_per_name + sizeof(std::uint32_t);
  static constexpr std::uint64_t bytes_per_shard = 64;  // in the pool with its table, and sorted

  bool in_map() const { return inside_ && depth_ == 2; }
  std::string_view latest() const { return names[names.size() - 1]; }

  void scalar(std::string_view kind) const {
    if (depth_ == 0) refuse(label_, "is {}, not an object", kind);
    if (inside_ && depth_ == 1) refuse(label_, "{} is {}, not an object", weight_map, kind);
    if (inside_) refuse(label_, "{}: tensor '{}' is in {}, not in a file", weight_map, printable(latest()), kind);
  }

  void open(std::string_view kind, bool object) {
    if (in_map() || (!object && (depth_ == 0 || inside_))) scalar(kind);
    ++depth_;
  }

  std::string_view label_;
  TakenMemory& memory_;
  const std::function<void(const std::string&)>& check_shard_;
  std::size_t depth_ = 0;
  bool inside_ = false;  // weight_map is the latest key of the outermost object
};

}  // namespace

ShardIndex parse_index(const json::Text& text, std::string_view label, TakenMemory& memory,
                       const std::function<void(const std::string&)>& check_shard) {
  IndexEvents events(label, memory, check_shard);
  json::parse(text, label, events, memory.limit());
  if (!events.found) refuse(label, "has no {}", weight_map);
  if (events.names.empty()) refuse(label, "{} is empty", weight_map);
  if (const auto twice = NameIndex(events.names).duplicate())
    refuse(label, "{}: duplicate tensor '{}'", weight_map, printable(events.names[twice->second]));

  ShardIndex index;
  for (std::uint32_t shard = 0; shard < events.shard_count; ++shard)
    index.files.emplace_back(events.shard_names[shard]);
  std::sort(index.files.begin(), index.files.end());
  // The pool may hold a name twice if other names share its hash.
  index.files.erase(std::unique(index.files.begin(), index.files.end()), index.files.end());
  std::vector<std::uint32_t> sorted(events.shard_count);  // the sorted number of each, by order of appearance
  for (std::uint32_t shard = 0; shard < events.shard_count; ++shard)
    sorted[shard] = static_cast<std::uint32_t>(
        std::lower_bound(index.files.begin(), index.files.end(), events.shard_names[shard]) - index.files.begin());
  for (std::uint32_t& shard : events.shards) shard = sorted[shard];
  index.tensors = std::move(events.names);
  index.shards = std::move(events.shards);
  return index;
}

}  // namespace nibble
