// A measurement for programs: JSON and CSV.

#include "cli/measurement/measurement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "cli/measurement/judgement.hpp"
#include "cli/measurement/measurement_groups.hpp"
#include "cli/measurement/verdict.hpp"
#include "cli/terminal/json.hpp"
#include "nibble/version.hpp"

namespace nibble::cli {
namespace {

constexpr int measurement_schema = 1;
constexpr std::size_t worst_listed = 10;

void add_figures(Json& json, const ErrorStats& stats) {
  json["mae"] = number(stats.mae());
  json["rmse"] = number(stats.rmse());
  json["max_abs"] = number(max_abs(stats));
  json["rel_rmse"] = number(stats.rel_rmse());
  json["sqnr_db"] = number(stats.sqnr_db());
  json["cosine"] = number(stats.cosine());
  json["mean_rel"] = number(stats.mean_rel());
}

void add_figures(Json& json, const OutputErrors& output) {
  json["output_rel_rmse"] = number(output.rel_rmse());
  json["output_sqnr_db"] = number(output.sqnr_db());
}

void add_group(Json& json, const Group& group) {
  json["tensors"] = group.tensors;
  json["weights"] = group.weights;
  json["lost"] = group.stats.lost;
  json["exact"] = group.is_exact();
  add_figures(json, group.stats);
  json["output_tensors"] = group.output.tensors;
  add_figures(json, group.output);
  json["bits_per_weight"] = number(group.bits());
}

Json describe(const Group& group) {
  Json json = Json::object();  // an object from the start: if memory runs out while null is turned into one, it cannot
                               // be destroyed
  add_group(json, group);
  return json;
}

Json describe(const MeasuredWeights& tensor) {
  const WeightStats& stats = tensor.stats;
  const bool any = stats.blocks > 0;
  Json json = {{"name", tensor.info.name},
               {"kind", tensor.kind},
               {"layer", tensor.layer ? Json(*tensor.layer) : Json()},
               {"dtype", traits(tensor.info.dtype).name},
               {"codec", tensor.form.text()},
               {"shape", tensor.info.shape},
               {"weights", tensor.info.elements()},
               {"bytes", tensor.bytes},
               {"nan", stats.nan},
               {"inf", stats.inf},
               {"beyond_fp32", stats.beyond_fp32},
               {"mean", number(stats.mean())},
               {"rms", number(stats.rms())},
               {"kurtosis", number(stats.kurtosis())}};
  json["absmax"] = {{"min", any ? number(stats.absmax_min) : Json()},
                    {"mean", number(stats.absmax_mean())},
                    {"max", any ? number(stats.absmax_max) : Json()},
                    {"std", number(stats.absmax_std())}};
  json["outlier_columns"] = tensor.outlier_columns ? Json(*tensor.outlier_columns) : Json();
  json["outlier_energy"] = tensor.outlier_columns ? Json(tensor.outlier_energy) : Json();
  return json;
}

Json describe(const MeasuredWeights& tensor, const MeasuredError& error) {
  const ErrorStats& stats = error.stats;
  const Outcome outcome = outcome_of(tensor, error);
  Json json = {{"codec", error.form.text()},
               {"outcome", to_string(outcome)},
               {"converted", is_converted(outcome)},
               {"bytes", error.bytes},
               {"bits_per_weight", number(bits_of(tensor, error))},
               {"nan", stats.nan},
               {"inf", stats.inf},
               {"lost", stats.lost},
               {"exact", !has_error(tensor, error)}};
  add_figures(json, stats);
  add_figures(json, output_of(tensor, error));
  json["max_abs_at"] = stats.max_abs > 0 ? Json(stats.max_abs_at) : Json();
  json["worst_block"] = Json();
  if (stats.worst_square > 0)
    json["worst_block"] = {{"at", stats.worst_square_at}, {"rmse", stats.worst_rmse()}, {"absmax", stats.worst_absmax}};
  const Counts& counts = error.counts;
  json["entropy"] = counts.codes.empty() ? Json() : number(counts.entropy());
  json["code_use"] = counts.codes.empty() ? Json() : Json(counts.codes);
  Json histogram = Json::array();
  if (counts.exact > 0) histogram.push_back({"zero", counts.exact});
  for (const auto& [exponent, count] : counts.errors) histogram.push_back({exponent, count});
  json["error_histogram"] = std::move(histogram);
  return json;
}

// An object without its closing brace, to which a list of tensors is appended. As JSON values in memory, the tensors of
// a model of 100,000 would take 400 MB.
template <class F> void write_tensors(const Json& before, std::size_t count, const Sink& out, F&& tensor) {
  std::string text = dump(before);
  text.pop_back();
  out(text + R"(,"tensors":[)");
  for (std::size_t t = 0; t < count; ++t) out((t == 0 ? "" : ",") + dump(tensor(t)));
  out("]}");
}

Json describe(const Measurement& measurement, const Verdict& verdict) {
  const bool any_error = verdict.exact < verdict.tensors, any_figure = verdict.min_db <= verdict.max_db;
  return {{"codec", verdict.form.text()},
          {"tensors", verdict.tensors},
          {"exact", verdict.exact},
          {"worse_than_expected", verdict.worse},
          {"broken", verdict.broken},
          {"min_sqnr_db", any_figure ? number(verdict.min_db) : Json()},
          {"max_sqnr_db", any_figure ? number(verdict.max_db) : Json()},
          {"min_normal_sqnr_db", number(verdict.min_normal)},
          {"max_normal_sqnr_db", number(verdict.max_normal)},
          {"worst", any_error ? Json(verdict.worst) : Json()},
          {"text", verdict.text(measurement)}};
}

void write(const Measurement& measurement, const MeasuredCandidate& candidate, const Sink& out) {
  const Groups groups = make_groups(measurement, candidate);
  Json json = {{"name", candidate.name}, {"bytes", candidate.bytes}};
  Json& verdict_list = json["verdicts"] = Json::array();
  for (const Verdict& verdict : verdicts(measurement, candidate))
    verdict_list.push_back(describe(measurement, verdict));
  json["headline"] = to_string(groups.all.headlined());
  for (const Outcome outcome : {Outcome::quantized, Outcome::cast, Outcome::kept})
    json[std::string(to_string(outcome))] = describe(groups.all[outcome]);
  json["converted"] = describe(groups.all.converted);
  json["total"] = describe(groups.total);
  const auto add_split = [](Json& list, Json name, const SplitGroup& group) {
    Json& json_group = list.emplace_back(std::move(name));
    json_group["headline"] = to_string(group.headlined());
    for (const Outcome outcome : {Outcome::quantized, Outcome::cast, Outcome::kept})
      json_group[std::string(to_string(outcome))] = group[outcome].tensors;
    json_group["converted"] = group.converted.tensors;
    add_group(json_group, group.headline());
  };
  Json& kinds = json["kinds"] = Json::array();
  for (const auto& [kind, group] : groups.kinds) add_split(kinds, {{"kind", kind}}, group);
  Json& layers = json["layers"] = Json::array();
  for (const auto& [layer, group] : groups.layers) add_split(layers, {{"layer", layer}}, group);
  std::vector<std::size_t> worst = worst_first(measurement, candidate);
  std::erase_if(worst, [&](std::size_t t) { return !has_error(measurement.tensors[t], *candidate.tensors[t]); });
  worst.resize(std::min(worst.size(), worst_listed));
  json["worst"] = worst;
  json["missing"] = candidate.missing;
  write_tensors(json, candidate.tensors.size(), out, [&](std::size_t t) {
    return candidate.tensors[t] ? describe(measurement.tensors[t], *candidate.tensors[t]) : Json();
  });
}

// A text that a spreadsheet must not run as a formula: names come from files of strangers, and "=HYPERLINK(...)" is a
// formula. An apostrophe before it makes it plain text (OWASP, "CSV Injection").
std::string csv_field(std::string_view field) {
  std::string text;
  if (!field.empty() && std::string_view("=+-@\t\r").find(field.front()) != std::string_view::npos) text += '\'';
  text += field;
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

// Empty if there is no figure.
std::string csv_number(double value) { return std::isnan(value) ? "" : fmt::format("{}", value); }

}  // namespace

void write_json(const Measurement& measurement, const Sink& out) {
  std::string text = dump({{"schema_version", measurement_schema}, {"generator", fmt::format("nibble {}", version())}});
  text.pop_back();
  out(text + R"(,"reference":)");
  std::uint64_t weights = 0;
  for (const MeasuredWeights& tensor : measurement.tensors) weights += tensor.info.elements();
  write_tensors({{"name", measurement.name}, {"bytes", measurement.bytes}, {"weights", weights}},
                measurement.tensors.size(), out, [&](std::size_t t) { return describe(measurement.tensors[t]); });
  out(R"(,"tests":[)");
  for (std::size_t c = 0; c < measurement.candidates.size(); ++c) {
    if (c > 0) out(",");
    write(measurement, measurement.candidates[c], out);
  }
  out("]}");
}

void write_csv(const Measurement& measurement, const Sink& out) {
  out("test,name,kind,layer,dtype,shape,weights,codec,bytes,bits_per_weight,mae,rmse,max_abs,rel_rmse,sqnr_db,cosine,"
      "mean_rel,nan,inf,rms,kurtosis,absmax_mean,absmax_std,outlier_columns,outlier_energy,max_abs_at,worst_block_at,"
      "worst_block_rmse,absmax_min,absmax_max,reference_nan,reference_inf,converted,outcome,lost,output_rel_rmse,"
      "output_sqnr_db\n");
  for (const MeasuredCandidate& candidate : measurement.candidates)
    for (std::size_t t = 0; t < candidate.tensors.size(); ++t) {
      if (!candidate.tensors[t]) continue;
      const MeasuredWeights& tensor = measurement.tensors[t];
      const MeasuredError& error = *candidate.tensors[t];
      const ErrorStats& stats = error.stats;
      std::string line =
          fmt::format("{},{},{},{},{},{},{},{},{},{}", csv_field(candidate.name), csv_field(tensor.info.name),
                      csv_field(tensor.kind), tensor.layer ? fmt::format("{}", *tensor.layer) : "",
                      traits(tensor.info.dtype).name, fmt::join(tensor.info.shape, "x"), tensor.info.elements(),
                      csv_field(error.form.text()), error.bytes, csv_number(bits_of(tensor, error)));
      for (const double figure : {stats.mae(), stats.rmse(), max_abs(stats), stats.rel_rmse(), stats.sqnr_db(),
                                  stats.cosine(), stats.mean_rel()})
        line += ',' + csv_number(figure);
      fmt::format_to(std::back_inserter(line), ",{},{}", stats.nan, stats.inf);
      for (const double figure :
           {tensor.stats.rms(), tensor.stats.kurtosis(), tensor.stats.absmax_mean(), tensor.stats.absmax_std()})
        line += ',' + csv_number(figure);
      line += tensor.outlier_columns ? fmt::format(",{},{}", *tensor.outlier_columns, csv_number(tensor.outlier_energy))
                                     : ",,";
      line += stats.max_abs > 0 ? fmt::format(",{}", stats.max_abs_at) : ",";
      line +=
          stats.worst_square > 0 ? fmt::format(",{},{}", stats.worst_square_at, csv_number(stats.worst_rmse())) : ",,";
      line += tensor.stats.blocks > 0 ? fmt::format(",{},{}", tensor.stats.absmax_min, tensor.stats.absmax_max) : ",,";
      const Outcome outcome = outcome_of(tensor, error);
      const OutputErrors output = output_of(tensor, error);
      fmt::format_to(std::back_inserter(line), ",{},{},{},{},{},{},{}\n", tensor.stats.nan, tensor.stats.inf,
                     is_converted(outcome) ? 1 : 0, to_string(outcome), stats.lost, csv_number(output.rel_rmse()),
                     csv_number(output.sqnr_db()));
      out(line);
    }
}

}  // namespace nibble::cli
