#include "formats/adapters/adapter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/files/directory.hpp"
#include "core/memory_limit.hpp"
#include "core/refuse.hpp"
#include "formats/checkpoint.hpp"
#include "formats/containers/container.hpp"
#include "formats/equal_tensors.hpp"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view weights_stem = "adapter_model";
constexpr std::uint64_t max_config_bytes = 16 << 20;  // the indices of a million tokens
constexpr std::uint64_t tree_share = 32;              // bytes of a tree of JSON for one of its text, at most

std::string adapter_label(const fs::path& directory, const std::string& name) {
  return escaped((directory / name).native());
}

std::string read_adapter_config(const fs::path& path, std::uint64_t max_memory) {
  const Directory directory(path);
  if (!directory.has(AdapterConfig::file_name))
    refuse(escaped(path.native()), "has no {}: it is not an adapter of peft", AdapterConfig::file_name);
  const InputFile file(directory.fd(), AdapterConfig::file_name, adapter_label(path, AdapterConfig::file_name));
  file.check_size(max_config_bytes);
  MemoryLimit(max_memory).take(tree_share * file.size(), file.label());
  return file.read_text(max_config_bytes);
}

// The single file goes first, as in peft.
std::unique_ptr<Reader> open_adapter_weights(const fs::path& path, std::uint64_t max_memory) {
  const Directory directory(path);
  for (const ContainerTraits& container : containers())
    for (const std::string_view index : {std::string_view(), index_extension})
      if (const auto name = fmt::format("{}{}{}", weights_stem, container.extension, index); directory.has(name))
        return open_files(path / name, max_memory);
  if (directory.has(fmt::format("{}.bin", weights_stem)))
    refuse(adapter_label(path, fmt::format("{}.bin", weights_stem)), "torch files are not supported yet");
  refuse(escaped(path.native()), "has no {}{}", weights_stem, written_container().extension);
}

}  // namespace

Adapter::Adapter(const fs::path& directory, std::uint64_t max_memory)
    : Adapter(directory, adapter_label(directory, AdapterConfig::file_name),
              Parts{read_adapter_config(directory, max_memory), open_adapter_weights(directory, max_memory)}) {}

Adapter::Adapter(std::string_view config, std::unique_ptr<Reader> weights)
    : Adapter({}, AdapterConfig::file_name, Parts{std::string(config), std::move(weights)}) {}

Adapter::Adapter(fs::path path, std::string_view label, Parts parts)
    : path_(std::move(path)),
      config_bytes_(parts.config.size()),
      config_hash_(xxh3(std::as_bytes(std::span(parts.config)))),
      config_(parts.config, label),
      weights_(std::move(parts.weights)) {
  for (std::size_t t = 0; t < weights_->tensors().size(); ++t) add(t);
  for (const std::string& weight : quantized_) leave_to_base(weight);
  check_complete();
}

// Codes are not trained, so a weight that is saved as codes is that of the base.
void Adapter::leave_to_base(const std::string& quantized_weight) {
  const auto codes = replacements_.find(quantized_weight);
  if (codes == replacements_.end()) return;
  const TensorInfo tensor = weights_->tensors()[codes->second];
  const bool is_column = tensor.shape.size() == 2 && tensor.shape[1] == 1;  // codes of 4 bits, in quant_storage
  if (is_weight_type(tensor.dtype) && !is_column)
    refuse_tensor(codes->second,
                  fmt::format("holds weights of type {}, but has scales as codes have", traits(tensor.dtype).name));
  replacements_.erase(codes);
}

void Adapter::refuse_tensor(std::size_t tensor, std::string_view fact) const {
  refuse(weights_->label_of(tensor), "tensor '{}': {}", printable(weights_->tensors().name(tensor)), fact);
}

void Adapter::add(std::size_t tensor) {
  const auto name = parse_adapter_name(weights_->tensors().name(tensor));
  if (!name) refuse_tensor(tensor, "is not a part of LoRA that nibble can merge");
  if (name->part == AdapterPart::unused) return;
  if (name->part == AdapterPart::codes) {
    quantized_.insert(name->module);
    return;
  }
  const auto put = [&](std::optional<std::size_t>& place) {
    if (place)
      refuse_tensor(tensor, fmt::format("means the same as '{}'", printable(weights_->tensors().name(*place))));
    place = tensor;
  };
  if (name->part == AdapterPart::replacement) {
    std::optional<std::size_t> place;
    if (const auto other = replacements_.find(name->module); other != replacements_.end()) place = other->second;
    if (place && are_equal(*weights_, *place, tensor)) return;  // peft writes some under two names
    put(place);
    replacements_[name->module] = tensor;
    return;
  }
  if (!is_weight_type(weights_->tensors().dtype(tensor)))
    refuse_tensor(tensor, fmt::format("is of type {}, not F64, F32, BF16 or F16",
                                      traits(weights_->tensors().dtype(tensor)).name));
  Module& module = modules_[name->module];
  if (name->part == AdapterPart::tokens) return put(module.tokens);
  LowRank& low_rank = module.low_rank[name->depth];
  const bool of_embedding = name->part == AdapterPart::embedding_a || name->part == AdapterPart::embedding_b;
  if ((low_rank.a || low_rank.b) && name->part != AdapterPart::magnitude && of_embedding != low_rank.embedding)
    refuse_tensor(tensor, fmt::format("'{}' has tensors of a matrix and of an embedding", printable(name->module)));
  low_rank.embedding |= of_embedding;
  switch (name->part) {
    case AdapterPart::a:
    case AdapterPart::embedding_a:
      return put(low_rank.a);
    case AdapterPart::b:
    case AdapterPart::embedding_b:
      return put(low_rank.b);
    case AdapterPart::b_bias:
      return put(low_rank.b_bias);
    default:
      return put(low_rank.magnitude);
  }
}

void Adapter::check_complete() const {
  if (modules_.empty() && replacements_.empty())
    refuse(escaped(weights_->path().native()), "has no tensor that changes a model");
  const bool needs_tokens =
      std::ranges::any_of(config_.trainable_tokens(), [](const auto& t) { return !t.rows.empty(); });
  if (needs_tokens &&
      std::ranges::none_of(modules_, [](const auto& module) { return module.second.tokens.has_value(); }))
    refuse(escaped(weights_->path().native()),
           "has no trainable_tokens_delta, but trainable_token_indices is set in {}", AdapterConfig::file_name);
  for (const auto& [name, module] : modules_)
    for (const auto& [depth, low_rank] : module.low_rank) {
      const std::size_t any = low_rank.a           ? *low_rank.a
                              : low_rank.b         ? *low_rank.b
                              : low_rank.magnitude ? *low_rank.magnitude
                                                   : *low_rank.b_bias;
      if (!low_rank.a || !low_rank.b)
        refuse_tensor(any, fmt::format("'{}' has no {}", printable(name), low_rank.a ? "lora_B" : "lora_A"));
      if (low_rank.magnitude && !config_.uses_dora())
        refuse_tensor(*low_rank.magnitude,
                      fmt::format("is of DoRA, but use_dora is not set in {}", AdapterConfig::file_name));
      if (!low_rank.magnitude && config_.uses_dora())
        refuse_tensor(any, fmt::format("use_dora is set, but '{}' has no lora_magnitude_vector", printable(name)));
      if (low_rank.b_bias && !config_.has_lora_bias())
        refuse_tensor(*low_rank.b_bias,
                      fmt::format("is a bias, but lora_bias is not set in {}", AdapterConfig::file_name));
      if (!low_rank.b_bias && config_.has_lora_bias() && !low_rank.embedding)
        refuse_tensor(any, fmt::format("lora_bias is set, but '{}' has no lora_B.bias", printable(name)));
    }
}

}  // namespace nibble
