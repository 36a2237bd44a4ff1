#include "quant/jobs/convert/manifest.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "nibble/version.hpp"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

constexpr int schema_version = 2;
constexpr std::size_t piece_bytes = 64 << 10;

// Names come from files and patterns from users: invalid UTF-8 is replaced rather than refused.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void append_quoted(std::string& text, std::string_view value) { text += dump(Json(value)); }

void append(std::string& text, const TensorInfo& tensor) {
  fmt::format_to(std::back_inserter(text), R"("dtype":"{}","shape":[{}])", traits(tensor.dtype).name,
                 fmt::join(tensor.shape, ","));
}

void append(std::string& text, const Findings& found) {
  fmt::format_to(std::back_inserter(text), R"("findings":{{"nan":{},"inf":{},"overflow":{},"underflow":{},)", found.nan,
                 found.inf, found.overflow, found.underflow);
  fmt::format_to(std::back_inserter(text), R"("subnormal":{})", found.subnormal);
  if (found.first_nonfinite != UINT64_MAX)
    fmt::format_to(std::back_inserter(text), R"(,"first_nonfinite":{})", found.first_nonfinite);
  text += '}';
}

// JSON has no infinity and no NaN. The shortest digits that read back the same.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

void append(std::string& text, const ErrorSums& sums) {
  fmt::format_to(std::back_inserter(text), R"("rmse":{},"rel_rmse":{},"sqnr_db":{},"cosine":{})", number(sums.rmse()),
                 number(sums.rel_rmse()), number(sums.sqnr_db()), number(sums.cosine()));
}

void append(std::string& text, const Spread& absmax) {
  if (absmax.count > 0)
    fmt::format_to(std::back_inserter(text), R"(,"absmax":{{"min":{},"mean":{},"max":{},"std":{}}})",
                   number(absmax.min), number(absmax.mean()), number(absmax.max), number(absmax.std()));
}

void append(std::string& text, const EncodingError& error) {
  text += R"(,"error":{)";
  append(text, error.sums);
  append(text, error.absmax);
  text += '}';
}

void append(std::string& text, const MeasuredError& error, const EncodingError* basic) {
  const ErrorStats& stats = error.stats;
  text += R"(,"error":{)";
  append(text, static_cast<const ErrorSums&>(stats));
  fmt::format_to(std::back_inserter(text), R"(,"mae":{},"max_abs":{},"max_abs_at":{},"mean_rel":{},"worst_block":)",
                 number(stats.mae()), stats.count == 0 ? "null" : number(stats.max_abs),
                 stats.max_abs > 0 ? fmt::format("{}", stats.max_abs_at) : "null", number(stats.mean_rel()));
  if (stats.worst_square > 0)
    fmt::format_to(std::back_inserter(text), R"({{"at":{},"rmse":{},"absmax":{}}})", stats.worst_square_at,
                   number(stats.worst_rmse()), number(stats.worst_absmax));
  else
    text += "null";
  if (basic != nullptr) append(text, basic->absmax);
  text += '}';
}

void append(std::string& text, std::string_view name, const Totals& totals) {
  fmt::format_to(std::back_inserter(text), ",\n \"{}\": {{\"tensors\":{},\"weights\":{}", name, totals.tensors,
                 totals.weights);
  if (totals.error.count > 0) {
    text += ",\"error\":{";
    append(text, totals.error);
    text += '}';
  }
  text += '}';
}

std::string_view spelling(ErrorReport report) {
  return report == ErrorReport::none ? "none" : report == ErrorReport::basic ? "basic" : "full";
}

std::string_view spelling(Intake intake) {
  return intake == Intake::plain ? "plain" : intake == Intake::any ? "any" : "quantized";
}

std::string_view spelling(Nonfinite policy) {
  return policy == Nonfinite::keep ? "keep" : policy == Nonfinite::error ? "error" : "quantize";
}

std::string_view spelling(OnOverflow policy) {
  switch (policy) {
    case OnOverflow::automatic:
      return "auto";
    case OnOverflow::error:
      return "error";
    case OnOverflow::clamp:
      return "clamp";
    default:
      return "keep";
  }
}

Json recipe_json(const Recipe& recipe) {
  Json rules = Json::array();
  for (const Rule& rule : recipe.rules) rules.push_back({{"pattern", rule.pattern}, {"codec", rule.codec.text()}});
  Json json = {{"to", recipe.to.text()},
               {"on_overflow", spelling(recipe.on_overflow)},
               {"nonfinite", spelling(recipe.nonfinite)},
               {"error_report", spelling(recipe.error_report)},
               {"tensor", std::move(rules)},
               {"skip", recipe.skips},
               {"default_skips", recipe.default_skips},
               {"embeddings", recipe.embeddings.text()},
               {"lm_head", recipe.lm_head.text()},
               {"experts", recipe.experts.text()},
               {"allow_nibble_only", recipe.allow_nibble_only}};
  if (recipe.intake != Intake::plain) json["intake"] = spelling(recipe.intake);
  if (recipe.decoded_as) json["decoded_as"] = traits(*recipe.decoded_as).torch_name;
  if (recipe.compensate) json["compensate"] = true;
  if (recipe.compute_dtype) json["compute_dtype"] = traits(*recipe.compute_dtype).torch_name;
  if (recipe.keep_shards) {
    json["keep_shards"] = true;
  } else {
    json["max_shard_size"] = recipe.max_shard_bytes;
  }
  return json;
}

}  // namespace

std::string recipe_text(const Recipe& recipe) { return dump(recipe_json(recipe)); }

Manifest::Manifest(const Plan& plan, Writer& out, std::string_view adapter, std::string_view calibration) : out_(out) {
  const Json json = {{"schema_version", schema_version},
                     {"generator", fmt::format("nibble {}", version())},
                     {"architecture", plan.model.architecture.empty() ? Json() : Json(plan.model.architecture)},
                     {"dtype", traits(plan.dtype).torch_name},
                     {"hash_chunk_bytes", Xxh3Chunks::chunk_bytes},
                     {"recipe", recipe_json(plan.recipe)},
                     {"source_bytes", plan.source_bytes()}};
  for (const auto& [key, value] : json.items())
    text_ += fmt::format("{} {}: {}", text_.empty() ? "{\n" : ",\n", dump(key), dump(value));
  if (!adapter.empty()) text_ += fmt::format(",\n \"adapter\": {}", adapter);
  if (!calibration.empty()) text_ += fmt::format(",\n \"calibration\": {}", calibration);
  text_ += ",\n \"tensors\": [";
}

// As text, not as a tree: 100,000 tensors have 600,000 parts.
std::string Manifest::add(const PlannedTensor& tensor, std::size_t shard, const Findings& findings,
                          const EncodingError* basic, const MeasuredError* full, std::span<const Part> parts,
                          const std::optional<Compensated>& compensated) {
  std::string text = "{\"name\":";
  append_quoted(text, tensor.info.name);
  text += ",\"codec\":";
  append_quoted(text, tensor.codec.text());
  text += ",\"reason\":";
  append_quoted(text, tensor.reason);
  text += ",\"source\":{";
  append(text, tensor.info);
  fmt::format_to(std::back_inserter(text), R"(}},"transposed":{},"source_bytes":{},"stored_bytes":{},)",
                 tensor.transposed, tensor.source_bytes, tensor.stored_bytes);
  append(text, findings);
  if (compensated)
    fmt::format_to(std::back_inserter(text), R"(,"compensation":{{"damping":{},"second_moment_xxh3_128":"{}"}})",
                   number(compensated->damping), compensated->second_moment.hex());
  if (full != nullptr)
    append(text, *full, basic);
  else if (basic != nullptr)
    append(text, *basic);
  if (const std::string file = out_.shard_name(shard); !file.empty()) {
    text += ",\"file\":";
    append_quoted(text, file);
  }
  text += ",\"parts\":[";
  for (std::size_t p = 0; p < parts.size(); ++p) {
    text += p == 0 ? "{\"name\":" : ",{\"name\":";
    append_quoted(text, parts[p].info.name);
    text += ',';
    append(text, parts[p].info);
    fmt::format_to(std::back_inserter(text), R"(,"bytes":{},"xxh3_128":[)", parts[p].info.bytes());
    for (std::size_t h = 0; h < parts[p].hashes.size(); ++h)
      fmt::format_to(std::back_inserter(text), R"({}"{}")", h == 0 ? "" : ",", parts[p].hashes[h].hex());
    text += "]}";
  }
  text += "]}";
  add_entry(text);
  return text;
}

void Manifest::add_entry(std::string_view entry) {
  text_ += tensors_++ == 0 ? "\n  " : ",\n  ";
  text_ += entry;
  if (text_.size() >= piece_bytes) flush();
}

void Manifest::rewind(const Mark& mark) {
  tensors_ = mark.tensors;
  if (mark.bytes >= written_) {
    text_.resize(mark.bytes - written_);
  } else {
    text_.clear();
    written_ = mark.bytes;  // the next piece is written there
  }
}

void Manifest::end(const Report& report) {
  text_ += "\n ]";
  const ByOutcome<Totals>& totals = report.totals;
  append(text_, to_string(Outcome::quantized), totals.quantized);
  append(text_, to_string(Outcome::cast), totals.cast);
  Totals converted = totals.quantized;
  converted.tensors += totals.cast.tensors;
  converted.weights += totals.cast.weights;
  converted.error.add(totals.cast.error);
  append(text_, "converted", converted);
  append(text_, to_string(Outcome::kept), totals.kept);
  Json warnings = Json::array();
  for (const Message& warning : report.warnings) warnings.push_back(warning.text);
  const Json json = {{"stored_bytes", report.plan.stored_bytes()},
                     {"quantized_share", report.plan.quantized_share()},
                     {"warnings", std::move(warnings)}};
  for (const auto& [key, value] : json.items()) text_ += fmt::format(",\n {}: {}", dump(key), dump(value));
  text_ += "\n}\n";
  flush();
}

void Manifest::flush() {
  out_.write_manifest(written_, text_);
  written_ += text_.size();
  text_.clear();
}

}  // namespace nibble
