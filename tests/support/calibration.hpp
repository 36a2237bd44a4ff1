#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/weights_file.hpp"

namespace nibble::test {

/// A directory of statistics as python -m nibble.calibrate writes it, all in one file. What it writes can be changed to
/// something that is wrong.
class StatisticsMaker {
 public:
  static constexpr const char* weights_name = "layer-00000.safetensors";

  /// An input and the weight NAME.weight that is multiplied by it.
  void add(const std::string& name, const std::vector<float>& mean_square,
           const std::vector<float>& second_moment = {}) {
    const std::uint64_t columns = mean_square.size();
    manifest["inputs"][name] = {{"columns", columns}, {"tokens", 7}, {"file", weights_name}};
    manifest["weights"][name + ".weight"] = {name};
    weights.add(name + ".mean_square", DType::f32, {columns}, mean_square);
    weights.add(name + ".absmax", DType::f32, {columns}, std::vector<float>(columns, 3.0f));
    if (!second_moment.empty()) weights.add(name + ".second_moment", DType::f32, {columns, columns}, second_moment);
    manifest["second_moments"] = !second_moment.empty();
  }

  /// Puts it into `directory` of `dir`.
  std::filesystem::path write(const TempDir& dir, const std::string& directory = "stats") const {
    dir.write(directory + "/" + weights_name, weights.bytes());
    return dir.write(directory + "/calibration.json", manifest.dump()).parent_path();
  }

  nlohmann::ordered_json manifest{{"format", "nibble.calibration"},
                                  {"version", 1},
                                  {"second_moments", false},
                                  {"inputs", nlohmann::ordered_json::object()},
                                  {"weights", nlohmann::ordered_json::object()}};
  WeightsFile weights;
};

}  // namespace nibble::test
