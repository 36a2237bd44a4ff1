#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/file.hpp"
#include "core/files/open_files.hpp"
#include "core/memory_limit.hpp"
#include "core/xxh3.hpp"
#include "formats/containers/container.hpp"
#include "nibble/checkpoint.hpp"

namespace nibble {

/// Statistics of what the weights of a model are multiplied by: a directory that `python -m nibble.calibrate` wrote.
/// docs/calibration.md has the format. The manifest and the headers are read; data is read on demand. Thread-safe.
class Calibration {
 public:
  static constexpr std::string_view file_name = "calibration.json";

  /// Throws Error(bad_input) for a directory of something else, one that is not complete, another version, and tensors
  /// that are missing or of another type or shape; Error(no_space) if reading the manifest or the headers takes more
  /// than `max_memory`; Error(io).
  explicit Calibration(std::filesystem::path directory, std::uint64_t max_memory = OpenOptions().max_memory);

  /// What one or more weights are multiplied by: X [tokens, columns].
  struct Input {
    std::string name;
    std::uint64_t columns, tokens;
  };
  /// In the order of the manifest.
  [[nodiscard]] std::span<const Input> inputs() const noexcept { return inputs_; }

  /// The inputs of one weight, by their number in inputs(). A tensor with the matrices of several experts has one for
  /// each, and nothing for an expert that no token reached.
  using InputsOfWeight = std::vector<std::optional<std::size_t>>;
  /// Of the tensor of this name in the checkpoint; null if it is not listed.
  [[nodiscard]] const InputsOfWeight* find(std::string_view weight) const;

  /// How much the model's output suffers for each relative squared error of a weight, at least 0
  /// (`python -m nibble.calibrate --sensitivities`); nothing where that was not measured.
  [[nodiscard]] std::optional<double> sensitivity(std::string_view weight) const;

  /// For each column the mean of x^2, and the largest |x|. Throws Error(bad_input) if a value is not finite or
  /// negative.
  [[nodiscard]] std::vector<float> mean_square(std::size_t input) const;
  [[nodiscard]] std::vector<float> absmax(std::size_t input) const;

  /// Whether there are second moments: of all inputs or of none.
  [[nodiscard]] bool has_second_moments() const noexcept { return has_second_moments_; }
  /// Fills `rows` with rows `first_row`, `first_row` + 1, ... of X^T X / tokens, a row-major matrix [columns, columns]
  /// that is symmetric up to rounding. The size of `rows` is a multiple of `columns`. Throws Error(bad_input) if a
  /// value is not finite, or one of the diagonal is negative.
  void read_second_moment(std::size_t input, std::uint64_t first_row, std::span<float> rows) const;

  /// Throws Error(bad_input): this fact about the second moment.
  [[noreturn]] void refuse_second_moment(std::size_t input, std::string_view fact) const;

  /// Of the text of the manifest.
  [[nodiscard]] std::uint64_t manifest_bytes() const noexcept { return manifest_bytes_; }
  [[nodiscard]] const Xxh3& manifest_hash() const noexcept { return manifest_hash_; }

  /// As Reader.
  void check_unchanged() const;
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept { return memory_.taken(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  friend class CalibrationManifest;

  struct File {
    std::string label;
    WeightFile weights;
  };
  // Where the statistics of an input are.
  struct Tensors {
    std::size_t file;  // in files_
    std::size_t mean_square, absmax, second_moment;
  };
  [[nodiscard]] std::vector<float> read_magnitudes(std::size_t input, std::size_t tensor) const;
  void read(std::size_t input, std::size_t tensor, std::uint64_t first, std::span<float> values) const;
  [[noreturn]] void refuse_value(std::size_t input, std::size_t tensor, std::uint64_t at, float value,
                                 std::string_view limit) const;

  std::filesystem::path path_;
  Directory directory_;
  MemoryLimit memory_;
  OpenFiles open_files_;
  InputFile manifest_;
  std::uint64_t manifest_bytes_ = 0;
  Xxh3 manifest_hash_{};
  bool has_second_moments_ = false;
  std::deque<File> files_;  // names are looked up in lists that do not move
  std::vector<Input> inputs_;
  std::vector<Tensors> tensors_;  // of inputs_
  std::map<std::string, InputsOfWeight, std::less<>> weights_;
  std::map<std::string, double, std::less<>> sensitivities_;  // of some of weights_
};

}  // namespace nibble
