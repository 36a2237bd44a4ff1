#include "quant/jobs/merge/merged_reader.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "formats/adapters/adapter_identity.hpp"
#include "formats/adapters/untied_output.hpp"
#include "formats/models/architectures.hpp"
#include "nibble/error.hpp"
#include "nibble/merge.hpp"
#include "quant/jobs/merge/untied_reader.hpp"
#include "quant/schemes/scheme.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

// Calls use(base) with the model that `reader` gives the tensors of. If its class is not known, config.json alone says
// whether anything is tied.
template <class Use> auto with_adapter_base(const Reader& reader, const ModelClass& model, bool tied, Use&& use) {
  const TensorList& tensors = reader.tensors();
  const bool guessed = model.architecture.empty();
  const auto roles = guessed ? make_role_finder_by_name(tensors) : make_role_finder(model, tensors, tied);
  const auto& config = reader.config();
  if (guessed) tied = config && config->tie_word_embeddings.value_or(false);
  const auto vocab_size = config ? config->vocab_size : std::nullopt;
  return use(AdapterBase{escaped(reader.path().native()), tensors, *roles, tied, vocab_size, guessed, {}});
}

std::unique_ptr<const Reader> untied_for(const Adapter& adapter, std::unique_ptr<const PlainReader> base, bool tied) {
  const auto output = with_adapter_base(*base, base->model(), tied, [&](const AdapterBase& of_base) {
    return find_untied_output(adapter, of_base, embedding_layers(base->model()));
  });
  if (!output) return base;
  return std::make_unique<UntiedReader>(std::move(base), *output);
}

}  // namespace

MergedReader::MergedReader(std::unique_ptr<const PlainReader> base, Adapter adapter)
    : DerivedReader(static_cast<const Reader&>(*base)),  // not its copy constructor
      adapter_(std::move(adapter)) {
  const ModelClass model = base->model();
  const bool tied = base->is_tied() && !embedding_layers(model).tied.empty();
  base_ = untied_for(adapter_, std::move(base), tied);
  updates_ = with_adapter_base(*base_, model, tied && !ReaderInternals::was_tied(*base_),
                               [&](const AdapterBase& of_base) { return plan_updates(adapter_, of_base); });
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
