#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/models/architectures.hpp"
#include "nibble/tensor_list.hpp"

namespace nibble {

/// One of the matrices that transformers merges into one parameter [experts, out, in].
struct ExpertMatrix {
  std::size_t tensor = 0;
  std::uint64_t expert = 0;
  bool second = false;  ///< of two that are put one below the other: gate and up
};

/// Finds the tensors of a base by the names that they have in the model in memory.
class BaseNames {
 public:
  BaseNames(const TensorList& tensors, RoleFinder& roles);

  /// The tensors that a parameter may be stored as: several if it is not clear which one it is.
  [[nodiscard]] std::vector<std::size_t> find_all(const std::string& parameter) const;

  /// The tensor that a parameter is stored as; nothing if it is not clear which one it is.
  [[nodiscard]] std::optional<std::size_t> find(const std::string& parameter) const;

  /// The matrices that a parameter is made of, sorted by expert; empty if it is stored as one tensor.
  [[nodiscard]] std::vector<ExpertMatrix> find_experts(const std::string& parameter) const;

  /// `kept` also of linear layers that are never quantized.
  [[nodiscard]] Role role(std::size_t tensor) const { return roles_[tensor]; }

 private:
  const TensorList& tensors_;
  std::vector<Role> roles_;
  std::map<std::string, std::size_t, std::less<>> stored_;               // by the name in the file
  std::map<std::string, std::vector<std::size_t>, std::less<>> loaded_;  // by the name in the model
  std::vector<std::string> first_components_;                            // "model.", each once
};

}  // namespace nibble
