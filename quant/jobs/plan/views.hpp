#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/models/architectures.hpp"
#include "nibble/plan.hpp"
#include "quant/stream/stored_weights.hpp"

/// The roles of a model's tensors, and how codecs see them: from headers alone, before any codec is chosen.
namespace nibble {

/// The roles of a checkpoint's tensors in its model.
struct ModelRoles {
  std::unique_ptr<RoleFinder> finder;
  ModelClass model;   ///< without architecture if names and shapes decide
  bool tied = false;  ///< the output layer is the embedding
};
/// `scheme` is the one that quantized tensors will be stored by; null if all stay plain.
[[nodiscard]] ModelRoles roles_of(const StoredWeights& in, const Scheme* scheme = nullptr);

/// A tensor of a checkpoint for which nothing has been decided yet.
[[nodiscard]] PlannedTensor view_of(const StoredWeights::Tensor& tensor);

/// The tensors, each with its own name, that a quantizing codec gets for such a tensor in this role: one matrix per
/// expert of fused experts, a transposed Conv1D, and all others unchanged.
[[nodiscard]] std::vector<PlannedTensor> quantized_views(PlannedTensor tensor, Role role);

// ---- and back

/// Whether a quantized tensor in this role is stored as quantized_views() transposes it: bitsandbytes and nibble do so
/// with a Conv1D.
[[nodiscard]] bool is_stored_transposed(const Reader& in, const StoredWeights::Tensor& tensor, Role role);

/// The name of the tensor that quantized_views() cuts a matrix of this name out of. Empty if it cuts no matrix of such
/// a name.
[[nodiscard]] std::string fused_name(std::string_view matrix);

/// A tensor of the model that quantized_views() cut into matrices, which a checkpoint has one by one.
struct CutTensor {
  std::string name;
  std::vector<std::size_t> slices;  ///< indices into StoredWeights, in the order of its first dimension
  std::size_t first = 0;            ///< the one that comes first in the files
};

/// All of them. There are none if transformers loads the checkpoint. Throws Error(bad_input) if a slice is missing or
/// has another shape than the others.
class CutTensors {
 public:
  CutTensors(const StoredWeights& in, RoleFinder& finder);
  /// The one that a tensor of the checkpoint is a slice of; null if it is none.
  [[nodiscard]] const CutTensor* find(std::size_t tensor) const;

 private:
  std::vector<CutTensor> cut_;
  std::map<std::size_t, std::size_t> cut_of_;  // by slice
};

}  // namespace nibble
