#include "quant/jobs/convert/fingerprint.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

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
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    if (const fs::path& file = entry->path(); file.extension() == ".safetensors" || file.extension() == ".json")
      files[escaped(file.filename().string())] = stamp_of(file);
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

// The first member of either that differs; empty if none does.
std::string differing(const Members& theirs, const Members& ours) {
  for (const Members* const json : {&ours, &theirs})
    for (const auto& [key, value] : json->items())
      if (theirs.value(key, Members()) != ours.value(key, Members())) return key;
  return {};
}

}  // namespace

std::string fingerprint(const Reader& in, const Plan& plan, std::string_view adapter, std::string_view calibration) {
  const Members json = {{"nibble", version()},
                        {"recipe", Members::parse(recipe_text(plan.recipe))},
                        {"input", input_stamps(in)},
                        {"adapter", adapter},
                        {"statistics", statistics_stamps(plan.recipe.calibration)},
                        {"calibration", calibration},
                        {"tensors", hash_of_tensors(plan)}};
  in.check_unchanged();  // so what the names stand for is what was opened
  return text_of_member(json);
}

std::string difference(std::string_view interrupted, std::string_view ours) {
  const Members theirs = Members::parse(interrupted, nullptr, false);
  const Members mine = Members::parse(ours);
  if (!theirs.is_object()) return "its log does not say which conversion it was";
  const std::string what = differing(theirs, mine);
  if (what.empty()) return {};
  const Members of_theirs = theirs.value(what, Members()), of_mine = mine.value(what, Members());
  if (what == "nibble")
    return fmt::format("nibble {} wrote it, and this is {}", short_text(of_theirs), short_text(of_mine));
  if (what == "recipe") {
    const std::string key = differing(of_theirs, of_mine);
    return fmt::format("its recipe has '{}' {}, and this one's has {}", printable(key),
                       short_text(of_theirs.value(key, Members())), short_text(of_mine.value(key, Members())));
  }
  if (what == "input")
    return fmt::format("the input's '{}' is another file than it was (its size, time or inode)",
                       printable(differing(of_theirs, of_mine)));
  if (what == "adapter") return "it merged another adapter";
  if (what == "tensors") return "it planned the tensors in another way";
  return "it had other calibration statistics";
}

}  // namespace nibble
