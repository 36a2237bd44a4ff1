// How compressed-tensors stores FP8 (`float-quantized`): the codes under the weight's name, and the scales beside them.
// transformers reads it with the package compressed-tensors, and so does vLLM.

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "formats/models/architecture_line.hpp"
#include "formats/models/architectures.hpp"
#include "formats/models/weight_name.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/scaled.hpp"
#include "quant/schemes/config_groups.hpp"
#include "quant/schemes/fp8_parts.hpp"
#include "quant/schemes/module_targets.hpp"

namespace nibble {
namespace {

constexpr std::string_view package_version = "0.20.0";  // of the package that writes these keys

constexpr std::array<std::string_view, 4> activation_suffixes{".input_scale", ".output_scale", ".input_zero_point",
                                                              ".output_zero_point"};

struct Strategy {
  std::string_view name;  // in config.json
  Granularity granularity;
};
constexpr std::array<Strategy, 3> strategies{
    {{"tensor", Granularity::tensor}, {"channel", Granularity::row}, {"block", Granularity::tile}}};

const Strategy& strategy_of(const Codec& codec) {
  return *std::ranges::find(strategies, codec.granularity(), &Strategy::granularity);
}

// Null for codecs that this format cannot describe.
const ScaledCodec* as_fp8(const Codec& codec) {
  const auto* const scaled = dynamic_cast<const ScaledCodec*>(&codec);
  if (scaled == nullptr) return nullptr;
  return scaled->code_type() == DType::f8_e4m3 || scaled->code_type() == DType::f8_e5m2 ? scaled : nullptr;
}

bool is_e4m3(const Codec& codec) { return as_fp8(codec)->code_type() == DType::f8_e4m3; }

// An entry of `ignore` is the whole name of a module, or of a class (Linear, of which all layers are), or a regular
// expression behind "re:". The names of modules that would be taken for one of the others are expressions that match
// only them.
std::string ignoring(const std::string& module) {
  const bool is_class =
      module.find('.') == std::string::npos && !module.empty() && module[0] >= 'A' && module[0] <= 'Z';
  if (!module.starts_with(ModuleTargets::pattern_prefix) && !is_class) return module;
  return fmt::format("{}^{}$", ModuleTargets::pattern_prefix, RE2::QuoteMeta(module));
}

// The linear layers of the model that stay plain, whether the file has them or not. Since every linear layer that is
// not named is replaced, every plain matrix is named: a name of something else does no harm.
std::set<std::string> ignored_modules(const Plan& plan) {
  std::set<std::string> quantized, plain, ignored;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor tensor = plan.tensors[i];
    if (tensor.quantized) {
      quantized.emplace(tensor.module);
      continue;
    }
    std::ranges::move(plan.tensors.keeps(i), std::inserter(plain, plain.end()));
    if (is_matrix_weight(tensor.info) && tensor.role != Role::embedding) plain.emplace(tensor.module);
  }
  const auto defaults = default_skips(plan.model, plan.tied);
  for (const DefaultSkip& skip : defaults.value_or(std::vector<DefaultSkip>{{"lm_head", false}})) {
    const RE2 pattern(skip.pattern);
    const auto is_meant = [&](const std::string& module) { return RE2::FullMatch(module, pattern); };
    if (!skip.numbered)
      plain.insert(skip.pattern);
    else if (std::ranges::none_of(quantized, is_meant) && std::ranges::none_of(plain, is_meant))
      ignored.insert(fmt::format("{}{}$", ModuleTargets::pattern_prefix, skip.pattern));
  }
  for (const std::string& module : plain)
    if (!quantized.contains(module)) ignored.insert(ignoring(module));
  return ignored;
}

// An empty object if there is none.
nlohmann::json object_in(const nlohmann::json& in, const char* key) {
  const nlohmann::json found = in.is_object() ? in.value(key, nlohmann::json()) : nlohmann::json();
  return found.is_object() ? found : nlohmann::json::object();
}

// In messages.
std::string shown(const nlohmann::json& value) {
  return value.is_string() ? fmt::format("'{}'", printable(value.get<std::string>())) : printable(value.dump());
}

// Why decoded tensors would not be the weights of the model.
std::string undecodable_model(const nlohmann::json& config) {
  const nlohmann::json transforms = config.value("transform_config", nlohmann::json());
  const bool is_empty = transforms.empty() || (transforms.is_object() && transforms.size() == 1 &&
                                               transforms.value("config_groups", nlohmann::json(0)).empty());
  if (!is_empty)
    return "quantized after transforms such as rotations, as transform_config of config.json says; nibble takes models "
           "without transforms";
  const nlohmann::json sparsity = config.value("sparsity_config", nlohmann::json());
  const nlohmann::json format = sparsity.is_object() ? sparsity.value("format", nlohmann::json()) : sparsity;
  const std::string named = format.is_string() ? format.get<std::string>() : std::string();
  if (format.is_null() || named == "dense" || (format.is_string() && named.empty())) return {};
  return fmt::format("compressed as sparse, as sparsity_config of config.json says: format {}; nibble takes 'dense'",
                     shown(format));
}

// Why weights that config.json describes so, under this key, cannot be decoded. The tensors tell what it leaves out.
std::string undecodable_weights(const nlohmann::json& weights, std::string_view key) {
  struct Member {
    const char* key;
    std::vector<nlohmann::json> accepted;
  };
  const std::array<Member, 5> members{{{"type", {"float"}},
                                       {"num_bits", {8}},
                                       {"strategy", {"tensor", "channel", "block"}},
                                       {"symmetric", {true}},
                                       {"actorder", {nullptr, false}}}};
  for (const Member& member : members) {
    const nlohmann::json value = weights.value(member.key, nlohmann::json());
    if (value.is_null() || std::ranges::find(member.accepted, value) != member.accepted.end()) continue;
    std::vector<std::string> accepted;
    for (const nlohmann::json& one : member.accepted) accepted.push_back(shown(one));
    return fmt::format("quantized with {} {}, as {} of config.json says; nibble takes {}", member.key, shown(value),
                       key, fmt::join(accepted, " or "));
  }
  return {};
}

class CompressedTensors final : public Fp8Parts {
 public:
  CompressedTensors() : Fp8Parts("_scale", DType::f32, activation_suffixes) {}
  std::string_view quant_method() const noexcept override { return "compressed-tensors"; }
  bool stores(const Codec& codec) const override { return as_fp8(codec) != nullptr; }

  std::vector<Part> parts(const Codec& codec, const TensorInfo& tensor) const override {
    const std::vector<Plane> planes = codec.planes(tensor);
    return {{{tensor.name, planes[0].dtype, planes[0].shape}, 0},
            {{tensor.name + std::string(suffix()), planes[1].dtype, planes[1].shape}, 1}};
  }

  std::string undecodable_config(std::string_view quantization_config) const override {
    const nlohmann::json config = parse_config(quantization_config);
    if (config.is_null()) return std::string(unreadable_config);
    if (std::string why = undecodable_model(config); !why.empty()) return why;
    const nlohmann::json groups = object_in(config, "config_groups");
    for (const auto& [name, group] : groups.items()) {
      const nlohmann::json weights = object_in(group, "weights");
      const std::string key = fmt::format("config_groups.{}.weights", printable(name));
      if (std::string why = undecodable_weights(weights, key); !why.empty()) return why;
      if (std::string why = undecodable_blocks(weights.value("block_structure", nlohmann::json()), key); !why.empty())
        return why;
    }
    const std::string problem = ConfigGroups(config).problem();
    return problem.empty() ? problem : "quantized as lists say that nibble cannot apply: in config.json, " + problem;
  }

  Contradiction contradiction(std::string_view quantization_config) const override {
    const auto groups = std::make_shared<const ConfigGroups>(parse_config(quantization_config));
    return [groups](const Reader& in, const StoredTensor& found) -> std::string {
      const Strategy& strategy = strategy_of(*make_codec(found.codec));
      const bool has_one = element_count(in.tensors().shape(found.parts[1])) == 1;
      std::string why = groups->contradiction(without_weight_suffix(found.info.name), strategy.name, has_one);
      if (why.empty()) return why;
      return fmt::format("in FP8 with a scale per {}, but {}", to_string(strategy.granularity), why);
    };
  }

  bool replaces(Role role) const override {
    return role == Role::linear || role == Role::output_embeddings || role == Role::kept;
  }
  bool replaces_every_linear() const override { return true; }

  std::string obstacle(const Plan& plan) const override {
    if (splits_tensors(plan.model))
      return fmt::format(
          "transformers {} splits tensors of {} when it loads them, which it cannot do with compressed-tensors",
          architectures_version(), plan.model.architecture);
    const Strategy* strategy = nullptr;
    for (const PlannedTensor& tensor : plan.tensors) {
      if (!tensor.quantized) continue;
      const std::unique_ptr<const Codec> codec = make_codec(tensor.codec);
      const auto about = [&](std::string_view fact) {
        return fmt::format("tensor '{}' ({}) {}", printable(tensor.info.name), tensor.codec.text(), fact);
      };
      if (!stores(*codec)) return about("is not in a format of compressed-tensors");
      if (!is_e4m3(*codec)) return about("is E5M2, but compressed-tensors reads only E4M3");
      if (tensor.role == Role::conv1d) return about("is a Conv1D, which compressed-tensors leaves as it is");
      if (!replaces(tensor.role)) return about("is not a linear layer of the model");
      if (strategy != nullptr && strategy != &strategy_of(*codec))
        return about(fmt::format("has a scale per {} where others have one per {}", to_string(codec->granularity()),
                                 to_string(strategy->granularity)));
      strategy = &strategy_of(*codec);
    }
    return {};
  }

  std::string config(const Plan& plan) const override {
    // Of a plan that mixes formats, which only nibble reads, config.json describes what this scheme stores first.
    const auto is_fp8 = [](const PlannedTensor& tensor) {
      return tensor.quantized && as_fp8(*make_codec(tensor.codec)) != nullptr;
    };
    const auto first = std::find_if(plan.tensors.begin(), plan.tensors.end(), is_fp8);
    const Strategy& strategy = strategy_of(*make_codec(first == plan.tensors.end() ? plan.recipe.to : (*first).codec));
    nlohmann::json weights = {{"dynamic", false},          {"group_size", nullptr}, {"num_bits", 8},
                              {"strategy", strategy.name}, {"symmetric", true},     {"type", "float"}};
    if (strategy.granularity == Granularity::tile) weights["block_structure"] = {Regions::tile, Regions::tile};
    const nlohmann::json group = {{"format", "float-quantized"},
                                  {"input_activations", nullptr},
                                  {"output_activations", nullptr},
                                  {"targets", {"Linear"}},
                                  {"weights", std::move(weights)}};
    const nlohmann::json json = {{"config_groups", {{"group_0", group}}},
                                 {"format", "float-quantized"},
                                 {"global_compression_ratio", nullptr},
                                 {"ignore", ignored_modules(plan)},
                                 {"kv_cache_scheme", nullptr},
                                 {"quant_method", plan.nibble_only ? nibble_quant_method : quant_method()},
                                 {"quantization_status", "compressed"},
                                 {"version", package_version}};
    return json.dump();  // keys sorted, as the package writes them
  }
};

}  // namespace

const Scheme& compressed_tensors_scheme() {
  static const CompressedTensors scheme;
  return scheme;
}

}  // namespace nibble
