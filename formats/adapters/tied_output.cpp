#include "formats/adapters/untied_output.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/refuse.hpp"
#include "formats/adapters/base_names.hpp"
#include "formats/models/weight_name.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

class UntiedOutputFinder {
 public:
  UntiedOutputFinder(const Adapter& adapter, const AdapterBase& base, const EmbeddingLayers& layers)
      : adapter_(adapter), base_(base), layers_(layers), names_(base.tensors, base.roles) {
    find_embeddings();
    find_output();
  }

  [[nodiscard]] std::optional<UntiedOutput> find() const {
    std::optional<std::size_t> of_embeddings, of_output;  // tensors of the adapter
    bool is_saved = false;
    for (const auto& [name, tensor] : adapter_.replacements()) {
      const auto target = names_.find(name);
      const bool embeds = target && std::ranges::find(embeddings_, *target) != embeddings_.end();
      const bool is_output = !target || base_.tensors.name(*target) == output_;  // what the base lacks is tied
      if (!embeds && !is_output) continue;
      (embeds ? of_embeddings : of_output) = tensor;
      is_saved |= adapter_.config().is_saved(without_weight_suffix(name));
    }
    if (!is_saved || (of_embeddings && of_output && adapter_.are_equal(*of_embeddings, *of_output)))
      return std::nullopt;
    if (!output_.empty()) return UntiedOutput{embeddings_.front(), output_};
    if (of_embeddings)
      refuse(adapter_.weights().label_of(*of_embeddings),
             "tensor '{}': replaces embeddings of {} that share their weight with an output layer, and modules_to_save "
             "unties the two: nibble cannot do that for this architecture",
             printable(adapter_.weights().tensors().name(*of_embeddings)), base_.label);
    return std::nullopt;
  }

 private:
  // Other embeddings are those of positions and the like. If nothing has a row for each token, any may embed them.
  void find_embeddings() {
    std::vector<std::size_t> others;
    for (std::size_t t = 0; t < base_.tensors.size(); ++t)
      if (names_.role(t) == Role::embedding)
        (base_.tensors.shape(t)[0] == base_.vocab_size ? embeddings_ : others).push_back(t);
    if (embeddings_.empty()) embeddings_ = std::move(others);
  }

  // Only if nothing else is tied. Output layers below another module have biases that are tied as well, and embeddings
  // that are not stored have the weight of others, which they would not have any more.
  void find_output() {
    const auto is_stored = [&](const std::string& module) {
      return names_.find(module + std::string(weight_suffix)).has_value();
    };
    if (embeddings_.size() != 1 || layers_.tied.size() != 1 || !std::ranges::all_of(layers_.embeddings, is_stored))
      return;
    const std::string& module = layers_.tied.front();
    if (module.find_first_of(".*$") != std::string::npos) return;
    TensorInfo weight = base_.tensors[embeddings_.front()];
    // Of models that store "language_model.model.embed_tokens" for "model.embed_tokens", it has that component, too.
    const std::string first = weight.name.substr(0, weight.name.find('.') + 1);
    const bool has_other_first = !base_.roles.find(weight).module.starts_with(first);
    for (const std::string& prefix : {has_other_first ? first : std::string(), std::string()}) {
      weight.name = prefix + module + std::string(weight_suffix);
      if (base_.roles.find(weight).module != module) continue;
      output_ = weight.name;
      return;
    }
  }

  const Adapter& adapter_;
  const AdapterBase& base_;
  const EmbeddingLayers& layers_;
  BaseNames names_;
  std::vector<std::size_t> embeddings_;  // those that may be tied
  std::string output_;                   // the weight of the output layer; empty if it cannot be untied
};

}  // namespace

std::optional<UntiedOutput> find_untied_output(const Adapter& adapter, const AdapterBase& base,
                                               const EmbeddingLayers& layers) {
  if (!base.tied || adapter.replacements().empty()) return std::nullopt;
  return UntiedOutputFinder(adapter, base, layers).find();
}

}  // namespace nibble
