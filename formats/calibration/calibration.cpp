#include "formats/calibration/calibration.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/json.hpp"
#include "core/refuse.hpp"
#include "formats/models/names.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view statistics_format = "nibble.calibration", unfinished_name = "progress.json";
constexpr std::uint64_t statistics_version = 1;
constexpr std::uint64_t max_statistics_bytes = 64 << 20;  // 100,000 experts have 20 MB
constexpr std::uint64_t statistics_tree_share = 32;       // bytes of a tree of JSON for one of its text, at most
constexpr std::uint64_t statistics_kept_share = 16;       // the same for what is kept of it
constexpr std::uint64_t bytes_per_statistics_file = 1024;

std::string statistics_label(const fs::path& directory, std::string_view name) {
  return escaped((directory / name).native());
}

InputFile open_statistics(const fs::path& path, const Directory& directory) {
  const std::string name(Calibration::file_name);
  if (!directory.has(name)) {
    if (directory.has(std::string(unfinished_name)))
      refuse(escaped(path.native()), "is not complete: python -m nibble.calibrate can go on with it");
    refuse(escaped(path.native()), "has no {}: python -m nibble.calibrate did not write it", name);
  }
  return {directory.fd(), name, statistics_label(path, name)};
}

}  // namespace

// Reads the members one by one.
class CalibrationManifest {
 public:
  CalibrationManifest(Calibration& calibration, const Json& json)
      : to_(calibration), json_(json), label_(calibration.manifest_.label()) {}

  void read() {
    if (!json_.is_object() || !json_.contains("format") || json_["format"] != statistics_format)
      refuse(label_, "'format' is not '{}'", statistics_format);
    const Json found = json_.value("version", Json());
    if (!found.is_number_unsigned() || found != statistics_version)
      refuse(label_, "has version {}, this nibble reads {}", printable(found.dump()), statistics_version);
    const Json moments = json_.value("second_moments", Json());
    if (!moments.is_boolean()) refuse(label_, "'second_moments' is not true or false");
    to_.has_second_moments_ = moments.get<bool>();
    for (const auto& [name, input] : object("inputs").items()) add_input(name, input);
    for (const auto& [name, inputs] : object("weights").items()) add_weight(name, inputs);
    if (!json_.contains("sensitivities")) return;
    for (const auto& [name, value] : object("sensitivities").items()) add_sensitivity(name, value);
  }

 private:
  [[nodiscard]] const Json& object(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end() || !found->is_object()) refuse(label_, "'{}' is not an object", name);
    return *found;
  }

  void add_input(const std::string& name, const Json& input) {
    const auto number = [&](const char* member) {
      const Json value = input.is_object() ? input.value(member, Json()) : Json();
      if (!value.is_number_unsigned() || value == 0U)
        refuse(label_, "input '{}': '{}' is not a positive integer", printable(name), member);
      return value.get<std::uint64_t>();
    };
    const std::uint64_t columns = number("columns"), tokens = number("tokens");
    const Json file = input.value("file", Json());
    if (!file.is_string()) refuse(label_, "input '{}': 'file' is not a text", printable(name));
    const std::size_t at = file_number(name, file.get<std::string>());
    Calibration::Tensors tensors{at, find(at, name, "mean_square", {columns}), find(at, name, "absmax", {columns}), 0};
    if (to_.has_second_moments_) tensors.second_moment = find(at, name, "second_moment", {columns, columns});
    numbers_.emplace(name, to_.inputs_.size());
    to_.inputs_.push_back({name, columns, tokens});
    to_.tensors_.push_back(tensors);
  }

  std::size_t file_number(const std::string& input, const std::string& file) {
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos)
      refuse(label_, "input '{}': '{}' is not the name of a file in this directory", printable(input), printable(file));
    const auto [entry, is_new] = files_.try_emplace(file, to_.files_.size());
    if (!is_new) return entry->second;
    std::string label = statistics_label(to_.path_, file);
    to_.memory_.take(bytes_per_statistics_file, label);
    WeightFile weights = open_weight_file({to_.directory_.fd(), file, label, &to_.open_files_}, to_.memory_);
    to_.memory_.take(weights.tensors.memory_bytes() + sizeof(std::uint64_t) * weights.tensors.size(), label);
    to_.files_.push_back({std::move(label), std::move(weights)});
    names_.emplace_back(to_.files_.back().weights.tensors);
    return entry->second;
  }

  [[nodiscard]] std::size_t find(std::size_t file, const std::string& input, std::string_view statistic,
                                 const Shape& shape) const {
    const Calibration::File& from = to_.files_[file];
    const std::string name = fmt::format("{}.{}", input, statistic);
    const auto found = names_[file].find(name);
    if (!found) refuse(from.label, "has no tensor '{}'", printable(name));
    const TensorInfo tensor = from.weights.tensors[*found];
    if (tensor.dtype != DType::f32 || tensor.shape != shape)
      refuse(from.label, "tensor '{}': is {} {}, not F32 {}", printable(name), traits(tensor.dtype).name,
             to_string(tensor.shape), to_string(shape));
    return *found;
  }

  void add_weight(const std::string& name, const Json& inputs) {
    if (!inputs.is_array() || inputs.empty())
      refuse(label_, "weight '{}': is not a list of one or more inputs", printable(name));
    Calibration::InputsOfWeight& numbers = to_.weights_[name];
    numbers.reserve(inputs.size());
    for (const Json& input : inputs) {
      if (!input.is_null() && !input.is_string())
        refuse(label_, "weight '{}': an input is neither a name nor null", printable(name));
      const auto found = input.is_null() ? numbers_.end() : numbers_.find(input.get<std::string>());
      if (found == numbers_.end() && !input.is_null())
        refuse(label_, "weight '{}': has the input '{}', which is not listed", printable(name),
               printable(input.get<std::string>()));
      numbers.push_back(input.is_null() ? std::nullopt : std::optional(found->second));
    }
  }

  // A number of JSON is finite: the parser refuses larger ones.
  void add_sensitivity(const std::string& name, const Json& value) {
    if (!to_.weights_.contains(name)) refuse(label_, "sensitivity of '{}': this weight is not listed", printable(name));
    if (!value.is_number() || value < 0)
      refuse(label_, "sensitivity of '{}': is not a number of at least 0", printable(name));
    to_.sensitivities_.emplace(name, value.get<double>());
  }

  Calibration& to_;
  const Json& json_;
  std::string_view label_;
  std::map<std::string, std::size_t> files_, numbers_;  // by name
  std::deque<NameIndex> names_;                         // of the files
};

Calibration::Calibration(fs::path directory, std::uint64_t max_memory)
    : path_(std::move(directory)),
      directory_(path_),
      memory_(max_memory),
      manifest_(open_statistics(path_, directory_)) {
  manifest_.check_size(max_statistics_bytes);
  memory_.take(statistics_kept_share * manifest_.size(), manifest_.label());
  TakenMemory tree(memory_, manifest_.label());
  tree.add(statistics_tree_share * manifest_.size());
  const std::string text = manifest_.read_text(max_statistics_bytes);
  manifest_bytes_ = text.size();
  manifest_hash_ = xxh3(std::as_bytes(std::span(text)));
  const Json json = json::parse(text, manifest_.label());
  CalibrationManifest(*this, json).read();
}

const Calibration::InputsOfWeight* Calibration::find(std::string_view weight) const {
  const auto found = weights_.find(weight);
  return found == weights_.end() ? nullptr : &found->second;
}

std::optional<double> Calibration::sensitivity(std::string_view weight) const {
  const auto found = sensitivities_.find(weight);
  return found == sensitivities_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<float> Calibration::mean_square(std::size_t input) const {
  return read_magnitudes(input, tensors_.at(input).mean_square);
}

std::vector<float> Calibration::absmax(std::size_t input) const {
  return read_magnitudes(input, tensors_.at(input).absmax);
}

std::vector<float> Calibration::read_magnitudes(std::size_t input, std::size_t tensor) const {
  std::vector<float> values(inputs_[input].columns);
  read(input, tensor, 0, values);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]) || values[i] < 0) refuse_value(input, tensor, i, values[i], "finite and at least 0");
  return values;
}

void Calibration::read_second_moment(std::size_t input, std::uint64_t first_row, std::span<float> rows) const {
  const std::uint64_t columns = inputs_.at(input).columns, first = first_row * columns;
  if (!has_second_moments_) throw Error(Errc::usage, "the statistics have no second moments");
  if (first_row > columns || rows.size() % columns != 0 || rows.size() / columns > columns - first_row)
    throw Error(Errc::usage, fmt::format("{} values from row {} of a matrix with {} rows and columns", rows.size(),
                                         first_row, columns));
  const std::size_t tensor = tensors_[input].second_moment;
  read(input, tensor, first, rows);
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (!std::isfinite(rows[i])) refuse_value(input, tensor, first + i, rows[i], "finite");
  for (std::size_t i = first_row; i < rows.size(); i += columns + 1)
    if (rows[i] < 0) refuse_value(input, tensor, first + i, rows[i], "at least 0, as squares are");
}

void Calibration::refuse_second_moment(std::size_t input, std::string_view fact) const {
  const File& file = files_[tensors_[input].file];
  refuse(file.label, "tensor '{}': {}", printable(file.weights.tensors.name(tensors_[input].second_moment)), fact);
}

void Calibration::read(std::size_t input, std::size_t tensor, std::uint64_t first, std::span<float> values) const {
  files_[tensors_[input].file].weights.source->read(tensor, first * sizeof(float), std::as_writable_bytes(values));
}

void Calibration::refuse_value(std::size_t input, std::size_t tensor, std::uint64_t at, float value,
                               std::string_view limit) const {
  const File& file = files_[tensors_[input].file];
  refuse(file.label, "tensor '{}': value {} is {}, not {}", printable(file.weights.tensors.name(tensor)), at, value,
         limit);
}

void Calibration::check_unchanged() const {
  manifest_.check_unchanged();
  for (const File& file : files_) file.weights.source->check_unchanged();
}

}  // namespace nibble
