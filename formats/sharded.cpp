#include "formats/sharded.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "formats/json.hpp"
#include "formats/names.hpp"
#include "formats/refuse.hpp"

namespace nibble {
namespace {

constexpr std::string_view weight_map = "weight_map";

bool is_component(std::string_view name) {
  constexpr std::size_t longest = 255;  // NAME_MAX of every file system in use
  return !name.empty() && name.size() <= longest && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

class IndexEvents final : public json::Events {
 public:
  explicit IndexEvents(std::string_view label) : label_(label) {}

  std::vector<std::string> names;                // of tensors
  std::vector<std::size_t> shards;               // of each tensor: a value of the map below
  std::map<std::string, std::size_t> shard_ids;  // in order of appearance
  bool found = false;

  void on_key(std::string& name) override {
    if (depth_ == 1) {
      inside_ = name == weight_map;
      if (inside_ && found) refuse(label_, "duplicate key '{}'", weight_map);
      found = found || inside_;
    } else if (inside_) {
      names.push_back(std::move(name));
    }
  }

  void on_string(std::string& value) override {
    if (!in_map()) return scalar("a string");
    if (!is_component(value))
      refuse(label_, "{}: tensor '{}' is in '{}', which does not name a file in the same directory", weight_map,
             printable(names.back()), printable(value));
    shards.push_back(shard_ids.try_emplace(std::move(value), shard_ids.size()).first->second);
  }

  void on_unsigned(std::uint64_t) override { scalar("a number"); }
  void on_null() override { scalar("null"); }
  void on_other(std::string_view kind) override { scalar(kind); }
  void on_object() override { open("an object", true); }
  void on_object_end() override { --depth_; }
  void on_array() override { open("an array", false); }
  void on_array_end() override { --depth_; }

 private:
  bool in_map() const { return inside_ && depth_ == 2; }

  void scalar(std::string_view kind) const {
    if (depth_ == 0) refuse(label_, "is {}, not an object", kind);
    if (inside_ && depth_ == 1) refuse(label_, "{} is {}, not an object", weight_map, kind);
    if (inside_) refuse(label_, "{}: tensor '{}' is in {}, not in a file", weight_map, printable(names.back()), kind);
  }

  void open(std::string_view kind, bool object) {
    if (in_map() || (!object && (depth_ == 0 || inside_))) scalar(kind);
    ++depth_;
  }

  std::string_view label_;
  std::size_t depth_ = 0;
  bool inside_ = false;  // weight_map is the latest key of the outermost object
};

}  // namespace

ShardIndex parse_index(std::string_view text, std::string_view label) {
  IndexEvents events(label);
  json::parse(text, label, events);
  if (!events.found) refuse(label, "has no {}", weight_map);
  if (events.names.empty()) refuse(label, "{} is empty", weight_map);
  if (const auto twice = NameIndex({events.names.begin(), events.names.end()}).duplicate())
    refuse(label, "{}: duplicate tensor '{}'", weight_map, printable(events.names[twice->second]));

  ShardIndex index;
  std::vector<std::size_t> place(events.shard_ids.size());  // from order of appearance to sorted
  for (const auto& [name, id] : events.shard_ids) {
    place[id] = index.files.size();
    index.files.push_back(name);
  }
  index.tensors.reserve(events.names.size());
  for (std::size_t i = 0; i < events.names.size(); ++i)
    index.tensors.emplace_back(std::move(events.names[i]), place[events.shards[i]]);
  return index;
}

}  // namespace nibble
