// nibble.json: what became of every tensor, for programs and for `nibble verify`. It holds no path, no time and no
// machine, so that equal input and options give equal bytes.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "nibble/convert.hpp"
#include "nibble/version.hpp"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

constexpr int schema_version = 1;

// Names come from files and options from a command line: what is no UTF-8 is replaced rather than refused.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json describe(const TensorInfo& tensor) { return {{"dtype", traits(tensor.dtype).name}, {"shape", tensor.shape}}; }

Json describe(const Findings& found) {
  Json json = {{"nan", found.nan},
               {"inf", found.inf},
               {"overflow", found.overflow},
               {"underflow", found.underflow},
               {"subnormal", found.subnormal}};
  if (found.first_nonfinite != UINT64_MAX) json["first_nonfinite"] = found.first_nonfinite;
  return json;
}

std::string_view spelling(Nonfinite policy) {
  return policy == Nonfinite::keep ? "keep" : policy == Nonfinite::error ? "error" : "quantize";
}

std::string_view spelling(OnOverflow policy) {
  return policy == OnOverflow::error ? "error" : policy == OnOverflow::clamp ? "clamp" : "keep";
}

Json describe(const Recipe& recipe) {
  Json rules = Json::array();
  for (const Rule& rule : recipe.rules) rules.push_back({{"pattern", rule.pattern}, {"codec", rule.codec}});
  Json json = {{"to", recipe.to},
               {"block_size", recipe.options.blocksize},
               {"double_quant", recipe.options.double_quant},
               {"on_overflow", spelling(recipe.options.on_overflow)},
               {"nonfinite", spelling(recipe.nonfinite)},
               {"tensor", std::move(rules)},
               {"skip", recipe.skips},
               {"default_skips", recipe.default_skips},
               {"embeddings", recipe.embeddings},
               {"lm_head", recipe.lm_head},
               {"experts", recipe.experts},
               {"allow_nibble_only", recipe.allow_nibble_only}};
  if (recipe.compute_dtype) json["compute_dtype"] = traits(*recipe.compute_dtype).torch_name;
  if (recipe.keep_shards) {
    json["keep_shards"] = true;
  } else {
    json["max_shard_size"] = recipe.max_shard_bytes;
  }
  return json;
}

}  // namespace

std::string manifest(const Report& report, const Writer& out) {
  const Plan& plan = report.plan;
  // Tensor by tensor: as one tree, the manifest of 100,000 tensors would take a gigabyte.
  std::string tensors;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& planned = plan.tensors[i];
    const ConvertedTensor& converted = report.tensors[i];
    Json parts = Json::array();
    for (const StoredPart& part : converted.parts) {
      Json json = {{"name", part.info.name}};
      json.update(describe(part.info));
      json["bytes"] = part.info.bytes();
      json["xxh3_128"] = part.xxh3;
      parts.push_back(std::move(json));
    }
    Json json = {{"name", planned.info.name},
                 {"codec", planned.codec},
                 {"reason", planned.reason},
                 {"source", describe(planned.info)},
                 {"transposed", planned.transposed},
                 {"source_bytes", planned.info.bytes()},
                 {"stored_bytes", planned.stored_bytes},
                 {"findings", describe(converted.findings)}};
    if (const std::string file = out.shard_name(converted.shard); !file.empty()) json["file"] = file;
    json["parts"] = std::move(parts);
    tensors += (i == 0 ? "\n  " : ",\n  ") + dump(json);
  }
  const Json json = {{"schema_version", schema_version},
                     {"generator", fmt::format("nibble {}", version())},
                     {"architecture", plan.architecture.empty() ? Json() : Json(plan.architecture)},
                     {"dtype", traits(plan.dtype).torch_name},
                     {"recipe", describe(plan.recipe)},
                     {"source_bytes", plan.source_bytes()},
                     {"stored_bytes", plan.stored_bytes()},
                     {"quantized_share", plan.quantized_share()},
                     {"warnings", report.warnings}};
  std::string text;
  for (const auto& [key, value] : json.items())
    text += fmt::format("{} {}: {}", text.empty() ? "{\n" : ",\n", dump(key), dump(value));
  return text + ",\n \"tensors\": [" + tensors + "\n ]\n}\n";
}

}  // namespace nibble
