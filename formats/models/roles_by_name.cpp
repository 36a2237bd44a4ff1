// The guess that replaces the table of architectures for models that are not in it.

#include <fmt/format.h>
#include <re2/re2.h>

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "formats/models/architectures.hpp"

namespace nibble {

namespace {

constexpr std::uint64_t vocabulary = 30'000;  // rows of the smallest common vocabularies
constexpr std::uint64_t flat = 6;             // ratio of rows to columns: no hidden layer has so many more rows

class NameRoleFinder final : public RoleFinder {
 public:
  explicit NameRoleFinder(const TensorList& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors.shape(i).size() == 1 && tensors.name(i).ends_with(".bias"))
        biases_[tensors.name(i)] = tensors.shape(i)[0];
    for (const TensorInfo& tensor : tensors)
      if (is_matrix_weight(tensor) && is_transposed(tensor)) transposed_parts_.insert(part_of(tensor.name));
  }

  FoundRole find(const TensorInfo& tensor) override {
    const std::string module = module_of(tensor.name);
    const auto found_as = [&](Role role, std::string_view what, bool kept) {
      FoundRole found{role, module, fmt::format("{} by name and shape", what), {}};
      if (kept) found.keeps.push_back(module);
      return found;
    };
    if (!is_matrix_weight(tensor)) return found_as(Role::other, "not a linear layer", false);
    if (RE2::PartialMatch(module, head_)) return found_as(Role::output_embeddings, "output layer", true);
    if (RE2::PartialMatch(module, embedding_)) return found_as(Role::embedding, "embedding", true);
    if (RE2::PartialMatch(module, other_)) return found_as(Role::other, "not a linear layer", true);
    if (tensor.shape[0] >= vocabulary && tensor.shape[0] / flat >= tensor.shape[1])
      return found_as(Role::embedding, "as many rows as a vocabulary:", true);
    if (is_transposed(tensor)) return found_as(Role::other, "stored transposed:", true);
    if (tensor.shape[0] == tensor.shape[1] && transposed_parts_.contains(part_of(tensor.name)))
      return found_as(Role::other, "square, beside layers that are stored transposed:", true);
    return found_as(Role::linear, "linear layer", true);
  }

 private:
  // The outermost module: the encoder or the decoder of a model of both.
  static std::string part_of(std::string_view name) { return std::string(name.substr(0, name.find('.'))); }

  // Whether the bias does not fit the rows, as in Conv1D.
  [[nodiscard]] bool is_transposed(const TensorInfo& tensor) const {
    const auto bias = biases_.find(module_of(tensor.name) + ".bias");
    return bias != biases_.end() && bias->second != tensor.shape[0];
  }

  // Words between dots and underscores. `gate` alone is a router, gate_proj is not.
  RE2 embedding_{
      R"((^|[._])(embed|embeds|emb|embedding|embeddings|embedder|embedders|wte|wpe|tok|token|tokens)([._]|$)|)"
      R"((^|[._])(shared|vocab)([._]|$))"};
  RE2 head_{R"((^|[._])(head|heads|lm_head|unembed|unembedding|classifier|score|scorer|cls|logits?)([._]|$)|)"
            R"((^|[._])(out_embed|embed_out|decoder_out|qa_outputs)([._]|$)|^(model\.)?output$)"};
  RE2 other_{R"((^|[._])(norm|norms|layernorm|ln|bn|router|routers|position|positions|pos|positional)([._\d]|$)|)"
             R"((^|[._])(relative|rel|bias|conv|convs|codebook|codebooks|table|rotary|freqs?|mask|alpha)([._\d]|$)|)"
             R"((^|[._])(lora|adapter|timestep|time)([._\d]|$)|(norm|conv)\d*$|(^|\.)(gate|wg|gating|switch)$)"};
  std::unordered_map<std::string_view, std::uint64_t> biases_;
  std::unordered_set<std::string> transposed_parts_;
};

}  // namespace

std::unique_ptr<RoleFinder> make_role_finder_by_name(const TensorList& tensors) {
  return std::make_unique<NameRoleFinder>(tensors);
}

}  // namespace nibble
