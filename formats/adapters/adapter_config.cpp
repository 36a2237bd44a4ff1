#include "formats/adapters/adapter_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/json.hpp"
#include "core/refuse.hpp"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// Fields that change no weight of the merged model: names of modules, training, bookkeeping. Those of VeLoRA, EVA and
// the other methods of initialization are among them: init_lora_weights says whether a method changed the base.
constexpr std::array<std::string_view, 20> harmless_fields{
    "task_type",      "auto_mapping",      "peft_version",        "base_model_name_or_path",
    "revision",       "inference_mode",    "target_modules",      "exclude_modules",
    "lora_dropout",   "megatron_core",     "layers_to_transform", "layers_pattern",
    "loftq_config",   "eva_config",        "corda_config",        "velora_config",
    "lora_ga_config", "qalora_group_size", "runtime_config",      "ensure_weight_tying"};

// Initializations that leave the weights of the base as they are.
constexpr std::array<std::string_view, 4> additive_inits{"gaussian", "eva", "orthogonal", "mica"};

bool is_field_off(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// For messages: short values as they are.
std::string shown_value(const Json& value) {
  if (value.is_object()) return "set";
  if (value.is_array()) return "a list";
  return printable(value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

// Reads the fields one by one.
class ConfigFields {
 public:
  ConfigFields(AdapterConfig& config, std::string_view text, std::string_view label)
      : config_(config), json_(json::parse(text, label)), label_(label) {}

  void read() {
    if (!json_.is_object()) refuse(label_, "is not a JSON object");
    check_type();
    check_init();
    check_bias();
    if (const Json* r = take("r")) config_.rank_ = rank(*r, "r");
    if (const Json* alpha = take("lora_alpha")) config_.alpha_ = number(*alpha, "lora_alpha");
    read_patterns("rank_pattern", config_.rank_patterns_, [this](auto&&... value) { return rank(value...); });
    read_patterns("alpha_pattern", config_.alpha_patterns_, [this](auto&&... value) { return number(value...); });
    config_.rank_stabilized_ = flag("use_rslora");
    config_.dora_ = flag("use_dora");
    config_.lora_bias_ = flag("lora_bias");
    config_.fan_in_fan_out_ = flag("fan_in_fan_out");
    config_.target_parameters_ = names("target_parameters");
    std::ranges::sort(config_.target_parameters_);
    config_.modules_to_save_ = names("modules_to_save");
    read_trainable_tokens();
    refuse_the_rest();
  }

 private:
  // The value of a field, unless it is missing or null. Fields that were taken are known.
  const Json* take(std::string_view name) {
    known_.push_back(name);
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  bool flag(std::string_view name) {
    const Json* value = take(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(label_, "{} is {}, not true or false", name, shown_value(*value));
    return value->get<bool>();
  }

  [[nodiscard]] double number(const Json& value, std::string_view name) const {
    if (!value.is_number()) refuse(label_, "{} is {}, not a number", name, shown_value(value));
    return value.get<double>();
  }

  [[nodiscard]] std::uint64_t rank(const Json& value, std::string_view name) const {
    if (!value.is_number_unsigned() || value == 0)
      refuse(label_, "{} is {}, not a positive integer", name, shown_value(value));
    return value.get<std::uint64_t>();
  }

  void check_type() {
    const Json* type = take("peft_type");
    if (type == nullptr) refuse(label_, "has no peft_type");
    if (*type != "LORA") refuse(label_, "peft_type is {}: only LORA can be merged", shown_value(*type));
  }

  void check_init() {
    const Json* init = take("init_lora_weights");
    if (init == nullptr || init->is_boolean()) return;
    if (!init->is_string() || std::ranges::find(additive_inits, init->get<std::string>()) == additive_inits.end())
      refuse(label_,
             "init_lora_weights is {}, which changed the weights of the base: save the adapter with "
             "path_initial_model_for_weight_conversion",
             shown_value(*init));
  }

  // What was trained is in the weight file.
  void check_bias() {
    const Json* bias = take("bias");
    if (bias != nullptr && *bias != "none" && *bias != "all" && *bias != "lora_only")
      refuse(label_, "bias is {}, not none, all or lora_only", shown_value(*bias));
  }

  template <class Patterns, class Read> void read_patterns(std::string_view name, Patterns& patterns, Read&& read) {
    const Json* object = take(name);
    if (object == nullptr) return;
    if (!object->is_object()) refuse(label_, "{} is not an object", name);
    for (const auto& [pattern, value] : object->items()) {
      if (const std::string why = patterns.keys.add(pattern); !why.empty())
        refuse(label_, "{}: '{}' {}", name, printable(pattern), why);
      patterns.values.push_back(read(value, fmt::format("{} of '{}'", name, printable(pattern))));
    }
  }

  std::vector<std::string> names(std::string_view field) {
    std::vector<std::string> result;
    const Json* list = take(field);
    if (list == nullptr) return result;
    if (!list->is_array()) refuse(label_, "{} is not a list", field);
    for (const Json& name : *list) {
      if (!name.is_string()) refuse(label_, "{}: {} is not a name", field, shown_value(name));
      result.push_back(name.get<std::string>());
    }
    return result;
  }

  void read_trainable_tokens() {
    const Json* tokens = take("trainable_token_indices");
    if (tokens == nullptr) return;
    if (tokens->is_object())
      for (const auto& [module, rows] : tokens->items()) add_tokens(module, rows);
    else
      add_tokens({}, *tokens);
  }

  void add_tokens(const std::string& module, const Json& rows) {
    constexpr std::string_view name = "trainable_token_indices";
    AdapterConfig::TrainableTokens tokens{module, {}};
    if (!rows.is_array()) refuse(label_, "{} is not a list", name);
    for (const Json& row : rows) {
      if (!row.is_number_unsigned()) refuse(label_, "{}: {} is not a token", name, shown_value(row));
      tokens.rows.push_back(row.get<std::uint64_t>());
    }
    std::vector<std::uint64_t> sorted = tokens.rows;
    std::ranges::sort(sorted);
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
      refuse(label_, "{}: token {} occurs twice", name, *twice);
    config_.trainable_tokens_.push_back(std::move(tokens));
  }

  void refuse_the_rest() const {
    for (const auto& [name, value] : json_.items())
      if (std::ranges::find(known_, name) == known_.end() &&
          std::ranges::find(harmless_fields, name) == harmless_fields.end() && !is_field_off(value))
        refuse(label_, "{} is {}: nibble cannot merge an adapter that uses it", printable(name), shown_value(value));
  }

  AdapterConfig& config_;
  Json json_;
  std::string_view label_;
  std::vector<std::string_view> known_;
};

AdapterConfig::AdapterConfig(std::string_view text, std::string_view label) { ConfigFields(*this, text, label).read(); }

std::uint64_t AdapterConfig::rank(std::string_view name) const { return rank_patterns_.value(name, rank_); }

bool AdapterConfig::is_saved(std::string_view parameter) const {
  for (std::size_t dot = parameter.find('.'); dot != std::string_view::npos; dot = parameter.find('.', dot + 1)) {
    const std::string_view module = parameter.substr(0, dot);
    if (std::ranges::any_of(modules_to_save_, [&](const std::string& name) { return module.ends_with(name); }))
      return true;
  }
  return false;
}

double AdapterConfig::scale(std::string_view name) const {
  const auto r = static_cast<double>(rank(name));
  return alpha_patterns_.value(name, alpha_) / (rank_stabilized_ ? std::sqrt(r) : r);
}

}  // namespace nibble
