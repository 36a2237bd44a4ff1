#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/adapters/module_patterns.hpp"

namespace nibble {

/// What adapter_config.json of peft (0.21) says about the weights of a LoRA adapter.
///
/// A field that nibble does not know is accepted only if it is off (null, false, empty): any other might change the
/// weights. Fields that say where the adapter was put, or how it was trained, are not looked at: the names in the
/// weight file tell the former, the values there are the outcome of the latter.
class AdapterConfig {
 public:
  static constexpr const char* file_name = "adapter_config.json";

  /// Throws Error(bad_input), "<label>: ...", naming the field.
  AdapterConfig(std::string_view text, std::string_view label);

  /// The rank and the scale of the update of a module, or of a parameter that is adapted by itself:
  ///
  ///   alpha / rank, or alpha / sqrt(rank) if rsLoRA was used
  ///
  /// `name` is its name in the model, without "base_model.model.". A pattern counts if it matches the name or what
  /// follows one of its dots; of several the first one counts.
  [[nodiscard]] std::uint64_t rank(std::string_view name) const;
  [[nodiscard]] double scale(std::string_view name) const;

  /// Those of modules that no pattern matches.
  [[nodiscard]] std::uint64_t rank() const noexcept { return rank_; }
  [[nodiscard]] double alpha() const noexcept { return alpha_; }

  [[nodiscard]] bool is_rank_stabilized() const noexcept { return rank_stabilized_; }
  [[nodiscard]] bool uses_dora() const noexcept { return dora_; }
  [[nodiscard]] bool has_lora_bias() const noexcept { return lora_bias_; }
  /// Whether the last module that peft adapted stores its weight as [in, out].
  [[nodiscard]] bool fan_in_fan_out() const noexcept { return fan_in_fan_out_; }

  /// Whether modules_to_save names the module of this parameter, or a module around it: a copy of that module was
  /// trained in its place.
  [[nodiscard]] bool is_saved(std::string_view parameter) const;

  /// Parameters that are adapted by themselves, as names or ends of names; sorted.
  [[nodiscard]] const std::vector<std::string>& target_parameters() const noexcept { return target_parameters_; }

  /// The rows of an embedding that were trained one by one.
  struct TrainableTokens {
    std::string module;  ///< its name, or the end of it; empty: the input embeddings
    std::vector<std::uint64_t> rows;
  };
  [[nodiscard]] const std::vector<TrainableTokens>& trainable_tokens() const noexcept { return trainable_tokens_; }

 private:
  friend class ConfigFields;
  template <class Value> struct Patterns {
    ModulePatterns keys;
    std::vector<Value> values;
    [[nodiscard]] Value value(std::string_view name, const Value& otherwise) const {
      const auto found = keys.find(name);
      return found ? values[*found] : otherwise;
    }
  };

  bool rank_stabilized_ = false, dora_ = false, lora_bias_ = false, fan_in_fan_out_ = false;
  std::uint64_t rank_ = 8;  // peft's defaults
  double alpha_ = 8;
  Patterns<std::uint64_t> rank_patterns_;
  Patterns<double> alpha_patterns_;
  std::vector<std::string> target_parameters_, modules_to_save_;
  std::vector<TrainableTokens> trainable_tokens_;
};

}  // namespace nibble
