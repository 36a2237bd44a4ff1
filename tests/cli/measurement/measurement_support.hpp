#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "nibble/measure.hpp"

/// Measurements made up for tests of what is said about them.
namespace nibble::cli::made_up {

inline MeasuredWeights weights(std::string name, std::uint64_t n, std::string kind = "kind",
                               std::optional<std::uint64_t> layer = {}) {
  MeasuredWeights tensor;
  tensor.info = {std::move(name), DType::f32, {n}};
  tensor.form = DType::f32;
  tensor.kind = std::move(kind);
  tensor.layer = layer;
  tensor.bytes = 4 * n;
  return tensor;
}

inline MeasuredError error(const std::vector<float>& reference, const std::vector<float>& test,
                           std::uint64_t bytes = 2) {
  MeasuredError error;
  error.form = CodecSpec("nf4");
  error.bytes = bytes;
  error.stats = compare(reference, test);
  return error;
}

inline Measurement measurement(std::vector<MeasuredWeights> tensors, std::vector<std::optional<MeasuredError>> errors) {
  Measurement result;
  result.name = "model";
  result.bytes = 2000;
  result.tensors = std::move(tensors);
  MeasuredCandidate& candidate = result.candidates.emplace_back();
  candidate.name = "nf4";
  candidate.bytes = 999;
  candidate.tensors = std::move(errors);
  return result;
}

inline MeasuredError kept(MeasuredError error) {
  error.form = DType::f32;
  return error;
}

inline MeasuredError cast(MeasuredError error) {
  error.form = DType::bf16;
  return error;
}

// Two errors of 2 and 1 in four weights, and none in two others of another layer.
inline Measurement two_layers() {
  return measurement({weights("layers.0.up", 4, "up", 0), weights("layers.1.down", 2, "down", 1)},
                     {error({3, -4, 0, 0}, {3, -2, 1, 0}), kept(error({1, 2}, {1, 2}, 1))});
}

// A layer with a quantized, a cast and a kept tensor, and one with a kept tensor alone.
inline Measurement of_all_outcomes() {
  Measurement found = two_layers();
  found.tensors.push_back(weights("layers.0.norm", 2, "norm", 0));
  found.candidates[0].tensors.push_back(kept(error({100, 200}, {100, 200}, 8)));
  found.tensors.push_back(weights("layers.0.bias", 2, "bias", 0));
  found.candidates[0].tensors.push_back(cast(error({10, 20}, {10, 20.5f}, 4)));
  return found;
}

// two_layers() with statistics of the first layer's input, whose output has a relative squared error of 1 / 100.
inline Measurement with_statistics() {
  Measurement found = two_layers();
  found.has_statistics = true;
  MeasuredError& error = *found.candidates[0].tensors[0];
  error.output.count = 4;
  error.output.square = 0.5;
  error.output.reference = 50;
  return found;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace nibble::cli::made_up
