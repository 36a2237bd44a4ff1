// Measured errors -> choices of every tensor -> the best of each base (hull_path.hpp) -> a recipe that says it. One
// file, because the recipe at the end is checked against the choices, tensor by tensor.

#include "nibble/advise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/text/size_text.hpp"
#include "formats/calibration/calibration.hpp"
#include "formats/models/name_patterns.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/jobs/advise/hull_path.hpp"
#include "quant/jobs/plan/plan.hpp"
#include "quant/stream/stored_weights.hpp"
#include "quant/stream/weighing.hpp"

namespace nibble {
namespace {

constexpr std::size_t max_points = 64;
bool quantizes(const CodecSpec& codec) { return make_codec(codec)->quantizes(); }

// The cast of embeddings of 32 or 64 bits that transformers can load.
CodecSpec embeddings_codec() { return cast_codec(DType::bf16); }

// Whether a planned tensor was measured as planned, and not kept because of values found in it.
bool is_measured_as(const CodecSpec& codec, const MeasuredError& measured) {
  const auto cast_type = make_codec(codec)->cast_type();
  return measured.form == (cast_type ? StoredForm(*cast_type) : StoredForm(codec));
}

bool is_wide(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

// Whether embeddings take 32 bits or more, which a cast halves.
bool has_wide_embeddings(const Plan& plan) {
  return std::any_of(plan.tensors.begin(), plan.tensors.end(), [](const PlannedTensor& tensor) {
    return tensor.role == Role::embedding && is_wide(tensor.info.dtype);
  });
}

// A tensor of the reference under one codec.
struct Way {
  CodecSpec codec;
  Choice choice;
  double square = 0;  // sum of e^2
  bool quantized = false;
};

struct Tensor {
  std::vector<Way> ways{{CodecSpec(), {0, 0}}};  // the first leaves it plain
  DType dtype = DType::u8;                       // of its weights, if it has any
  double reference = 0;                          // sum of w^2
  bool has_output = false;                       // the error of its output was measured
  std::optional<double> sensitivity{};           // if it is known
  std::uint64_t weights = 0;                     // where a codec can change them
};

// The result for one base.
struct Solution {
  std::vector<std::vector<std::size_t>> ways;  // for each tensor, the ways that take part: indices into Tensor::ways
  HullPath path;
  std::vector<std::size_t> picked;  // indices into `ways`
  AdvicePoint point;
};

// The errors of a source tensor, which a plan may cut into several.
struct Pooled {
  bool offered = true;  // the tensor was stored as planned, and no weight became infinite
  CodecSpec codec;
  std::uint64_t bytes = 0;
  std::uint64_t weights = 0;
  ErrorSums sums;
  double output_cost = 0;   // of its matrices, by their outputs where they are known
  bool has_output = false;  // the output of any is known
};

// n * (sum e^2 / sum w^2)
double cost_of(std::uint64_t weights, const ErrorSums& sums) {
  return static_cast<double>(weights) * sums.relative_square();
}

class Advising {
 public:
  Advising(const Reader& reference, std::span<const Candidate> formats, const Measurement& measurement,
           const AdviseOptions& options)
      : in_(reference), formats_(formats), measurement_(measurement), options_(options) {
    const StoredWeights stored(in_, source_schemes());
    tensors_.resize(in_.tensors().size());
    for (std::size_t t = 0; t < stored.size(); ++t) {
      const StoredTensor found = stored[t].stored;
      Tensor& tensor = tensors_[found.parts.front()];
      tensor.dtype = found.info.dtype;
      advice_.weights += found.info.elements();
      tensor.ways.front().choice.bytes = found.info.bytes();
      if (found.info.dtype == DType::f64)
        tensor.ways.front() = {cast_codec(DType::f32), {byte_count(DType::f32, found.info.elements()), 0}};
    }
    if (!options.calibration.empty()) {
      const Calibration statistics(options.calibration, options.max_memory);
      for (std::size_t t = 0; t < tensors_.size(); ++t)
        tensors_[t].sensitivity = statistics.sensitivity(in_.tensors().name(t));
    }
    if (measurement.candidates.size() != formats.size()) fail();
    for (std::size_t c = 0; c < formats.size(); ++c) read_errors(c);
    scale_sensitivities();
  }

  Advice run() && {
    const Solution best = solve();
    advice_.chosen = best.point;
    for (std::size_t t = 0; t < tensors_.size(); ++t) codecs_.push_back(way(best, best.picked, t).codec);
    advice_.curve = curve(best);
    write_recipe();
    for (const PlannedTensor& planned : formats_.front().plan->tensors)
      if (advice_.tensors.empty() || advice_.tensors.back().source != planned.source)
        advice_.tensors.push_back({planned.source, codecs_[planned.source]});
    warn_of_unknown();
    return std::move(advice_);
  }

 private:
  [[noreturn]] static void fail() {
    throw Error(Errc::usage, "the measurement is not of the formats that advice is asked for");
  }

  // The ways of candidate `c`. Its tensors come in the order in which its plan has them.
  void read_errors(std::size_t c) {
    if (!formats_[c].plan) fail();
    const Plan& plan = *formats_[c].plan;
    const auto& errors = measurement_.candidates[c].tensors;
    std::size_t row = 0;
    for (std::size_t p = 0; p < plan.tensors.size();) {
      const std::size_t source = plan.tensors[p].source;
      Pooled pooled;
      for (; p < plan.tensors.size() && plan.tensors[p].source == source; ++p) {
        const PlannedTensor planned = plan.tensors[p];
        if (!is_weight_type(planned.info.dtype)) {
          pooled.offered = false;
          continue;
        }
        while (row < errors.size() && !errors[row]) ++row;
        if (row >= std::min(errors.size(), measurement_.tensors.size()) ||
            measurement_.tensors[row].info.name != planned.info.name)
          fail();
        add(pooled, planned, *errors[row], measurement_.tensors[row].stats);
        ++row;
      }
      offer(source, pooled);
    }
  }

  void add(Pooled& pooled, const PlannedTensor& planned, const MeasuredError& error, const WeightStats& stats) const {
    pooled.codec = planned.codec;
    pooled.bytes += planned.stored_bytes;
    pooled.weights += planned.info.elements();
    pooled.sums.add(error.stats);
    const bool has_output = error.output.count > 0;
    pooled.output_cost += cost_of(planned.info.elements(), has_output ? error.output : error.stats);
    pooled.has_output = pooled.has_output || has_output;
    if (!is_measured_as(planned.codec, error) || error.stats.nan != stats.nan || error.stats.inf != stats.inf)
      pooled.offered = false;
    // Within what transformers loads, modules that the scheme's loader replaces are quantized and embeddings cast.
    if (!options_.allow_nibble_only && planned.role != Role::embedding &&
        !(planned.quantized && scheme_of(*make_codec(planned.codec)).replaces(planned.role)))
      pooled.offered = false;
  }

  void offer(std::size_t source, const Pooled& pooled) {
    Tensor& tensor = tensors_[source];
    if (tensor.reference == 0) tensor.reference = pooled.sums.reference;
    if (!pooled.offered || pooled.codec.keeps()) return;
    double cost = pooled.has_output ? pooled.output_cost : cost_of(pooled.weights, pooled.sums);
    // scale_sensitivities() makes it the cost.
    if (tensor.sensitivity) cost = pooled.sums.relative_square();
    tensor.weights = pooled.weights;
    tensor.has_output = tensor.has_output || pooled.has_output;
    if (!std::isfinite(cost)) return;
    const bool is_known =
        std::any_of(tensor.ways.begin(), tensor.ways.end(), [&](const Way& way) { return way.codec == pooled.codec; });
    if (!is_known)
      tensor.ways.push_back({pooled.codec, {pooled.bytes, cost}, pooled.sums.square, quantizes(pooled.codec)});
  }

  // Whether the errors of outputs were measured.
  [[nodiscard]] bool has_outputs() const { return std::ranges::any_of(tensors_, &Tensor::has_output); }

  // If all of them are 0, no error of these tensors costs anything.
  void scale_sensitivities() {
    double weights = 0, sensitivities = 0;
    for (const Tensor& tensor : tensors_) {
      if (!tensor.sensitivity || !is_quantizable(tensor)) continue;
      weights += static_cast<double>(tensor.weights);
      sensitivities += *tensor.sensitivity;
      advice_.by_sensitivity = true;
    }
    const double scale = sensitivities > 0 ? weights / sensitivities : 0;
    for (Tensor& tensor : tensors_)
      if (tensor.sensitivity)
        for (Way& each : tensor.ways) each.choice.cost *= scale * *tensor.sensitivity;
  }

  static bool is_quantizable(const Tensor& tensor) { return std::ranges::any_of(tensor.ways, &Way::quantized); }

  // Of tensors that a choice quantizes. A cast of embeddings has no output.
  void warn_of_unknown() {
    const bool by_sensitivity = advice_.by_sensitivity;
    std::size_t known = 0, unknown = 0;
    std::string_view first;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (!is_quantizable(tensors_[t])) continue;
      if (by_sensitivity ? tensors_[t].sensitivity.has_value() : tensors_[t].has_output)
        ++known;
      else if (unknown++ == 0)
        first = in_.tensors().name(t);
    }
    advice_.by_outputs = !by_sensitivity && known > 0;
    if (unknown > 0 && (known > 0 || !options_.calibration.empty()))
      advice_.warnings.push_back(fmt::format("{} of {} tensors have no {}: '{}'{}", unknown, known + unknown,
                                             by_sensitivity ? "sensitivity, so the numbers of their weights are taken"
                                                            : "statistics, so the error of their weights is taken",
                                             printable(first), unknown > 1 ? ", ..." : ""));
  }

  [[nodiscard]] const Way& way(const Solution& solution, const std::vector<std::size_t>& picked, std::size_t t) const {
    return tensors_[t].ways[solution.ways[t][picked[t]]];
  }

  // Added up in the order of the tensors, so that equal choices give equal figures.
  [[nodiscard]] AdvicePoint point(const Solution& solution, const std::vector<std::size_t>& picked) const {
    AdvicePoint point;
    struct Energy {
      std::size_t tensors = 0;
      double square = 0, reference = 0;
    };
    ByOutcome<Energy> energies;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const Way& picked_way = way(solution, picked, t);
      point.bytes += picked_way.choice.bytes;
      point.cost += picked_way.choice.cost;
      Energy& energy = energies[outcome_of(picked_way.quantized, picked[t] == 0)];
      ++energy.tensors;
      energy.square += picked_way.square;
      energy.reference += tensors_[t].reference;
    }
    const Energy& headline = energies.headline();
    point.sqnr_db = headline.square == 0 ? std::numeric_limits<double>::infinity()
                                         : 10 * std::log10(headline.reference / headline.square);
    return point;
  }

  // With all codecs, or with those that do not quantize and `base`.
  Solution solve(const std::optional<CodecSpec>& base) {
    Solution solution;
    std::vector<std::vector<Choice>> items;
    for (const Tensor& tensor : tensors_) {
      std::vector<std::size_t>& ways = solution.ways.emplace_back();
      std::vector<Choice>& choices = items.emplace_back();
      for (std::size_t w = 0; w < tensor.ways.size(); ++w) {
        if (w > 0 && base && tensor.ways[w].codec != *base && quantizes(tensor.ways[w].codec)) continue;
        ways.push_back(w);
        choices.push_back(tensor.ways[w].choice);
      }
    }
    solution.path = hull_path(items);
    if (solution.path.min_bytes > options_.max_bytes) return solution;
    solution.picked = walk(solution.path, options_.max_bytes);
    solution.point = point(solution, solution.picked);
    return solution;
  }

  // The best over all bases.
  Solution solve() {
    std::vector<std::optional<CodecSpec>> bases;
    for (const Candidate& format : formats_)
      if (quantizes(format.plan->recipe.to)) bases.emplace_back(format.plan->recipe.to);
    if (options_.allow_nibble_only) bases = {std::nullopt};
    std::optional<Solution> best;
    std::uint64_t min_bytes = std::numeric_limits<std::uint64_t>::max();
    for (const auto& base : bases) {
      Solution solution = solve(base);
      min_bytes = std::min(min_bytes, solution.path.min_bytes);
      if (solution.path.min_bytes > options_.max_bytes) continue;
      if (best && solution.point.cost >= best->point.cost) continue;
      best = std::move(solution);
      base_ = base;
    }
    if (bases.empty()) fail();
    const auto [needed, allowed] = told_apart(min_bytes, options_.max_bytes, size_both);
    if (!best)
      throw Error(Errc::usage, escaped(in_.path().string()),
                  fmt::format("cannot become smaller than {}, {:.3f} bits per weight; {} is allowed", needed,
                              advice_.bits_per_weight(min_bytes), allowed),
                  options_.allow_nibble_only ? Remedy::Kind::none : Remedy::Kind::nibble_only_formats);
    return *std::move(best);
  }

  // Points of the path, at about equal distances in bytes.
  [[nodiscard]] std::vector<AdvicePoint> curve(const Solution& solution) const {
    const HullPath& path = solution.path;
    std::uint64_t all = 0;
    for (const HullStep& step : path.steps) all += step.bytes;
    std::vector<AdvicePoint> points;
    std::vector<std::size_t> picked = path.smallest;
    points.push_back(point(solution, picked));
    std::uint64_t bytes = 0;
    for (std::size_t s = 0; s < path.steps.size(); ++s) {
      const std::uint64_t before = bytes;
      bytes += path.steps[s].bytes;
      picked[path.steps[s].item] = path.steps[s].to;
      const auto slot = [&](std::uint64_t at) {
        return static_cast<std::size_t>(static_cast<double>(at) / static_cast<double>(all) * (max_points - 1));
      };
      // The first step that reaches the next of 63 equal parts; with few steps, every one.
      if (path.steps.size() < max_points || slot(bytes) > slot(before) || s + 1 == path.steps.size())
        points.push_back(point(solution, picked));
    }
    return points;
  }

  // A cast to the type that a tensor has leaves it as it is, and without elements no codec changes anything.
  [[nodiscard]] bool is_same(const PlannedTensor& planned) const {
    if (planned.info.elements() == 0) return true;
    const CodecSpec& codec = codecs_[planned.source];
    return planned.codec == codec ||
           (codec.keeps() && make_codec(planned.codec)->cast_type() == std::optional(planned.info.dtype));
  }

  // A cast declares the type of the whole model, and the loader then loads all plain tensors in that type.
  [[nodiscard]] bool can_be_base(const CodecSpec& to) const {
    const auto cast = make_codec(to)->cast_type();
    if (!cast) return true;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const DType dtype = tensors_[t].dtype;
      const CodecSpec& codec = codecs_[t];
      if (is_weight_type(dtype) && codec != to && !quantizes(codec) && !(codec.keeps() && dtype == *cast)) return false;
    }
    return true;
  }

  // Whether Recipe::embeddings says what becomes of every embedding.
  [[nodiscard]] bool embeddings_become_bf16() const {
    const Plan& plan = *formats_.front().plan;
    bool any = false;
    for (const PlannedTensor& planned : plan.tensors) {
      if (planned.role != Role::embedding || planned.info.elements() == 0) continue;
      if (codecs_[planned.source] != embeddings_codec()) return false;
      any = true;
    }
    return any;
  }

  // The differences from the plan for `to` alone, as rules and skips.
  [[nodiscard]] Recipe recipe_for(const CodecSpec& to) const {
    Recipe recipe;
    recipe.to = to;
    recipe.allow_nibble_only = true;  // until we know whether it is needed
    if (quantizes(to) && embeddings_become_bf16()) recipe.embeddings = embeddings_codec();
    std::map<CodecSpec, std::vector<bool>> differing;
    for (const PlannedTensor& planned : make_plan(in_, recipe).tensors) {
      if (is_same(planned)) continue;
      std::vector<bool>& tensors = differing[codecs_[planned.source]];
      tensors.resize(tensors_.size());
      tensors[planned.source] = true;
    }
    for (const auto& [codec, tensors] : differing)
      for (std::string& pattern : name_patterns(in_.tensors(), tensors)) {
        if (codec.keeps())
          recipe.skips.push_back(std::move(pattern));
        else
          recipe.rules.push_back({std::move(pattern), codec});
      }
    return recipe;
  }

  void write_recipe() {
    if (base_) {
      advice_.recipe = recipe_for(*base_);
    } else {  // the one that takes the fewest words
      std::optional<Recipe> best;
      for (const Candidate& format : formats_) {
        if (!can_be_base(format.plan->recipe.to)) continue;
        Recipe recipe = recipe_for(format.plan->recipe.to);
        if (best && recipe.rules.size() + recipe.skips.size() >= best->rules.size() + best->skips.size()) continue;
        best = std::move(recipe);
      }
      if (!best) fail();
      advice_.recipe = *std::move(best);
    }
    const Plan plan = make_plan(in_, advice_.recipe);
    // A conversion refuses statistics that say nothing of what it searches.
    bool needs_statistics = false;
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      needs_statistics |= searches_absmax(codecs_[t]) && (tensors_[t].has_output || !has_outputs());
    if (needs_statistics)
      for (const Candidate& format : formats_)
        if (!format.plan->recipe.calibration.empty()) advice_.recipe.calibration = format.plan->recipe.calibration;
    advice_.recipe.allow_nibble_only = plan.nibble_only;
    bool same = plan.stored_bytes() == advice_.chosen.bytes && (options_.allow_nibble_only || !plan.nibble_only);
    for (const PlannedTensor& planned : plan.tensors) {
      same = same && is_same(planned);
      codecs_[planned.source] = planned.codec;
    }
    if (!same)
      throw Error(Errc::internal,
                  fmt::format("'{}': the advice cannot be expressed as rules", printable(in_.path().string())));
  }

  const Reader& in_;
  std::span<const Candidate> formats_;
  const Measurement& measurement_;
  const AdviseOptions& options_;
  std::vector<Tensor> tensors_;    // by index into Reader::tensors(), of the first part
  std::vector<CodecSpec> codecs_;  // of tensors_
  Advice advice_;
  std::optional<CodecSpec> base_;  // of the best solution, where each has one
};

}  // namespace

double Advice::bits_per_weight(std::uint64_t bytes) const {
  return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
}

std::vector<Candidate> advice_formats(const Reader& reference, bool allow_nibble_only, std::span<const CodecSpec> among,
                                      const std::filesystem::path& calibration) {
  const StoredWeights stored(reference, source_schemes());
  std::vector<Candidate> formats;
  const auto add = [&](const CodecSpec& codec, bool everywhere) {
    Recipe recipe;
    recipe.to = codec;
    recipe.on_overflow = OnOverflow::keep;  // infinities are found in the figures
    // When all codecs are offered, leave out those with which transformers could not load this model.
    recipe.allow_nibble_only = allow_nibble_only || among.empty();
    if (everywhere) recipe.rules.push_back({".*", codec});
    Plan plan = make_plan(stored, recipe);
    if (plan.nibble_only && !allow_nibble_only) return;
    if (!allow_nibble_only && has_wide_embeddings(plan)) {
      recipe.embeddings = embeddings_codec();
      plan = make_plan(stored, recipe);
    }
    weigh_searches(plan, calibration);
    formats.push_back({codec.text(), nullptr, std::move(plan)});
  };
  std::vector<CodecSpec> codecs(among.begin(), among.end());
  if (codecs.empty()) codecs.assign(codec_names().begin(), codec_names().end());
  const auto any_tensor = [&](const auto& holds) {
    for (std::size_t t = 0; t < stored.size(); ++t)
      if (holds(stored[t].stored.info)) return true;
    return false;
  };
  const bool any_wide = any_tensor([](const TensorInfo& tensor) { return is_wide(tensor.dtype); });
  for (const CodecSpec& codec : codecs) {
    const auto made = make_codec(codec);
    if (!made->quantizes()) {
      const auto cast = made->cast_type();
      const bool narrows = cast && any_wide && traits(*cast).bits < traits(DType::f32).bits;
      if (allow_nibble_only && narrows) add(codec, false);
      continue;
    }
    // A rule that applies to nothing would be an error.
    const auto takes = [&](const TensorInfo& tensor) { return tensor.shape.size() >= 2 && made->accepts(tensor); };
    add(codec, allow_nibble_only && any_tensor(takes));
  }
  if (!formats.empty()) return formats;
  const auto fail = [&](const std::string& fact, Remedy remedy = {}) {
    throw Error(Errc::usage, escaped(reference.path().string()), fmt::format("{}: nothing to choose", fact), remedy);
  };
  if (std::ranges::any_of(codecs, quantizes))
    fail("transformers could load it in none of the formats", Remedy{Remedy::Kind::nibble_only_formats});
  std::vector<std::string> names(codecs.size());
  std::ranges::transform(codecs, names.begin(), &CodecSpec::name);
  // F64 becomes F32 in any case, so a cast to F32 is no choice either.
  const bool any_f64 = any_tensor([](const TensorInfo& tensor) { return tensor.dtype == DType::f64; });
  fail(fmt::format("no tensor is wider than {}{}", fmt::join(names, " or "), any_f64 ? ", except for F64" : ""));
  return formats;
}

Advice advise(const Reader& reference, std::span<const Candidate> formats, const Measurement& measurement,
              const AdviseOptions& options) {
  return Advising(reference, formats, measurement, options).run();
}

}  // namespace nibble
