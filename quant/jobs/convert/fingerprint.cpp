#include "quant/jobs/convert/fingerprint.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "core/files/directory.hpp"
#include "core/xxh3.hpp"
#include "nibble/error.hpp"
#include "nibble/version.hpp"
#include "quant/jobs/convert/manifest.hpp"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Members = nlohmann::json;  // in the order of their names, whatever order a folder has

// The device is left out: after a restart, a disk may have another number.
std::string stamp_of(const fs::path& file) {
  struct stat status {};
  if (stat(file.c_str(), &status) != 0) return {};
  return fmt::format("{} {}.{:09} {}", status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ino);
}

Members input_stamps(const Reader& in) {
  Members inputs = Members::object();
  for (const std::span<const std::string> names : {in.files(), in.other_files()})
    for (const std::string& name : names)
      inputs[escaped(name)] = stamp_of(in.is_directory() ? in.path() / name : in.path());
  return inputs;
}

Members statistics_stamps(const fs::path& folder) {
  Members files = Members::object();
  if (folder.empty()) return files;  // converts without statistics
  for (const std::string& name : list_directory(folder, escaped(folder.native())))
    if (name.ends_with(".safetensors") || name.ends_with(".json")) files[escaped(name)] = stamp_of(folder / name);
  return files;
}

std::string hash_of_tensors(const Plan& plan) {
  Xxh3Stream hash;
  std::string text;
  for (const PlannedTensor& tensor : plan.tensors) {
    text.clear();
    fmt::format_to(std::back_inserter(text), "{} {} {} {} {} {} {} {} {} {}\n", tensor.info.name.size(),
                   tensor.info.name, tensor.codec.text(), tensor.source, tensor.source_offset, tensor.transposed,
                   tensor.decoded, tensor.source_bytes, tensor.stored_bytes, tensor.reason);
    hash.append(std::as_bytes(std::span(text)));
  }
  return fmt::format("{} {}", hash.digest().hex(), fmt::join(plan.shard_ends, " "));
}

std::string text_of_member(const Members& json) { return json.dump(-1, ' ', false, Members::error_handler_t::replace); }

// For messages.
std::string short_text(const Members& json) {
  return json.is_null() ? "nothing" : printable(json.is_string() ? json.get<std::string>() : text_of_member(json));
}

// Null if there is none: a log of another version may have something else than an object here.
Members member_of(const Members& json, const std::string& key) {
  return json.is_object() ? json.value(key, Members()) : Members();
}

// The first member of either that differs; empty if none does.
std::string differing(const Members& theirs, const Members& ours) {
  for (const Members* const json : {&ours, &theirs})
    for (const auto& [key, value] : json->items())
      if (member_of(theirs, key) != member_of(ours, key)) return key;
  return {};
}

// What a fingerprint is made of.
struct Run {
  const Reader& in;
  const Plan& plan;
  std::string_view adapter, calibration;
};

std::string other_statistics(const Members& /*theirs*/, const Members& /*ours*/) {
  return "it had other calibration statistics";
}

// A member of a fingerprint, and what it means if it differs.
struct Member {
  const char* name;
  Members (*of)(const Run& run);
  std::string (*difference)(const Members& theirs, const Members& ours);
};

// Of several that differ, the first is named. The version comes first, because other versions may write the other
// members in other ways.
constexpr std::array members{
    Member{"nibble", [](const Run& /*run*/) -> Members { return version(); },
           [](const Members& theirs, const Members& ours) {
             return fmt::format("nibble {} wrote it, and this is {}", short_text(theirs), short_text(ours));
           }},
    Member{
        "adapter", [](const Run& run) -> Members { return run.adapter; },
        [](const Members& /*theirs*/, const Members& /*ours*/) -> std::string { return "it merged another adapter"; }},
    Member{"calibration", [](const Run& run) -> Members { return run.calibration; }, other_statistics},
    Member{"input", [](const Run& run) { return input_stamps(run.in); },
           [](const Members& theirs, const Members& ours) {
             return fmt::format("the input's '{}' is another file than it was (its size, time or inode)",
                                printable(differing(theirs, ours)));
           }},
    Member{"recipe", [](const Run& run) { return Members::parse(recipe_text(run.plan.recipe)); },
           [](const Members& theirs, const Members& ours) {
             const std::string key = differing(theirs, ours);
             return fmt::format("its recipe has '{}' {}, and this one's has {}", printable(key),
                                short_text(member_of(theirs, key)), short_text(member_of(ours, key)));
           }},
    Member{"statistics", [](const Run& run) { return statistics_stamps(run.plan.recipe.calibration); },
           other_statistics},
    Member{"tensors", [](const Run& run) -> Members { return hash_of_tensors(run.plan); },
           [](const Members& /*theirs*/, const Members& /*ours*/) -> std::string {
             return "it planned the tensors in another way";
           }},
};

}  // namespace

std::string fingerprint(const Reader& in, const Plan& plan, std::string_view adapter, std::string_view calibration) {
  const Run run{in, plan, adapter, calibration};
  Members json = Members::object();
  for (const Member& member : members) json[member.name] = member.of(run);
  in.check_unchanged();  // so what the names stand for is what was opened
  return text_of_member(json);
}

std::string difference(std::string_view interrupted, std::string_view ours) {
  const Members theirs = Members::parse(interrupted, nullptr, false);
  const Members mine = Members::parse(ours);
  if (theirs == mine) return {};
  if (theirs.is_object())
    for (const Member& member : members) {
      const Members of_theirs = member_of(theirs, member.name), of_mine = member_of(mine, member.name);
      if (of_theirs != of_mine) return member.difference(of_theirs, of_mine);
    }
  return "its log does not say which conversion it was";
}

}  // namespace nibble
