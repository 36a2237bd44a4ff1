#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/schemes/scheme.hpp"

/// FP8 codes with their scales beside them, as several schemes store them.
namespace nibble {

/// Reads them. The schemes that write them do that themselves.
class Fp8Parts : public Scheme {
 public:
  /// The scales have the name of the codes and `suffix`. The weights had the type of the scales; for F32 scales, the
  /// type that config.json gives the model (F32, BF16 or F16), or `otherwise`. It is F32 instead of F16 if a code times
  /// its scale can be beyond F16. A module's name with one of `activation_suffixes` names a number for its inputs or
  /// outputs, which is useless once its weights are decoded.
  Fp8Parts(std::string_view suffix, DType otherwise, std::span<const std::string_view> activation_suffixes)
      : suffix_(suffix), otherwise_(otherwise), activation_suffixes_(activation_suffixes) {}

  [[nodiscard]] std::optional<StoredTensor> recognize(const Reader& in, std::size_t first,
                                                      const FindTensor& find) const override;
  [[nodiscard]] std::vector<std::vector<std::byte>> read_planes(const Reader& in, const Codec& codec,
                                                                const StoredTensor& tensor) const override;
  [[nodiscard]] bool is_source() const override { return true; }
  /// Codes that recognize() does not take although they have such scales. Where config.json names quant_method() or
  /// nibble, also FP8 without a scale, matrices of other types that are not weights, and scales without their codes.
  [[nodiscard]] std::string undecodable(const Reader& in, std::size_t part, const FindTensor& find) const override;
  /// The numbers for activations, and the scales of the KV cache.
  [[nodiscard]] bool is_left_over(const Reader& in, std::size_t part) const override;

 protected:
  /// Why a model cannot be decoded if its parse_config() is null.
  static constexpr std::string_view unreadable_config =
      "quantized already, and the quantization_config of config.json is not strict JSON (NaN, for example, is not)";
  [[nodiscard]] std::string_view suffix() const noexcept { return suffix_; }
  /// A quantization_config as strict JSON; null if it is not that: transformers also takes NaN and the like.
  [[nodiscard]] static nlohmann::json parse_config(std::string_view quantization_config);
  /// Why blocks of a shape that this key of config.json states, [rows, columns] or null, cannot be decoded. Empty if
  /// they can.
  [[nodiscard]] static std::string undecodable_blocks(const nlohmann::json& blocks, std::string_view key);

 private:
  [[nodiscard]] std::string codes_of(std::string_view scale) const;

  std::string_view suffix_;
  DType otherwise_;
  std::span<const std::string_view> activation_suffixes_;
};

}  // namespace nibble
