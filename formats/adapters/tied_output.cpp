#include "formats/adapters/tied_output.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/refuse.hpp"
#include "formats/adapters/base_names.hpp"
#include "formats/equal_tensors.hpp"
#include "formats/models/weight_name.hpp"
#include "nibble/error.hpp"

namespace nibble {
namespace {

// The tensors of an adapter that change one layer.
struct LayerChange {
  std::optional<std::size_t> replacement, low_rank, tokens;
  bool is_saved = false;  // the replacement, by modules_to_save

  [[nodiscard]] bool any() const { return replacement || low_rank || tokens; }
  [[nodiscard]] std::optional<std::size_t> of_this_layer_alone() const { return is_saved ? replacement : low_rank; }
};

class TiedOutputFinder {
 public:
  TiedOutputFinder(const Adapter& adapter, const AdapterBase& base)
      : adapter_(adapter), base_(base), names_(base.tensors, base.roles) {
    find_embeddings();
    find_output();
  }

  [[nodiscard]] std::optional<TiedOutput> find() const {
    LayerChange embeddings, output;
    for (const auto& [name, tensor] : adapter_.replacements())
      if (LayerChange* const layer = layer_of(name, embeddings, output)) {
        layer->replacement = tensor;
        layer->is_saved = adapter_.config().is_saved(name);
      }
    for (const auto& [name, module] : adapter_.modules())
      if (LayerChange* const layer = layer_of(name + std::string(weight_suffix), embeddings, output)) {
        if (!module.low_rank.empty()) layer->low_rank = module.low_rank.begin()->second.a;
        layer->tokens = module.tokens;
      }
    if (!embeddings.any() && !output.any()) return std::nullopt;
    const bool unties = do_untie(embeddings, output);
    if (!output_.empty())
      return TiedOutput{embeddings_.front(), output_, names_.find(output_), unties, common(embeddings, output)};
    if (const auto tensor = embeddings.of_this_layer_alone(); unties && tensor)
      refuse(adapter_.weights().label_of(*tensor),
             "tensor '{}': changes the embeddings of {}, but not the output layer that shares their weight: nibble "
             "cannot untie the two for this architecture",
             printable(adapter_.weights().tensors().name(*tensor)), base_.label);
    return std::nullopt;
  }

 private:
  // Which of the two layers a parameter of the model belongs to; null if to another.
  LayerChange* layer_of(const std::string& parameter, LayerChange& embeddings, LayerChange& output) const {
    const auto target = names_.find(parameter);
    if (base_.is_tied_output(parameter) || (target && base_.tensors.name(*target) == output_)) return &output;
    return target && std::ranges::find(embeddings_, *target) != embeddings_.end() ? &embeddings : nullptr;
  }

  [[nodiscard]] bool do_untie(const LayerChange& embeddings, const LayerChange& output) const {
    if (embeddings.low_rank || output.low_rank || output.tokens) return true;
    if (!embeddings.is_saved && !output.is_saved) return false;
    return !embeddings.replacement || !output.replacement ||
           !are_equal(adapter_.weights(), *embeddings.replacement, *output.replacement);
  }

  // What is not saved by modules_to_save was loaded into the weight of both.
  [[nodiscard]] static std::optional<std::size_t> common(const LayerChange& embeddings, const LayerChange& output) {
    if (embeddings.replacement && !embeddings.is_saved && !output.replacement) return embeddings.replacement;
    if (output.replacement && !output.is_saved && !embeddings.replacement) return output.replacement;
    return std::nullopt;
  }

  // Other embeddings are those of positions and the like. If nothing has a row for each token, any may embed them.
  void find_embeddings() {
    std::vector<std::size_t> others;
    for (std::size_t t = 0; t < base_.tensors.size(); ++t)
      if (names_.role(t) == Role::embedding)
        (base_.tensors.shape(t)[0] == base_.vocab_size ? embeddings_ : others).push_back(t);
    if (embeddings_.empty()) embeddings_ = std::move(others);
  }

  // Only if nothing else is tied. Output layers inside another module may have biases that are tied as well (BERT), and
  // embeddings that are not stored have the weight of others, which they would not have any more (T5).
  void find_output() {
    const auto is_stored = [&](const std::string& module) {
      return names_.find(module + std::string(weight_suffix)).has_value();
    };
    const auto& [embeddings, tied] = base_.layers;
    if (embeddings_.size() != 1 || tied.size() != 1 || !std::ranges::all_of(embeddings, is_stored)) return;
    const std::string& module = tied.front();
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
  BaseNames names_;
  std::vector<std::size_t> embeddings_;  // those that may be tied
  std::string output_;                   // the weight of the output layer; empty if it cannot be untied
};

}  // namespace

std::optional<TiedOutput> find_tied_output(const Adapter& adapter, const AdapterBase& base) {
  return base.tied ? TiedOutputFinder(adapter, base).find() : std::nullopt;
}

}  // namespace nibble
