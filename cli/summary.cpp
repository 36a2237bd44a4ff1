// What nibble convert prints on stdout: of a plan (--dry-run) and of a conversion, for people and for programs.

#include "cli/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "cli/terminal/figures.hpp"
#include "cli/terminal/remedies.hpp"
#include "cli/terminal/sizes.hpp"
#include "formats/models/name_groups.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

double bits_per_weight(const Plan& plan) {
  std::uint64_t weights = 0;
  for (const PlannedTensor& tensor : plan.tensors) weights += tensor.info.elements();
  return weights == 0 ? 0 : 8 * static_cast<double>(plan.stored_bytes()) / static_cast<double>(weights);
}

std::map<std::string, std::uint64_t> count_codecs(const Plan& plan) {
  std::map<std::string, std::uint64_t> counts;
  for (const PlannedTensor& tensor : plan.tensors) ++counts[tensor.codec.text()];
  return counts;
}

// The share of the source's bytes that belongs to kept tensors.
double kept_share(const Plan& plan) {
  std::uint64_t kept = 0;
  for (const PlannedTensor& tensor : plan.tensors)
    kept += tensor.codec.keeps() && !tensor.decoded ? tensor.source_bytes : 0;
  return kept == 0 ? 0 : static_cast<double>(kept) / static_cast<double>(plan.source_bytes());
}

// "14 nf4, 3 keep; 12.5 % of the bytes are kept as they are"
std::string codecs_text(const Plan& plan) {
  std::string text;
  for (const auto& [codec, count] : count_codecs(plan))
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, codec);
  if (const double kept = kept_share(plan); kept > 0)
    text += fmt::format("; {:.1f} % of the bytes are kept as they are", 100 * kept);
  return text;
}

// The rows of a plan's table. A row may stand for several tensors.
struct PlanRow {
  std::size_t first = 0;
  std::size_t count = 0;
  std::string name;
};

std::vector<PlanRow> rows_of(const Plan& plan) {
  using Alike = std::tuple<CodecSpec, std::string_view, DType, Shape>;
  std::map<Alike, std::vector<std::size_t>> alike;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor tensor = plan.tensors[i];
    alike[{tensor.codec, tensor.reason, tensor.info.dtype, tensor.info.shape}].push_back(i);
  }
  std::vector<PlanRow> rows;
  for (const auto& [unused, members] : alike) {
    std::vector<std::string> names;
    for (const std::size_t i : members) names.push_back(plan.tensors[i].info.name);
    for (const NameGroup& group : name_groups(names))
      rows.push_back({members[group.first], group.count, printable(group.text)});
  }
  std::sort(rows.begin(), rows.end(), [](const PlanRow& a, const PlanRow& b) { return a.first < b.first; });
  return rows;
}

// A text as a literal of Python.
std::string quoted(const std::string& text) { return dump(Json(text)); }

std::string loading_text(const Plan& plan, const Conversion& conversion) {
  const std::string path = quoted(conversion.out);
  if (plan.nibble_only) return "only nibble can read it (--allow-nibble-only), with measure and inspect";
  if (!conversion.in.is_directory()) {
    const std::string file = fmt::format("safetensors.torch.load_file({})", path);
    const std::string_view writer = quant_method(plan);
    return writer.empty()
               ? file
               : fmt::format("{}, the tensors that {} writes; convert a directory to load a model", file, writer);
  }
  const auto& config = conversion.in.config();
  if (!plan.model.architecture.empty())
    return fmt::format("transformers.{}.from_pretrained({})", plan.model.architecture, path);
  if (config && !config->model_type.empty()) return fmt::format("transformers.AutoModel.from_pretrained({})", path);
  return fmt::format("from_pretrained({}) of the model's class", path);
}

bool is_finite(const Findings& found) { return found.nan == 0 && found.inf == 0 && found.overflow == 0; }

// Every converted weight has the value that it had before.
bool is_exact(const Report& report) {
  const Totals &quantized = report.totals.quantized, &cast = report.totals.cast;
  const bool is_known = quantized.tensors + cast.tensors == 0 || report.plan.recipe.error_report != ErrorReport::none;
  return report.worst.name.empty() && is_known && is_finite(report.findings);
}

}  // namespace

Json summary_json(const Plan& plan, std::span<const Message> warnings) {
  Json lines = Json::array();
  for (const Message& warning : warnings) lines.push_back(with_options(warning.text, warning.remedy));
  return {{"architecture", plan.model.architecture.empty() ? Json() : Json(plan.model.architecture)},
          {"tensors_by_codec", count_codecs(plan)},
          {"source_bytes", plan.source_bytes()},
          {"stored_bytes", plan.stored_bytes()},
          {"bits_per_weight", bits_per_weight(plan)},
          {"quantized_share", plan.quantized_share()},
          {"kept_share", kept_share(plan)},
          {"shards", plan.shard_ends.size()},
          {"warnings", std::move(lines)}};
}

Json plan_json(const Plan& plan, const ConversionMemory& memory) {
  Json json = summary_json(plan, plan.warnings);
  json["memory_bytes"] = memory.total_bytes;
  json["threads"] = memory.threads;
  json["chunk_bytes"] = memory.chunk_bytes;
  json["batch_bytes"] = memory.batch_bytes;
  Json& tensors = json["tensors"] = Json::array();
  for (const PlannedTensor& tensor : plan.tensors)
    tensors.push_back({{"name", tensor.info.name},
                       {"dtype", traits(tensor.info.dtype).name},
                       {"shape", tensor.info.shape},
                       {"codec", tensor.codec.text()},
                       {"reason", tensor.reason},
                       {"source_bytes", tensor.source_bytes},
                       {"stored_bytes", tensor.stored_bytes}});
  return json;
}

std::string plan_text(const Plan& plan, const ConversionMemory& memory) {
  const std::vector<PlanRow> rows = rows_of(plan);
  std::size_t width = 6;
  for (const PlanRow& row : rows) width = std::max(width, row.name.size());
  std::string text = fmt::format("{:<{}}  {:<5} {:>18}  {:<5}  {:>20}  {}\n", "tensor", width, "type", "shape", "codec",
                                 "stored", "why");
  for (const PlanRow& row : rows) {
    const PlannedTensor tensor = plan.tensors[row.first];
    const std::string times = row.count > 1 ? fmt::format("{} x ", row.count) : "";
    fmt::format_to(std::back_inserter(text), "{:<{}}  {:<5} {:>18}  {:<5}  {:>20}  {}\n", row.name, width,
                   traits(tensor.info.dtype).name, to_string(tensor.info.shape), tensor.codec.text(),
                   times + size_short(tensor.stored_bytes), tensor.reason);
  }
  fmt::format_to(std::back_inserter(text), "\n{} -> {} in {}, {:.2f} bits per weight\n{}: {}\n{} of memory with {}\n",
                 size_both(plan.source_bytes()), size_both(plan.stored_bytes()),
                 counted(plan.shard_ends.size(), "file"), bits_per_weight(plan), counted(plan.tensors.size(), "tensor"),
                 codecs_text(plan), size_short(memory.total_bytes), counted(memory.threads, "thread"));
  return text;
}

Json report_json(const Report& report, const Conversion& conversion) {
  const Findings& found = report.findings;
  Json json = summary_json(report.plan, report.warnings);
  json["findings"] = {{"nan", found.nan},
                      {"inf", found.inf},
                      {"overflow", found.overflow},
                      {"underflow", found.underflow},
                      {"subnormal", found.subnormal}};
  if (!conversion.computed) json["exact"] = is_exact(report);
  const ErrorSums& error = report.totals.headline().error;
  json["headline"] = to_string(report.totals.headlined());
  json["sqnr_db"] = error.count > 0 ? number(error.sqnr_db()) : Json();
  json["worst_tensor"] = report.worst.name.empty()
                             ? Json()
                             : Json({{"name", report.worst.name}, {"sqnr_db", number(report.worst.sqnr_db)}});
  json["load"] = loading_text(report.plan, conversion);
  json["output"] = conversion.out;
  json["device"] = conversion.device.value_or("cpu");
  json["seconds"] = conversion.seconds;
  return json;
}

std::string report_text(const Report& report, const Conversion& conversion) {
  const Plan& plan = report.plan;
  const double rate = static_cast<double>(plan.source_bytes()) / std::max(conversion.seconds, 1e-9);
  std::string text = fmt::format("{}: {} -> {}, {:.2f} bits per weight, in {:.2f} s ({}/s) on {}\n",
                                 escaped(conversion.out), size_both(plan.source_bytes()),
                                 size_both(plan.stored_bytes()), bits_per_weight(plan), conversion.seconds,
                                 size_short(static_cast<std::uint64_t>(rate)), conversion.device.value_or("the CPU"));
  text += counted(plan.tensors.size(), "tensor") + (plan.tensors.empty() ? "" : ": ") + codecs_text(plan) + '\n';
  const Findings& found = report.findings;
  const Totals &quantized = report.totals.quantized, &cast = report.totals.cast;
  if (is_exact(report)) {
    text += conversion.computed                    ? "no weight was rounded after merging in fp32\n"
            : quantized.tensors + cast.tensors > 0 ? "every converted weight is exact\n"
                                                   : "every weight is unchanged\n";
  } else if (!report.worst.name.empty()) {
    text += fmt::format("SQNR of the {} weights: {}", to_string(report.totals.headlined()),
                        with_unit(report.totals.headline().error.sqnr_db()));
    if (quantized.tensors > 0 && cast.error.count > 0)
      text += fmt::format(", of the cast weights: {}", with_unit(cast.error.sqnr_db()));
    text += fmt::format("; worst tensor: {}, {}\n", with_unit(report.worst.sqnr_db), printable(report.worst.name));
  }
  if (!is_finite(found))
    text += fmt::format("NaN: {}, infinite: {}, beyond the stored type: {}; see the warnings\n", found.nan, found.inf,
                        found.overflow);
  return text + "load: " + loading_text(plan, conversion) + '\n';
}

}  // namespace nibble::cli
