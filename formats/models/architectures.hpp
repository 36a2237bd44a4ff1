#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/checkpoint.hpp"
#include "nibble/role.hpp"
#include "nibble/tensor_list.hpp"

/// Which module of a model a stored tensor belongs to, and whether transformers would replace that module.
///
/// Loading a quantized directory, transformers builds the model, replaces linear layers by its own rule, and only
/// then reads the file; the two have to agree. architectures.jsonl, beside this file, holds the outcome of that rule
/// for every architecture of one version of transformers; table/architectures.py makes it from transformers itself.
namespace nibble {

/// A stored name without ".weight", if it ends so.
[[nodiscard]] std::string module_of(std::string_view name);

/// Whether a tensor can be the weight of a linear layer: a matrix of a weight type named `<module>.weight`.
[[nodiscard]] bool is_matrix_weight(const TensorInfo& tensor);

/// What roles depend on besides the model: how quantized tensors are stored and loaded. By default as plain ones are.
struct LoadingRules {
  /// The names of the tensors beside the codes of a quantized weight of this name, always in the same order. If
  /// transformers renames the weight, they have to be renamed alike. Empty if there are none.
  std::function<std::vector<std::string>(const std::string& weight)> companions;
  /// Whether the loader also replaces linear layers of a class derived from nn.Linear, those kept in fp32, and those
  /// that modules share. They are not quantized either way, but they have to be in the `keeps` of their tensors then.
  bool replaces_every_linear = false;
};

/// In which models transformers keeps a plain weight in fp32. When it loads a plain directory, it casts such a weight
/// to fp32 itself. In a quantized one it leaves the type in which the weight is stored.
enum class KeptInFp32 : std::uint8_t { never, in_fp16, in_16_bits };

/// The role of one stored tensor, and its module.
struct FoundRole {
  Role role = Role::unknown;
  std::string module;              ///< its module in the model (stored names may differ); else the parameter's name
  std::string why;                 ///< for people
  std::vector<std::string> keeps;  ///< layers that stay plain if this tensor does, and that loading would replace
  KeptInFp32 kept_in_fp32 = KeptInFp32::never;
  bool is_linear = false;     ///< it is a linear layer, although its role may be `other`
  bool used_outside = false;  ///< its model uses the weight outside the layer, so it cannot be quantized
};

/// Whether a weight that is stored in this type would be loaded as fp32.
[[nodiscard]] inline bool is_kept_in_fp32(const FoundRole& found, DType dtype) {
  return (dtype == DType::f16 && found.kept_in_fp32 != KeptInFp32::never) ||
         (dtype == DType::bf16 && found.kept_in_fp32 == KeptInFp32::in_16_bits);
}

/// Finds the roles of one model's tensors, one at a time: those of 100,000 would take 30 MB.
class RoleFinder {
 public:
  virtual ~RoleFinder() = default;
  [[nodiscard]] virtual FoundRole find(const TensorInfo& tensor) = 0;
};

/// Finds the roles of stored tensors in the table; nothing if the table lacks the architecture.
///
/// `tensors` are all of the model, because the numbers in some names count from its end. `tied` is tie_word_embeddings.
/// Only matrices of a weight type named `<module>.weight` get Role::linear, conv1d, output_embeddings or kept, and only
/// if transformers would load the quantized tensors into the module under the stored name. A tensor that loading merges
/// or splits has role expert or other. 100,000 tensors take about 0.1 s.
[[nodiscard]] std::unique_ptr<RoleFinder> make_role_finder(const ModelClass& model, const TensorList& tensors,
                                                           bool tied, LoadingRules rules = {});

/// Guesses roles from names and shapes alone, for architectures that the table lacks. It is cautious: what looks like
/// an embedding, a head, a router or a position table is not called linear, nor is a matrix whose bias fits its other
/// side. Every `why` ends in "by name and shape".
[[nodiscard]] std::unique_ptr<RoleFinder> make_role_finder_by_name(const TensorList& tensors);

/// Why transformers cannot load this architecture with quantized weights from its ordinary names; empty if it can.
[[nodiscard]] std::string loading_obstacle(const ModelClass& model);

/// Whether transformers makes several parameters of one stored tensor when it loads this architecture.
[[nodiscard]] bool splits_tensors(const ModelClass& model);

/// The embeddings of a model, and the layers that may share a weight with them.
struct EmbeddingLayers {
  std::vector<std::string> embeddings;  ///< modules, without those in numbered lists
  /// Patterns of the linear layers that share a weight with another layer if tie_word_embeddings says so: that of the
  /// embeddings in most models, that of other linear layers in a few (DETR).
  std::vector<std::string> tied;
};

/// Those of a class; none if the table lacks it.
[[nodiscard]] EmbeddingLayers embedding_layers(const ModelClass& model);

/// Whether config.json names other parts than its class has by default, or unknown ones. The table then says what
/// transformers could replace, but not which of these layers it would leave plain if nothing tells it.
[[nodiscard]] bool has_other_parts(const ModelClass& model);

/// A module that stays plain by default, whether the file has it or not.
struct DefaultSkip {
  std::string pattern;    ///< a regular expression of its name: `[0-9]+` for a number that may be any
  bool numbered = false;  ///< it stands for one module of several
};

/// All modules that it could otherwise replace, in table order, some twice; nothing if the table lacks the
/// architecture.
[[nodiscard]] std::optional<std::vector<DefaultSkip>> default_skips(const ModelClass& model, bool tied);

}  // namespace nibble
