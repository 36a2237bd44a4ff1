#include "quant/jobs/merge/merged_reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "formats/adapters/adapter_identity.hpp"
#include "formats/adapters/tied_output.hpp"
#include "formats/equal_tensors.hpp"
#include "formats/models/architectures.hpp"
#include "formats/models/weight_name.hpp"
#include "nibble/error.hpp"
#include "nibble/merge.hpp"
#include "quant/jobs/merge/untied_reader.hpp"
#include "quant/schemes/scheme.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

// Of a class that is not known, config.json says whether anything is tied, unless an output layer is stored.
bool is_tied_by_guess(const Reader& base, RoleFinder& roles) {
  if (!base.config() || !base.config()->tie_word_embeddings.value_or(false)) return false;
  for (const TensorInfo& tensor : base.tensors())
    if (roles.find(tensor).role == Role::output_embeddings) return false;
  return true;
}

// Calls use(base) with the model that `reader` gives the tensors of.
template <class Use> auto with_adapter_base(const Reader& reader, const ModelClass& model, bool tied, Use&& use) {
  const TensorList& tensors = reader.tensors();
  const bool guessed = model.architecture.empty();
  const auto roles = guessed ? make_role_finder_by_name(tensors) : make_role_finder(model, tensors, tied);
  AdapterBase base{.label = escaped(reader.path().native()),
                   .tensors = tensors,
                   .roles = *roles,
                   .vocab_size = reader.config() ? reader.config()->vocab_size : std::nullopt,
                   .guessed = guessed,
                   .layers = embedding_layers(model),
                   .turned_conv1d = {}};
  base.tied = guessed ? is_tied_by_guess(reader, *roles) : tied && !base.layers.tied.empty();
  return use(base);
}

// The update of a tensor, which is made if there is none.
TensorUpdate& update_of(std::vector<TensorUpdate>& updates, std::size_t tensor) {
  auto update = std::ranges::lower_bound(updates, tensor, {}, &TensorUpdate::tensor);
  if (update == updates.end() || update->tensor != tensor) {
    update = updates.emplace(update);
    update->tensor = tensor;
  }
  return *update;
}

// A base may store a tied weight under the names of several layers. Loading ties them if they are equal, so they have
// to stay equal where the trained model has one weight.
void update_copies(const Reader& reader, const AdapterBase& base, std::vector<TensorUpdate>& updates) {
  if (!base.tied && !(base.guessed && reader.config() && reader.config()->tie_word_embeddings.value_or(false))) return;
  const auto may_be_tied = [&](std::size_t tensor) {
    const FoundRole found = base.roles.find(base.tensors[tensor]);
    if (base.guessed) return found.role == Role::embedding || found.role == Role::output_embeddings;
    const std::string parameter = found.module + std::string(weight_suffix);
    return base.is_tied_output(parameter) || base.is_embedding(parameter);
  };
  const std::vector<TensorUpdate> planned = updates;
  for (const TensorUpdate& update : planned) {
    if (update.low_rank || !(update.tokens || (base.tied && update.replacement)) || !may_be_tied(update.tensor))
      continue;
    const auto is_planned = [&](std::size_t tensor) {
      return std::ranges::binary_search(planned, tensor, {}, &TensorUpdate::tensor);
    };
    for (std::size_t t = 0; t < base.tensors.size(); ++t) {
      if (is_planned(t) || !std::ranges::equal(base.tensors.shape(t), base.tensors.shape(update.tensor)) ||
          !may_be_tied(t) || !are_equal(reader, t, update.tensor))
        continue;
      TensorUpdate& copy = update_of(updates, t);
      copy = update;
      copy.tensor = t;
    }
  }
}

}  // namespace

MergedReader::MergedReader(std::unique_ptr<const PlainReader> base, Adapter adapter)
    : DerivedReader(static_cast<const Reader&>(*base)),  // not its copy constructor
      adapter_(std::move(adapter)) {
  const ModelClass model = base->model();
  const bool tied = base->is_tied();
  const auto output = with_adapter_base(
      *base, model, tied, [&](const AdapterBase& of_base) { return find_tied_output(adapter_, of_base); });
  const bool unties = output && (output->unties || (output->stored &&  // which are not tied if they differ
                                                    !are_equal(*base, output->embeddings, *output->stored)));
  base_ = std::move(base);
  if (unties) base_ = std::make_unique<UntiedReader>(std::move(base_), *output);
  updates_ = with_adapter_base(*base_, model, tied && !unties, [&](const AdapterBase& of_base) {
    std::vector<TensorUpdate> updates = plan_updates(adapter_, of_base);
    if (unties && output->replacement) {
      const auto shape = of_base.tensors.shape(output->embeddings);  // a base may store an output layer of another one
      for (std::size_t t = 0; t < of_base.tensors.size(); ++t)
        if ((t == output->embeddings || of_base.tensors.name(t) == output->weight) &&
            std::ranges::equal(of_base.tensors.shape(t), shape))
          update_of(updates, t).replacement = output->replacement;
    }
    update_copies(*base_, of_base, updates);
    return updates;
  });
  for (std::size_t t = 0; t < base_->tensors().size(); ++t) {
    TensorInfo tensor = base_->tensors()[t];
    if (is_updated(t) && is_weight_type(tensor.dtype)) tensor.dtype = DType::f32;
    tensors_.push_back(tensor);
  }
}

const TensorUpdate* MergedReader::find(std::size_t tensor) const {
  const auto update = std::ranges::lower_bound(updates_, tensor, {}, &TensorUpdate::tensor);
  return update == updates_.end() || update->tensor != tensor ? nullptr : &*update;
}

void MergedReader::check_unchanged() const {
  base_->check_unchanged();
  adapter_.weights().check_unchanged();
}

void MergedReader::read_base(std::size_t tensor, std::uint64_t first, std::span<float> out) const {
  const DType dtype = base_->tensors().dtype(tensor);
  const std::uint64_t width = traits(dtype).bits / 8;
  if (dtype == DType::f32) return base_->read(tensor, first * width, std::as_writable_bytes(out));
  std::vector<std::byte> raw(out.size() * width);
  base_->read(tensor, first * width, raw);
  for_each_tile(dtype, raw, [&](std::size_t i, std::span<const float> tile) {
    std::ranges::copy(tile, out.begin() + static_cast<std::ptrdiff_t>(i));
  });
}

std::shared_ptr<const TensorMerge> MergedReader::make_merge(std::size_t tensor, const TensorUpdate& update) const {
  auto made = std::make_shared<TensorMerge>(adapter_, update, tensors_[tensor].shape, expert_factors_);
  made->measure_norms([&](std::uint64_t first, std::span<float> panel) { read_base(tensor, first, panel); });
  return made;
}

void MergedReader::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  const TensorUpdate* const update = find(tensor);
  if (update == nullptr) return base_->read(tensor, offset, out);
  // Replaced, and not by weights: of the same type then.
  if (!is_weight_type(tensors_.dtype(tensor))) return adapter_.weights().read(*update->replacement, offset, out);
  const auto merge = merges_.get(tensor, [&] { return make_merge(tensor, *update); });
  const auto merge_into = [&](std::span<float> weights) {
    const std::uint64_t first = offset / sizeof(float);
    if (!update->replacement) read_base(tensor, first, weights);
    merge->merge(first, weights, weights);
  };
  if (reinterpret_cast<std::uintptr_t>(out.data()) % alignof(float) == 0)
    return merge_into({reinterpret_cast<float*>(out.data()), out.size() / sizeof(float)});
  std::vector<float> weights(out.size() / sizeof(float));
  merge_into(weights);
  std::ranges::copy(std::as_bytes(std::span(weights)), out.begin());
}

std::uint64_t MergedReader::position(std::size_t tensor, std::uint64_t offset) const {
  return is_updated(tensor) ? offset : ReaderInternals::position(*base_, tensor, offset);
}

std::uint64_t MergedReader::reading_bytes() const {
  std::uint64_t bytes = 0;
  for (const TensorUpdate& update : updates_) {
    std::uint64_t own = TensorMerge::memory_bytes(adapter_, update, tensors_[update.tensor].shape);
    if (update.low_rank && update.low_rank->expert) own += ExpertFactor::memory_bytes(adapter_, *update.low_rank);
    bytes = std::max(bytes, own);
  }
  return bytes + ReaderInternals::reading_bytes(*base_);
}

std::string MergedReader::adapter(const FileProgress& progress) const {
  return adapter_identity(adapter_, updates_.size(), progress);
}

std::unique_ptr<Reader> open_merged(const std::filesystem::path& base, const std::filesystem::path& adapter,
                                    std::uint64_t max_memory) {
  Adapter opened(adapter, max_memory);
  auto plain = std::make_unique<const PlainReader>(open_input(base, Intake::any, max_memory));
  return std::make_unique<MergedReader>(std::move(plain), std::move(opened));
}

}  // namespace nibble
