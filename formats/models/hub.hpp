#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace nibble {

/// A model's name on the Hugging Face hub, "org/model", "org/model@revision", or "gpt2", from the time before
/// organizations.
struct ModelName {
  std::string_view repository;
  std::string_view revision;  ///< "main" if it was not given
};
[[nodiscard]] std::optional<ModelName> parse_model_name(std::string_view text);

/// Where downloads are kept: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or
/// ~/.cache/huggingface/hub, the first that is set.
[[nodiscard]] std::filesystem::path hub_cache();

/// The directory of a model in the cache: snapshots/<commit>, where the revision is a commit or the name of one in
/// refs/. Nothing if it is not there; nothing is downloaded.
[[nodiscard]] std::optional<std::filesystem::path> find_in_hub_cache(const ModelName& name);

}  // namespace nibble
