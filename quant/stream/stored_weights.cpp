#include "quant/stream/stored_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace nibble {

StoredWeights::StoredWeights(const Reader& in, std::span<const Scheme* const> by) : in_(in) {
  const Scheme* const declared = read_config(by);
  const TensorList& parts = in.tensors();
  const FindTensor find = [this](std::string_view name) { return find_part(name); };
  std::vector<bool> is_claimed(parts.size());
  std::vector<std::uint32_t> found_of(parts.size(), none);
  for (std::size_t part = 0; part < parts.size() && !schemes_.empty(); ++part) {
    std::size_t scheme = 0;
    const auto stored = about_file(in, part, [&] { return recognize(part, scheme, find); });
    if (!stored) continue;
    is_plain_ = false;
    found_of[part] = static_cast<std::uint32_t>(found_.size());
    add(scheme, *stored);
    for (std::size_t i = 1; i < stored->parts.size(); ++i) is_claimed[stored->parts[i]] = true;
  }
  if (is_plain_) return;
  tensor_of_part_.assign(parts.size(), none);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (is_claimed[part]) continue;
    if (found_of[part] == none && declared != nullptr && declared->is_left_over(in, part)) continue;
    tensor_of_part_[part] = static_cast<std::uint32_t>(tensors_.size());
    tensors_.push_back({static_cast<std::uint32_t>(part), found_of[part]});
  }
}

const Scheme* StoredWeights::read_config(std::span<const Scheme* const> by) {
  schemes_.assign(by.begin(), by.end());
  if (!in_.config()) return nullptr;
  const auto declared = std::ranges::find_if(schemes_, [&](const Scheme* s) { return s->is_declared(*in_.config()); });
  if (declared == schemes_.end()) return nullptr;
  std::rotate(schemes_.begin(), declared, declared + 1);
  undecodable_config_ = schemes_.front()->undecodable_config(in_.config()->quantization_config);
  if (undecodable_config_.empty()) contradiction_ = schemes_.front()->contradiction(in_.config()->quantization_config);
  return schemes_.front();
}

std::optional<StoredTensor> StoredWeights::recognize(std::size_t part, std::size_t& scheme, const FindTensor& find) {
  if (!undecodable_config_.empty()) return std::nullopt;
  std::optional<StoredTensor> stored;
  for (std::size_t i = 0; i < schemes_.size(); ++i) {
    auto found = schemes_[i]->recognize(in_, part, find);
    if (!found) continue;
    if (stored)
      throw Error(Errc::bad_input,
                  fmt::format("tensor '{}' has the parts of {} and of {}", printable(stored->info.name),
                              schemes_[scheme]->quant_method(), schemes_[i]->quant_method()));
    stored = std::move(found);
    scheme = i;
  }
  if (!stored || scheme != 0 || !contradiction_) return stored;
  std::string why = contradiction_(in_, *stored);
  if (why.empty()) return stored;
  if (contradicted_ == SIZE_MAX) {
    contradicted_ = part;
    contradiction_text_ = std::move(why);
  }
  return std::nullopt;
}

void StoredWeights::add(std::size_t scheme, const StoredTensor& stored) {
  infos_.push_back({{}, stored.info.dtype, stored.info.shape});
  for (const std::size_t part : stored.parts) parts_.push_back(static_cast<std::uint32_t>(part));
  found_.push_back({stored.codec, static_cast<std::uint32_t>(parts_.size()), static_cast<std::uint32_t>(scheme)});
}

std::uint64_t StoredWeights::memory_bytes() const noexcept {
  return infos_.memory_bytes() + found_.size() * sizeof(Found) + parts_.size() * sizeof(std::uint32_t);
}

void StoredWeights::sort_names() const {
  const TensorList& parts = in_.tensors();
  by_name_.resize(parts.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  const auto is_before = [&](std::uint32_t a, std::uint32_t b) { return parts.name(a) < parts.name(b); };
  if (!std::is_sorted(by_name_.begin(), by_name_.end(), is_before))
    std::sort(by_name_.begin(), by_name_.end(), is_before);
}

std::optional<std::size_t> StoredWeights::find_part(std::string_view name) const {
  std::call_once(sorted_, [this] { sort_names(); });
  const TensorList& parts = in_.tensors();
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](std::uint32_t part, std::string_view n) { return parts.name(part) < n; });
  if (found == by_name_.end() || parts.name(*found) != name) return std::nullopt;
  return *found;
}

std::optional<std::size_t> StoredWeights::find(std::string_view name) const {
  const auto part = find_part(name);
  return part ? find(*part) : std::nullopt;
}

std::optional<std::size_t> StoredWeights::find(std::size_t part) const {
  if (is_plain_) return part;
  if (tensor_of_part_[part] == none) return std::nullopt;
  return tensor_of_part_[part];
}

std::string StoredWeights::undecodable(std::size_t tensor) const {
  const std::size_t part = is_plain_ ? tensor : tensors_[tensor].part;
  if (!is_plain_ && tensors_[tensor].found != none) return {};
  if (part == contradicted_) return contradiction_text_;
  const FindTensor find = [this](std::string_view name) { return find_part(name); };
  for (const Scheme* const scheme : schemes_)
    if (std::string why = scheme->undecodable(in_, part, find); !why.empty())
      return undecodable_config_.empty() ? why : undecodable_config_;
  return {};
}

void StoredWeights::check_decodable(std::size_t tensor) const {
  const std::string why = undecodable(tensor);
  if (why.empty()) return;
  const StoredTensor stored = (*this)[tensor].stored;
  throw Error(Errc::bad_input, in_.label_of(stored.parts.front()),
              fmt::format("tensor '{}' is {}", printable(stored.info.name), why));
}

StoredWeights::Tensor StoredWeights::operator[](std::size_t tensor) const {
  const Row row = is_plain_ ? Row{static_cast<std::uint32_t>(tensor), none} : tensors_[tensor];
  Tensor result{nullptr, {in_.tensors()[row.part], {}, {row.part}}};
  if (row.found != none) {
    const Found& found = found_[row.found];
    const std::uint32_t parts_begin = row.found == 0 ? 0 : found_[row.found - 1].parts_end;
    result.scheme = schemes_[found.scheme];
    result.stored.info.dtype = infos_.dtype(row.found);
    const std::span<const std::uint64_t> shape = infos_.shape(row.found);
    result.stored.info.shape.assign(shape.begin(), shape.end());
    result.stored.codec = found.codec;
    result.stored.parts.assign(parts_.begin() + parts_begin, parts_.begin() + found.parts_end);
  }
  for (const std::size_t part : result.stored.parts) result.bytes += in_.tensors().bytes(part);
  return result;
}

}  // namespace nibble
