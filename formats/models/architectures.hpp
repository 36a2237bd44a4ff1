#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/recipe.hpp"
#include "nibble/tensor_list.hpp"

/// Which module of a model a stored tensor belongs to, and whether transformers would replace that module.
///
/// Loading a quantized directory, transformers builds the model, replaces linear layers by its own rule, and only
/// then reads the file; the two have to agree. architectures.jsonl, beside this file, holds the outcome of that rule
/// for every architecture of one version of transformers; architectures.py makes it from transformers itself.
namespace nibble {

/// The table, as cmake/embed.cmake compiles it in: JSON lines, the first of which names its version.
extern const std::string_view architectures_jsonl;

/// The version of transformers that the table was made from: "5.23.0".
[[nodiscard]] std::string architectures_version();

/// A stored name without ".weight", if it ends so.
[[nodiscard]] std::string module_of(std::string_view name);

/// Whether a tensor can be the weight of a linear layer: a matrix of a weight type named `<module>.weight`.
[[nodiscard]] bool is_matrix_weight(const TensorInfo& tensor);

/// Where one stored tensor stands.
struct Placement {
  Role role = Role::unknown;
  std::string module;              ///< its module in the model (stored names may differ); else the parameter's name
  std::string why;                 ///< for people
  std::vector<std::string> keeps;  ///< linear layers that stay plain if this tensor does: the modules to be skipped
};

/// Places the tensors of one model, one at a time: the placements of 100,000 would take 30 MB.
class Placer {
 public:
  virtual ~Placer() = default;
  [[nodiscard]] virtual Placement place(const TensorInfo& tensor) = 0;
};

/// Places stored tensors by the table; nothing if the table lacks the architecture.
///
/// `tensors` are all of the model, for the numbers in some names count from its end. `tied` is tie_word_embeddings.
/// Role::linear, conv1d, output_embeddings and kept are given to matrices of a weight type named `<module>.weight`
/// only, and only where the quantized tensors would find their way to the module under the stored name. A tensor that
/// loading merges or splits has role expert or other. 100,000 tensors take about 0.1 s.
[[nodiscard]] std::unique_ptr<Placer> make_placer(std::string_view architecture, const TensorList& tensors, bool tied);

/// Places tensors by names and shapes alone, for architectures that the table lacks. Careful: what looks like an
/// embedding, a head, a router or a position table is not called linear, nor is a matrix whose bias has the length
/// of the other side. Every `why` ends in "by name and shape".
[[nodiscard]] std::unique_ptr<Placer> make_placer_by_name(const TensorList& tensors);

/// Why transformers cannot load this architecture with quantized weights from its ordinary names; empty if it can.
[[nodiscard]] std::string loading_obstacle(std::string_view architecture);

/// Whether transformers makes several parameters of one stored tensor when it loads this architecture.
[[nodiscard]] bool splits_tensors(std::string_view architecture);

/// A module that transformers leaves plain by default, whether the file has it or not.
struct DefaultSkip {
  std::string entry;      ///< as an entry of llm_int8_skip_modules: `[0-9]+` for a number that may be any
  bool numbered = false;  ///< it stands for one module of several
};

/// All that it could replace otherwise, in the order of the table, some twice; nothing if the table lacks the
/// architecture.
[[nodiscard]] std::optional<std::vector<DefaultSkip>> default_skips(std::string_view architecture, bool tied);

}  // namespace nibble
