// A measurement as text. Figures of groups are those of all their weights together, not means of figures.

#include "cli/measurement.hpp"

#include <fmt/color.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "cli/figures.hpp"
#include "cli/json.hpp"
#include "cli/sizes.hpp"
#include "nibble/error.hpp"
#include "nibble/version.hpp"

namespace nibble::cli {
namespace {

constexpr int measurement_schema = 1;
constexpr std::size_t worst_listed = 10;  // in JSON
constexpr int worst_bar_width = 12;

struct Group {
  std::uint64_t tensors = 0;
  std::uint64_t weights = 0;
  std::uint64_t bytes = 0;
  ErrorStats stats;

  void add(const MeasuredWeights& tensor, const MeasuredError& error) {
    ++tensors;
    weights += tensor.info.elements();
    bytes += error.bytes;
    stats.add(error.stats);
  }
  [[nodiscard]] double bits() const {
    return weights == 0 ? std::nan("") : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
  }
};

struct Groups {
  Group total;
  std::map<std::string, Group> kinds;
  std::map<std::uint64_t, Group> layers;
};

Groups group(const Measurement& measurement, const MeasuredCandidate& candidate) {
  Groups groups;
  for (std::size_t t = 0; t < candidate.tensors.size(); ++t) {
    if (!candidate.tensors[t]) continue;
    const MeasuredWeights& tensor = measurement.tensors[t];
    groups.total.add(tensor, *candidate.tensors[t]);
    groups.kinds[tensor.kind].add(tensor, *candidate.tensors[t]);
    if (tensor.layer) groups.layers[*tensor.layer].add(tensor, *candidate.tensors[t]);
  }
  return groups;
}

// What cannot be said comes last, unless it is about weights that are wrong: some that are not finite here and were
// there, or zeros that no longer are.
double badness(const MeasuredWeights& tensor, const std::optional<MeasuredError>& error) {
  if (!error) return -1;
  const ErrorStats& stats = error->stats;
  if (stats.lost > 0 || stats.nan + stats.inf > tensor.stats.nan + tensor.stats.inf)
    return std::numeric_limits<double>::infinity();
  const double value = stats.rel_rmse();
  if (std::isnan(value)) return stats.square > 0 ? std::numeric_limits<double>::infinity() : -1;
  return value;
}

std::vector<std::size_t> worst_first(const Measurement& measurement, const MeasuredCandidate& candidate) {
  std::vector<std::size_t> order(candidate.tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return badness(measurement.tensors[a], candidate.tensors[a]) >
           badness(measurement.tensors[b], candidate.tensors[b]);
  });
  std::erase_if(order, [&](std::size_t t) { return !candidate.tensors[t]; });
  return order;
}

double max_abs(const ErrorStats& stats) { return stats.count == 0 ? std::nan("") : stats.max_abs; }

void add_figures(Json& json, const ErrorStats& stats) {
  json["mae"] = number(stats.mae());
  json["rmse"] = number(stats.rmse());
  json["max_abs"] = number(max_abs(stats));
  json["rel_rmse"] = number(stats.rel_rmse());
  json["sqnr_db"] = number(stats.sqnr_db());
  json["cosine"] = number(stats.cosine());
  json["mean_rel"] = number(stats.mean_rel());
}

void add_group(Json& json, const Group& group) {
  json["tensors"] = group.tensors;
  json["weights"] = group.weights;
  add_figures(json, group.stats);
  json["bits_per_weight"] = number(group.bits());
}

double bits_per_weight(const MeasuredWeights& tensor, const MeasuredError& error) {
  const std::uint64_t weights = tensor.info.elements();
  return weights == 0 ? std::nan("") : 8 * static_cast<double>(error.bytes) / static_cast<double>(weights);
}

Json describe(const MeasuredWeights& tensor) {
  const WeightStats& stats = tensor.stats;
  const bool any = stats.blocks > 0;
  Json json = {{"name", tensor.info.name},
               {"kind", tensor.kind},
               {"layer", tensor.layer ? Json(*tensor.layer) : Json()},
               {"dtype", traits(tensor.info.dtype).name},
               {"shape", tensor.info.shape},
               {"weights", tensor.info.elements()},
               {"bytes", tensor.bytes},
               {"nan", stats.nan},
               {"inf", stats.inf},
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
  Json json = {{"codec", error.codec},
               {"bytes", error.bytes},
               {"bits_per_weight", number(bits_per_weight(tensor, error))},
               {"nan", stats.nan},
               {"inf", stats.inf}};
  add_figures(json, stats);
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

// An object without its end, to which a list of tensors is added: as values of the library, those of a model of
// 100,000 tensors would take 400 MB.

template <class F> void write_tensors(const Json& before, std::size_t count, const Sink& out, F&& tensor) {
  std::string text = dump(before);
  text.pop_back();
  out(text + R"(,"tensors":[)");
  for (std::size_t t = 0; t < count; ++t) out((t == 0 ? "" : ",") + dump(tensor(t)));
  out("]}");
}

void write(const Measurement& measurement, const MeasuredCandidate& candidate, const Sink& out) {
  const Groups groups = group(measurement, candidate);
  Json json = {{"name", candidate.name}, {"bytes", candidate.bytes}};
  add_group(json["total"], groups.total);
  Json& kinds = json["kinds"] = Json::array();
  for (const auto& [kind, group] : groups.kinds) add_group(kinds.emplace_back(Json{{"kind", kind}}), group);
  Json& layers = json["layers"] = Json::array();
  for (const auto& [layer, group] : groups.layers) add_group(layers.emplace_back(Json{{"layer", layer}}), group);
  std::vector<std::size_t> worst = worst_first(measurement, candidate);
  worst.resize(std::min(worst.size(), worst_listed));
  json["worst"] = worst;
  json["missing"] = candidate.missing;
  write_tensors(json, candidate.tensors.size(), out, [&](std::size_t t) {
    return candidate.tensors[t] ? describe(measurement.tensors[t], *candidate.tensors[t]) : Json();
  });
}

std::string csv_field(std::string_view field) {
  if (field.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(field);
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? "\"\"" : std::string(1, c);
  return text + '"';
}

// Empty where there is no figure.
std::string csv_number(double value) { return std::isnan(value) ? "" : fmt::format("{}", value); }

// What most people call good at four bits, and what they call broken; exact and better ones stay plain.
constexpr double good_db = 18;
constexpr double poor_db = 10;

class Table {
 public:
  Table(std::string& out, bool colours) : out_(out), colours_(colours) {}

  void heading(std::string_view first, std::size_t width) {
    const std::string line = fmt::format("{:<{}}  {:<8} {:>6}  {:>9} {:>9} {:>9} {:>9} {:>8}", first, width, "codec",
                                         "bits", "rmse", "rel rmse", "max abs", "SQNR dB", "cosine");
    out_ += colours_ ? fmt::format(fmt::emphasis::bold, "{}", line) : line;
    out_ += '\n';
  }

  void row(std::string_view first, std::size_t width, std::string_view codec, double bits, const ErrorStats& stats,
           double largest) {
    const double db = stats.sqnr_db();
    const std::string line =
        fmt::format("{:<{}}  {:<8} {:>6}  {:>9} {:>9} {:>9} {:>9} {:>8}", first, width, codec,
                    std::isnan(bits) ? "-" : fmt::format("{:.2f}", bits), scientific(stats.rmse()),
                    percent(stats.rel_rmse()), scientific(max_abs(stats)), decibels(db), similarity(stats.cosine()));
    const std::string bar = make_bar(stats.rel_rmse(), largest);
    out_ += line;
    if (!bar.empty()) {
      const auto colour = db < poor_db   ? fmt::terminal_color::red
                          : db < good_db ? fmt::terminal_color::yellow
                                         : fmt::terminal_color::green;
      out_ += "  ";
      out_ += colours_ ? fmt::format(fmt::fg(colour), "{}", bar) : bar;
    }
    out_ += '\n';
  }

 private:
  // In eighths of a character.
  static std::string make_bar(double value, double largest) {
    if (!(value > 0) || !(largest > 0)) return {};
    static constexpr const char* eighths[] = {"", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589"};
    const int length = std::max(1, static_cast<int>(std::lround(8 * worst_bar_width * std::min(value / largest, 1.0))));
    std::string bar;
    for (int i = 0; i < length / 8; ++i) bar += "\u2588";
    return bar + eighths[length % 8];
  }

  std::string& out_;
  bool colours_;
};

void append(std::string& out, const Measurement& measurement, const MeasuredCandidate& candidate, std::size_t worst,
            bool colours) {
  const Groups groups = group(measurement, candidate);
  std::vector<std::size_t> order = worst_first(measurement, candidate);
  const std::size_t all = order.size();
  if (worst != 0) order.resize(std::min(order.size(), worst));
  double largest = 0;
  for (const std::size_t t : order)
    if (const double value = candidate.tensors[t]->stats.rel_rmse(); std::isfinite(value))
      largest = std::max(largest, value);
  std::size_t width = 6;
  for (const std::size_t t : order) width = std::max(width, printable(measurement.tensors[t].info.name).size());
  for (const auto& [kind, group] : groups.kinds)
    if (group.stats.square > 0) width = std::max(width, printable(kind).size());

  Table table(out, colours);
  out += fmt::format("{} against {}\n\n", escaped(candidate.name), escaped(measurement.name));
  table.heading(order.size() < all ? fmt::format("the {} worst tensors of {}", order.size(), all) : "tensor", width);
  for (const std::size_t t : order) {
    const MeasuredWeights& tensor = measurement.tensors[t];
    const MeasuredError& error = *candidate.tensors[t];
    table.row(printable(tensor.info.name), width, error.codec, bits_per_weight(tensor, error), error.stats, largest);
  }
  if (groups.kinds.size() > 1) {
    out += '\n';
    table.heading("kind", width);
    std::size_t exact = 0;
    for (const auto& [kind, group] : groups.kinds) {
      if (group.stats.square > 0 || group.stats.nan + group.stats.inf > 0)
        table.row(printable(kind), width, fmt::format("x {}", group.tensors), group.bits(), group.stats, largest);
      else
        ++exact;
    }
    if (exact > 0) out += fmt::format("{} more, without any error\n", exact);
  }
  if (groups.layers.size() > 1) {
    out += '\n';
    table.heading("layer", width);
    for (const auto& [layer, group] : groups.layers)
      table.row(fmt::format("{}", layer), width, fmt::format("x {}", group.tensors), group.bits(), group.stats,
                largest);
  }
  out += '\n';
  table.heading("all", width);
  table.row(fmt::format("{} weights", groups.total.weights), width, fmt::format("x {}", groups.total.tensors),
            groups.total.bits(), groups.total.stats, largest);
  const std::uint64_t nonfinite = groups.total.stats.nan + groups.total.stats.inf;
  out += fmt::format("{} -> {}", size_both(measurement.bytes), size_both(candidate.bytes));
  if (nonfinite > 0) out += fmt::format("; {} NaN, {} infinite", groups.total.stats.nan, groups.total.stats.inf);
  out += '\n';
  for (std::size_t i = 0; i < std::min(candidate.missing.size(), worst_listed); ++i)
    out += fmt::format("not compared: {}\n", printable(candidate.missing[i]));
  if (candidate.missing.size() > worst_listed)
    out += fmt::format("not compared: {} more\n", candidate.missing.size() - worst_listed);
}

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
      "worst_block_rmse,absmax_min,absmax_max,reference_nan,reference_inf\n");
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
                      error.codec, error.bytes, csv_number(bits_per_weight(tensor, error)));
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
      fmt::format_to(std::back_inserter(line), ",{},{}\n", tensor.stats.nan, tensor.stats.inf);
      out(line);
    }
}

std::string to_table(const Measurement& measurement, std::size_t worst, bool colours) {
  std::string out;
  for (const MeasuredCandidate& candidate : measurement.candidates) {
    if (!out.empty()) out += '\n';
    append(out, measurement, candidate, worst, colours);
  }
  return out;
}

}  // namespace nibble::cli
