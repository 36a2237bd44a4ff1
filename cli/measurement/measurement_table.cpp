// A measurement for people: what to think of it, then the figures, in lines of 80 columns.

#include <fmt/color.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/measurement/judgement.hpp"
#include "cli/measurement/measurement.hpp"
#include "cli/measurement/measurement_groups.hpp"
#include "cli/measurement/verdict.hpp"
#include "cli/terminal/figures.hpp"
#include "cli/terminal/sizes.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

constexpr std::size_t line_width = 80;
// Side by side; more follow in tables of their own.
constexpr std::size_t tests_in_table = 5, tests_in_table_of_outputs = 2;
constexpr std::size_t missing_listed = 10;
constexpr std::size_t groups_listed = 128;  // large models have about as many layers; of more, the worst are shown

// The end of a name distinguishes it best, apart from ".weight", which nearly all have. Dots stand for what is left
// out.
std::string shortened(std::string name, std::size_t width) {
  constexpr std::string_view suffix = "weight";
  if (name.size() > width && name.ends_with(".weight")) name.replace(name.size() - suffix.size(), suffix.size(), "..");
  if (name.size() <= width) return name;
  std::size_t from = name.size() - width + 3;
  while (from < name.size() && (static_cast<unsigned char>(name[from]) & 0xC0U) == 0x80) ++from;  // whole UTF-8
  return "..." + name.substr(from);
}

std::string test_label(std::size_t c) { return fmt::format("#{}", c + 1); }

// Breaks at spaces and indents all lines but the first. A word that is longer than a line stays whole.
std::string wrapped(std::string_view text, const std::string& first, const std::string& rest) {
  std::string out = first, line = first;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = std::min(text.find(' ', begin), text.size());
    if (text.substr(end).starts_with(" dB")) end = std::min(text.find(' ', end + 1), text.size());  // with its number
    const std::string word(text.substr(begin, end - begin));
    const bool is_first = begin == 0;
    begin = end + 1;
    if (!is_first && line.size() + 1 + word.size() > line_width) {
      line = rest;
      line += word;
      out += '\n';
      out += line;
    } else {
      out += (is_first ? "" : " ") + word;
      line += (is_first ? "" : " ") + word;
    }
  }
  return out + '\n';
}

// Figures cover only pairs of finite numbers. A broken tensor is not exact, even if all other weights are equal.
std::string ratio_of(const ErrorStats& stats, Judgement judgement) {
  return judgement == Judgement::broken && stats.square == 0 ? "-" : decibels(stats.sqnr_db());
}
std::string ratio_of(const OutputErrors& output, Judgement judgement) {
  return judgement == Judgement::broken && output.cost == 0 ? "-" : decibels(output.sqnr_db());
}

fmt::terminal_color colour_of(Judgement judgement) {
  switch (judgement) {
    case Judgement::broken:
      return fmt::terminal_color::red;
    case Judgement::worse:
      return fmt::terminal_color::yellow;
    default:
      return fmt::terminal_color::green;
  }
}

// What one row says of one test.
struct Cell {
  std::string codec;
  double bits = 0;
  const ErrorStats* stats = nullptr;  // null: the test lacks the tensor
  Judgement judgement = Judgement::unknown;
  OutputErrors output{};
};

struct Row {
  std::string name;
  std::vector<Cell> cells;  // a test each
};

class Table {
 public:
  Table(const Measurement& measurement, std::span<const MeasuredCandidate> candidates, std::size_t first, bool colours)
      : measurement_(measurement),
        candidates_(candidates),
        first_(first),
        labels_(measurement.candidates.size() > 1),
        colours_(colours),
        has_output_(measurement.has_statistics) {
    for (const MeasuredCandidate& candidate : candidates) groups_.push_back(make_groups(measurement, candidate));
    if (candidates.size() > 1) return;  // no column for codecs
    for (const auto& error : candidates.front().tensors)
      if (error) codec_width_ = std::max(codec_width_, error->form.text().size());
  }

  std::string text(std::size_t worst) && {
    add_worst(worst);
    add_groups(worst, "kind", &Groups::kinds, [](const std::string& kind) { return printable(kind); });
    add_groups(worst, "layer", &Groups::layers, [](std::uint64_t layer) { return fmt::format("{}", layer); });
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::string label(std::size_t c) const { return labels_ ? test_label(first_ + c) + " " : ""; }

  [[nodiscard]] std::size_t name_width() const {
    const std::size_t tests = candidates_.size();
    if (tests == 1) return 46 - (has_output_ ? 1 : 0) - std::min(codec_width_, max_codec_width);
    return tests == 2 ? 42 - (has_output_ ? 2 : 0) : line_width - 9 * tests;
  }

  void heading(const std::string& first, std::string_view second) {
    std::string line = fmt::format("{:<{}}", first, name_width());
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      if (candidates_.size() == 1)
        line += fmt::format("  {:<{}} {:>5}{} {:>8} {:>7}", second, codec_width_, "bits",
                            has_output_ ? "" : fmt::format(" {:>8}", "rel rmse"), "max abs",
                            (labels_ ? label(c) : "SQNR ") + "dB");
      else if (candidates_.size() == 2)
        line += fmt::format("  {:>8}{}", label(c) + "dB", has_output_ ? "" : fmt::format(" {:>8}", "rel rmse"));
      else
        line += fmt::format("  {:>7}", label(c) + "dB");
      if (has_output_) line += fmt::format(" {:>9}", "output dB");
    }
    out_ += '\n';
    out_ += colours_ ? fmt::format(fmt::emphasis::bold, "{}", line) : line;
    out_ += '\n';
  }

  void add(const Row& row) {
    std::string line = fmt::format("{:<{}}", shortened(row.name, name_width()), name_width());
    for (const Cell& cell : row.cells) {
      const std::string db = cell.stats == nullptr ? "-" : ratio_of(*cell.stats, cell.judgement);
      // The output's figure takes its room: it says what the SQNR says.
      const std::string relative =
          has_output_ ? "" : fmt::format(" {:>8}", cell.stats == nullptr ? "-" : percent(cell.stats->rel_rmse()));
      const auto painted = [&](std::size_t width) {
        const std::string field = fmt::format("{:>{}}", db, width);
        return colours_ && cell.stats != nullptr ? fmt::format(fmt::fg(colour_of(cell.judgement)), "{}", field) : field;
      };
      if (row.cells.size() == 1)
        line += fmt::format("  {:<{}} {:>5}{} {:>8} ", cell.codec, codec_width_,
                            std::isnan(cell.bits) ? "-" : fmt::format("{:.2f}", cell.bits), relative,
                            cell.stats == nullptr ? "-" : scientific(max_abs(*cell.stats))) +
                painted(7);
      else if (row.cells.size() == 2)
        line += "  " + painted(8) + relative;
      else
        line += "  " + painted(7);
      if (has_output_) line += fmt::format(" {:>9}", ratio_of(cell.output, cell.judgement));
    }
    out_ += line + '\n';
  }

  [[nodiscard]] bool any_error(std::size_t t) const {
    return std::any_of(candidates_.begin(), candidates_.end(), [&](const MeasuredCandidate& candidate) {
      return candidate.tensors[t] && has_error(measurement_.tensors[t], *candidate.tensors[t]);
    });
  }

  void add_worst(std::size_t worst) {
    std::vector<std::size_t> order = worst_first(measurement_, candidates_);
    const std::size_t all = order.size();
    if (worst != 0) {
      std::erase_if(order, [&](std::size_t t) { return !any_error(t); });
      order.resize(std::min(order.size(), worst));
      if (order.empty()) return;
    }
    heading(order.size() == all ? "tensor"
            : order.size() == 1 ? fmt::format("the worst tensor of {}", all)
                                : fmt::format("the {} worst tensors of {}", order.size(), all),
            "codec");
    for (const std::size_t t : order) {
      const MeasuredWeights& tensor = measurement_.tensors[t];
      Row row{printable(tensor.info.name), {}};
      for (const MeasuredCandidate& candidate : candidates_) {
        const auto& error = candidate.tensors[t];
        row.cells.push_back(error ? Cell{error->form.text(), bits_of(tensor, *error), &error->stats,
                                         judge(tensor, *error), output_of(tensor, *error)}
                                  : Cell{"-", std::nan(""), nullptr, Judgement::unknown});
      }
      add(row);
    }
  }

  // The converted groups that have an error, in their order; if there are many, only the `worst` of them.
  template <class Key>
  [[nodiscard]] std::vector<Key> worst_groups(std::size_t worst, const std::set<Key>& keys,
                                              std::map<Key, SplitGroup> Groups::*groups) const {
    if (worst == 0) return {keys.begin(), keys.end()};
    std::vector<std::pair<double, Key>> found;
    for (const Key& key : keys) {
      double largest = -2;
      for (const Groups& of : groups_)
        if (const auto group = (of.*groups).find(key);
            group != (of.*groups).end() && !group->second.converted.is_exact())
          largest = std::max(largest, badness(group->second.converted.stats, group->second.converted.judgement));
      if (largest > -2) found.emplace_back(-largest, key);
    }
    if (found.size() > groups_listed) {
      std::sort(found.begin(), found.end());
      found.resize(std::min(found.size(), worst));
    }
    std::vector<Key> shown;
    shown.reserve(found.size());
    for (const auto& [unused, key] : found) shown.push_back(key);
    std::sort(shown.begin(), shown.end());
    return shown;
  }

  // A group is judged by the worst of all its tensors.
  template <class Key, class Name>
  void add_groups(std::size_t worst, const std::string& what, std::map<Key, SplitGroup> Groups::*groups, Name&& name) {
    std::set<Key> converted, all;
    for (const Groups& of : groups_)
      for (const auto& [key, group] : of.*groups) {
        all.insert(key);
        if (group.converted.tensors > 0) converted.insert(key);
      }
    if (all.size() < 2 || converted.empty()) return;
    const std::vector<Key> shown = worst_groups(worst, converted, groups);
    if (shown.empty()) return;
    heading(what, "tensors");
    for (const Key& key : shown) {
      Row row{name(key), {}};
      for (std::size_t c = 0; c < candidates_.size(); ++c) {
        const auto found = (groups_[c].*groups).find(key);
        if (found == (groups_[c].*groups).end()) {
          row.cells.push_back({"-", std::nan(""), nullptr, Judgement::unknown});
          continue;
        }
        const Group& group = found->second.headline();
        row.cells.push_back({fmt::format("x {}", group.tensors), group.bits(), &group.stats,
                             std::max(group.judgement, found->second.converted.judgement), group.output});
      }
      add(row);
    }
    const auto add_rest = [&](std::size_t rest, std::string_view fact) {
      if (rest > 0) out_ += fmt::format("{} more {}{} {}\n", rest, what, rest == 1 ? "" : "s", fact);
    };
    add_rest(converted.size() - shown.size(), "with less error or none");
    add_rest(all.size() - converted.size(), "kept as in the reference");
  }

  const Measurement& measurement_;
  std::span<const MeasuredCandidate> candidates_;
  std::size_t first_;  // of them, among those of the measurement
  bool labels_, colours_, has_output_;
  static constexpr std::size_t min_codec_width = 8;
  static constexpr std::size_t max_codec_width = 19;  // longer names make longer lines: "nf4:double-quant=no"
  std::size_t codec_width_ = min_codec_width;
  std::vector<Groups> groups_;
  std::string out_;
};

void add_verdicts(std::string& out, const Measurement& measurement) {
  const bool labels = measurement.candidates.size() > 1;
  for (std::size_t c = 0; c < measurement.candidates.size(); ++c) {
    const MeasuredCandidate& candidate = measurement.candidates[c];
    if (labels) {
      const std::string label = test_label(c) + ": ";
      out += label + shortened(escaped(candidate.name), line_width - label.size()) + '\n';
    }
    const std::string indent = labels ? "   " : "";
    const std::vector<Verdict> found = verdicts(measurement, candidate);
    if (found.empty()) out += indent + "nothing was converted: every tensor is as in the reference\n";
    for (const Verdict& verdict : found) out += wrapped(verdict.text(measurement), indent, indent + "  ");
  }
}

// The tensors that the headline figures leave out.
std::string others_text(const Groups& groups) {
  if (groups.all.headline().tensors == groups.total.tensors) return {};
  std::string text;
  for (const Outcome outcome : {Outcome::quantized, Outcome::cast, Outcome::kept})
    if (const std::uint64_t tensors = groups.all[outcome].tensors; tensors > 0)
      text += text.empty() ? fmt::format("{} {}", counted(tensors, "tensor"), to_string(outcome))
                           : fmt::format(", {} {}", tensors, to_string(outcome));
  return fmt::format("{}; SQNR of all {}: {}", text, groups.total.tensors, with_unit(groups.total.stats.sqnr_db()));
}

// The errors of the headline tensors' outputs, and how many of these tensors have no statistics.
std::string outputs_text(const Measurement& measurement, const MeasuredCandidate& candidate, const Groups& groups) {
  const Group& headline = groups.all.headline();
  const OutputErrors& output = headline.output;
  const std::string_view outcome = to_string(groups.all.headlined());
  std::string text;
  if (output.tensors > 0)
    text = fmt::format("outputs of {} {} tensor{}: SQNR {}, rel rmse {}", output.tensors, outcome,
                       output.tensors == 1 ? "" : "s", with_unit(output.sqnr_db()), percent(output.rel_rmse()));
  const std::uint64_t unknown = headline.tensors - output.tensors;
  if (unknown == 0) return text;
  std::string_view first;
  for (std::size_t t = 0; t < candidate.tensors.size() && first.empty(); ++t) {
    const auto& error = candidate.tensors[t];
    if (error && error->output.count == 0 && outcome_of(measurement.tensors[t], *error) == groups.all.headlined())
      first = measurement.tensors[t].info.name;
  }
  return fmt::format("{}{}{} of {} {} tensors have no statistics: '{}'{}", text, text.empty() ? "" : "; ", unknown,
                     headline.tensors, outcome, printable(first), unknown > 1 ? ", ..." : "");
}

void add_totals(std::string& out, const Measurement& measurement, bool colours) {
  const std::string line = fmt::format("{:<22} {:>15} {:>6} {:>8} {:>8} {:>7} {:>8}", "test", "figures of", "bits",
                                       "rmse", "rel rmse", "SQNR dB", "cosine");
  out += '\n' + (colours ? fmt::format(fmt::emphasis::bold, "{}", line) : line) + '\n';
  const bool labels = measurement.candidates.size() > 1;
  std::string apart;
  for (std::size_t c = 0; c < measurement.candidates.size(); ++c) {
    const MeasuredCandidate& candidate = measurement.candidates[c];
    const Groups groups = make_groups(measurement, candidate);
    const Group& headline = groups.all.headline();
    const ErrorStats& stats = headline.stats;
    const double bits = groups.total.bits();
    const std::string label = labels ? test_label(c) + ": " : "";
    out += fmt::format("{:<22} {:>15} {:>6} {:>8} {:>8} {:>7} {:>8}\n",
                       label + shortened(escaped(candidate.name), 22 - label.size()),
                       fmt::format("{} {}", headline.tensors, to_string(groups.all.headlined())),
                       std::isnan(bits) ? "-" : fmt::format("{:.2f}", bits), scientific(stats.rmse()),
                       percent(stats.rel_rmse()), ratio_of(stats, headline.judgement), similarity(stats.cosine()));
    if (const std::string others = others_text(groups); !others.empty()) apart += label + others + '\n';
    if (measurement.has_statistics)
      if (const std::string outputs = outputs_text(measurement, candidate, groups); !outputs.empty())
        apart += wrapped(outputs, label, "  ");
  }
  out += apart;
  for (std::size_t c = 0; c < measurement.candidates.size(); ++c) {
    const MeasuredCandidate& candidate = measurement.candidates[c];
    std::uint64_t nan = 0, inf = 0;
    for (const auto& error : candidate.tensors) {
      nan += error ? error->stats.nan : 0;
      inf += error ? error->stats.inf : 0;
    }
    out += fmt::format("{}{} -> {}{}\n", labels ? test_label(c) + ": " : "", size_both(measurement.bytes),
                       size_both(candidate.bytes), nan + inf > 0 ? fmt::format("; {} NaN, {} infinite", nan, inf) : "");
  }
}

void add_missing(std::string& out, const Measurement& measurement) {
  for (std::size_t c = 0; c < measurement.candidates.size(); ++c) {
    const std::vector<std::string>& missing = measurement.candidates[c].missing;
    const std::string label = measurement.candidates.size() > 1 ? test_label(c) + ": " : "";
    for (std::size_t i = 0; i < std::min(missing.size(), missing_listed); ++i)
      out += fmt::format("{}not compared: {}\n", label, printable(missing[i]));
    if (missing.size() > missing_listed)
      out += fmt::format("{}not compared: {} more\n", label, missing.size() - missing_listed);
  }
}

}  // namespace

std::string to_table(const Measurement& measurement, std::size_t worst, bool colours) {
  std::string out;
  add_verdicts(out, measurement);
  add_totals(out, measurement, colours);
  const std::span candidates(measurement.candidates);
  const std::size_t in_table = measurement.has_statistics ? tests_in_table_of_outputs : tests_in_table;
  for (std::size_t first = 0; first < candidates.size(); first += in_table)
    out += Table(measurement, candidates.subspan(first, std::min(in_table, candidates.size() - first)), first, colours)
               .text(worst);
  add_missing(out, measurement);
  return out;
}

}  // namespace nibble::cli
