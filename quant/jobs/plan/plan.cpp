// Recipe x headers -> Plan: the codec of every tensor, and why. No data is read.
//
// The set of quantized modules has to be the one that transformers computes again when it loads the result, so
// its own rule for the architecture comes first (formats/models/architectures.jsonl); the user's rules change it, and
// the scheme writes whatever then differs from the default into config.json. One file, because each rule is read
// against those that it overrides.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "formats/checkpoint.hpp"
#include "formats/models/architecture_line.hpp"
#include "formats/models/architectures.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/jobs/plan/part_names.hpp"
#include "quant/jobs/plan/plan.hpp"
#include "quant/jobs/plan/user_pattern.hpp"
#include "quant/jobs/plan/views.hpp"
#include "quant/schemes/scheme.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/memory_model.hpp"

namespace nibble {
namespace {

constexpr double low_share = 0.8;  // a plan that quantizes less than this says so

std::string short_list(const TensorInfo& tensor) {
  return fmt::format("{} {}", traits(tensor.dtype).name, to_string(tensor.shape));
}

constexpr double min_share = 0.001;  // 0.1 %. Smaller shares print as "less than 0.1 %".

// Never prints 0 for a share above 0.
std::string percent_text(double share) {
  return share < min_share ? "less than 0.1 %" : fmt::format("{:.1f} %", 100 * share);
}

// A pattern of Recipe::rules or Recipe::skips, and whether it has met a tensor that it can decide about: one that never
// does is an error.
class RulePattern {
 public:
  RulePattern(std::string_view label, const std::string& pattern) : pattern_(label, pattern) {}

  bool matches(const std::string& name) {
    const bool hit = pattern_.matches(name);
    used_ |= hit;
    return hit;
  }

  void apply() noexcept { applied_ = true; }
  void meet_weight_used_outside() noexcept { used_outside_ = true; }

  // `codec` is the rule's, and "keep" for a skip, which can decide about every tensor.
  void check(const TensorList& tensors, const CodecSpec& codec) const {
    if (!used_)
      pattern_.fail_unmatched([&](const auto& visit) {
        for (std::size_t i = 0; i < tensors.size(); ++i) visit(tensors.name(i));
      });
    if (applied_) return;
    const std::string fact =
        used_outside_
            ? fmt::format("weights that the model uses outside their layers, where {} codes cannot replace them",
                          codec.name())
            : fmt::format("tensors that {} cannot store", codec.name());
    throw Error(Errc::usage, fmt::format("{} '{}' matches only {}", pattern_.label(), pattern_.text(), fact));
  }

  [[nodiscard]] std::string label() const { return fmt::format("{} {}", pattern_.label(), pattern_.text()); }

 private:
  UserPattern pattern_;
  bool used_ = false;
  bool applied_ = false;
  bool used_outside_ = false;
};

struct Choice {
  CodecSpec codec;
  std::string reason;
  DecidedBy decided_by = DecidedBy::model;
};

class Planner {
 public:
  Planner(const StoredWeights& in, const Recipe& recipe) : stored_(in), in_(in.reader()), codings_(recipe) {
    plan_.recipe = recipe;
    for (const Rule& rule : recipe.rules) rules_.emplace_back("tensor pattern", rule.pattern);
    for (const std::string& skip : recipe.skips) skips_.emplace_back("skip pattern", skip);
  }

  Plan run() && {
    const ModelRoles roles = roles_of(stored_, scheme_of(plan_.recipe));
    plan_.model = roles.model;
    plan_.tied = roles.tied;
    if (plan_.model.architecture.empty()) warn_of_names();
    const CutTensors cut_tensors(stored_, *roles.finder);
    for (std::size_t t = 0; t < stored_.size(); ++t) {
      stored_.check_decodable(t);
      if (const CutTensor* const cut = cut_tensors.find(t))
        add_slice(t, *cut, *roles.finder);
      else
        add_whole(t, *roles.finder);
    }
    check_intake();
    for (std::size_t r = 0; r < rules_.size(); ++r) rules_[r].check(in_.tensors(), plan_.recipe.rules[r].codec);
    for (const RulePattern& skip : skips_) skip.check(in_.tensors(), CodecSpec());
    check_options();
    PlanEstimates::rewrite_bytes(plan_) = ReaderInternals::rewrite_bytes(in_);
    PlanEstimates::decoder_bytes(plan_) =
        std::max(PlanEstimates::decoder_bytes(plan_), ReaderInternals::reading_bytes(in_));
    plan_.dtype = main_type();
    settle_format();
    warn();
    check_part_names(in_, plan_.tensors, codings_);
    cut();
    return std::move(plan_);
  }

 private:
  void warn_of_names() {
    const auto& config = in_.config();
    if (codec_of(plan_.recipe.to).quantizes())
      plan_.warnings.emplace_back(
          config && !config->architecture.empty()
              ? fmt::format("architecture {} is not in the table made from transformers {}: linear layers were chosen "
                            "by names and shapes",
                            printable(config->architecture), architectures_version())
              : std::string("no architecture is given: linear layers were chosen by names and shapes"));
  }

  [[nodiscard]] const Codec& codec_of(const CodecSpec& spec) const { return *codings_[spec].codec; }

  // An option that decides about no tensor is as wrong as a rule that matches none.
  void check_options() const {
    const Recipe& recipe = plan_.recipe;
    struct Option {
      const char* name;
      const CodecSpec& codec;
      DecidedBy decides;
    };
    for (const auto& [name, codec, decides] : {Option{"embeddings", recipe.embeddings, DecidedBy::embeddings},
                                               {"output embeddings", recipe.lm_head, DecidedBy::lm_head},
                                               {"experts", recipe.experts, DecidedBy::experts}}) {
      const auto is_decided = [decides = decides](const PlannedTensor& tensor) { return tensor.decided_by == decides; };
      if (!codec.keeps() && std::none_of(plan_.tensors.begin(), plan_.tensors.end(), is_decided))
        throw Error(Errc::usage, fmt::format("{} for {} applies to no tensor", codec.text(), name));
    }
  }

  // What the recipe says without its rules and skips.
  Choice by_role(const TensorInfo& tensor, const FoundRole& found) {
    const Recipe& recipe = plan_.recipe;
    if (!is_weight_type(tensor.dtype))
      return {CodecSpec(), fmt::format("{} is not a weight type", traits(tensor.dtype).name)};
    if (!codec_of(recipe.to).quantizes()) return {recipe.to, "all weights are cast"};
    switch (found.role) {
      case Role::linear:
      case Role::conv1d:
        return {recipe.to, found.why};
      case Role::embedding:
        if (!recipe.embeddings.keeps()) return {recipe.embeddings, "chosen for embeddings", DecidedBy::embeddings};
        return {CodecSpec(), found.why};
      case Role::expert:
        if (!recipe.experts.keeps()) return {recipe.experts, "chosen for experts", DecidedBy::experts};
        return {CodecSpec(), found.why};
      case Role::output_embeddings:
        if (!recipe.lm_head.keeps()) return {recipe.lm_head, "chosen for output embeddings", DecidedBy::lm_head};
        [[fallthrough]];
      case Role::kept:
        if (!recipe.default_skips) return {recipe.to, "default skips are off", DecidedBy::all_layers};
        return {CodecSpec(), found.why};
      case Role::other:
      case Role::unknown:
        break;
    }
    return {CodecSpec(), found.why};
  }

  [[nodiscard]] DType model_type(const StoredWeights::Tensor& stored) const {
    return stored.quantized() ? stored.stored.info.dtype
                              : ReaderInternals::model_type(in_, stored.stored.parts.front());
  }

  // `type` is that of the model, if the input gives the tensor in another one.
  Choice choose(const TensorInfo& tensor, const FoundRole& found, DType type) {
    Choice choice = by_role(tensor, found);
    for (std::size_t r = 0; r < rules_.size(); ++r) {
      if (!rules_[r].matches(tensor.name)) continue;
      const CodecSpec& spec = plan_.recipe.rules[r].codec;
      const Codec& codec = codec_of(spec);
      // A pattern over a layer also matches its norms and biases, which a quantizing rule does not mean.
      if (!codec.accepts(tensor) || (codec.quantizes() && tensor.shape.size() < 2)) {
        choice.reason += fmt::format("; {} cannot store {}", rules_[r].label(), short_list(tensor));
        continue;
      }
      if (codec.quantizes() && found.used_outside) {
        rules_[r].meet_weight_used_outside();
        choice.reason += fmt::format("; {} cannot quantize it", rules_[r].label());
        continue;
      }
      rules_[r].apply();
      choice = {spec, rules_[r].label(), DecidedBy::rule};
    }
    for (RulePattern& skip : skips_) {
      if (!skip.matches(tensor.name)) continue;
      skip.apply();
      choice = {CodecSpec(), skip.label(), DecidedBy::skip};
    }
    // There is nothing to encode, and experts that are cut one by one or codes in bytes would not keep the shape.
    if (tensor.elements() == 0 && codec_of(choice.codec).quantizes()) choice = {CodecSpec(), "has no elements"};
    if (choice.codec.keeps() && choice.decided_by != DecidedBy::rule && is_kept_in_fp32(found, type) &&
        leaves_plain_types()) {
      type = DType::f32;
      choice.reason += "; stored as fp32, in which transformers keeps it";
      choice.decided_by = DecidedBy::loader;
    }
    if (choice.codec.keeps() && type != tensor.dtype)
      choice = {cast_codec(type), std::move(choice.reason), choice.decided_by};
    // A quantized model has no F64: transformers would run its layers in that type.
    if (choice.codec.keeps() && tensor.dtype == DType::f64 && codec_of(plan_.recipe.to).quantizes())
      choice = {cast_codec(DType::f32), choice.reason + "; F64 is cast", choice.decided_by};
    return choice;
  }

  // Whether what transformers loads plain is of the type in which it is stored.
  [[nodiscard]] bool leaves_plain_types() const {
    const Codec& codec = codec_of(plan_.recipe.to);
    return codec.quantizes() && scheme_of(codec).leaves_plain_types();
  }

  // A tensor of the input as a tensor of the model.
  PlannedTensor view_of_input(const StoredWeights::Tensor& stored) {
    std::uint64_t& decoder_bytes = PlanEstimates::decoder_bytes(plan_);
    decoder_bytes = std::max(decoder_bytes, stored.bytes - in_.tensors().bytes(stored.stored.parts.front()));
    PlannedTensor view = view_of(stored);
    if (view.decoded)
      view.info.dtype = plan_.recipe.decoded_as.value_or(view.info.dtype);
    else
      view.source_bytes = byte_count(model_type(stored), view.info.elements());
    return view;
  }

  void add_whole(std::size_t t, RoleFinder& finder) {
    const StoredWeights::Tensor stored = stored_[t];
    const FoundRole found = finder.find(stored.stored.info);
    PlannedTensor view = view_of_input(stored);
    if (is_stored_transposed(in_, stored, found.role)) {
      view.transposed = true;
      std::swap(view.info.shape.at(0), view.info.shape.at(1));
    }
    const Choice choice = choose(view.info, found, stored.quantized() ? view.info.dtype : model_type(stored));
    const bool quantizes = codec_of(choice.codec).quantizes();
    for (PlannedTensor& tensor :
         quantizes ? quantized_views(std::move(view), found.role) : std::vector<PlannedTensor>{view})
      push(std::move(tensor), found, choice, stored);
  }

  // If the whole tensor would be cut again, its slices stay as they are.
  void add_slice(std::size_t t, const CutTensor& cut, RoleFinder& finder) {
    const StoredWeights::Tensor stored = stored_[t];
    PlannedTensor slice = view_of_input(stored);
    PlannedTensor whole = slice;
    whole.info.name = cut.name;
    whole.info.shape.insert(whole.info.shape.begin(), cut.slices.size());
    const FoundRole found = finder.find(whole.info);
    const Choice choice = choose(whole.info, found, whole.info.dtype);
    if (codec_of(choice.codec).quantizes()) return push(std::move(slice), found, choice, stored);
    if (t != cut.first) return;
    whole.source_bytes = 0;
    for (const std::size_t other : cut.slices) {
      const StoredWeights::Tensor each = stored_[other];
      const PlannedTensor view = view_of_input(each);
      whole.slices.push_back(view.source);
      whole.source_bytes += view.source_bytes;
      whole.decoded = whole.decoded || view.decoded;
      if (view.info.dtype != whole.info.dtype) whole.info.dtype = DType::f32;
    }
    push(std::move(whole), found, choice, stored);
  }

  void push(PlannedTensor planned, const FoundRole& found, const Choice& choice, const StoredWeights::Tensor& stored) {
    const Codec& codec = codec_of(choice.codec);
    if (!codec.accepts(planned.info))
      throw Error(Errc::usage, in_.label_of(planned.source),
                  fmt::format("tensor '{}' is {}: codec {} cannot store it", printable(stored.stored.info.name),
                              short_list(planned.info), codec.name()));
    std::string reason = choice.reason;
    if (stored.quantized()) reason += fmt::format("; the input has it as {}", stored.stored.codec.text());
    planned.reason = reason;
    planned.codec = choice.codec;
    planned.decided_by = choice.decided_by;
    planned.role = found.role;
    planned.module = found.module;
    planned.quantized = codec.quantizes();
    planned.stored_bytes = stored_bytes(codec, planned.info);
    plan_.tensors.push_back(planned, found.keeps);
  }

  void check_intake() const {
    if (plan_.recipe.intake != Intake::quantized) return;
    const auto is_decoded = [](const PlannedTensor& tensor) { return tensor.decoded; };
    if (std::none_of(plan_.tensors.begin(), plan_.tensors.end(), is_decoded))
      throw Error(Errc::bad_input, escaped(in_.path().native()),
                  "has no quantized tensor: there is nothing to dequantize");
  }

  // The type that config.json declares. A cast decides it; otherwise it is the type that most bytes of the input's
  // weights have, of those that are stored plain.
  DType main_type() {
    if (const auto cast = codec_of(plan_.recipe.to).cast_type()) return *cast;
    std::map<DType, std::uint64_t> bytes;
    for (std::size_t t = 0; t < stored_.size(); ++t)
      if (const TensorInfo tensor = stored_[t].stored.info; is_weight_type(tensor.dtype)) {
        const DType dtype = model_type(stored_[t]);
        bytes[dtype] += byte_count(dtype, tensor.elements());
      }
    DType main_dtype = DType::f32;
    std::uint64_t max_bytes = 0;
    for (const auto& [dtype, count] : bytes)
      if (count > max_bytes) max_bytes = count, main_dtype = dtype;
    return main_dtype == DType::f64 ? DType::f32 : main_dtype;
  }

  // Whether the scheme's loader can read what was chosen.
  void settle_format() {
    const std::string why = obstacle(plan_);
    plan_.nibble_only = !why.empty();
    if (!plan_.nibble_only) return;
    if (!plan_.recipe.allow_nibble_only)
      throw Error(Errc::usage, escaped(in_.path().string()),
                  fmt::format("{}: transformers could not load the result", why), Remedy::Kind::allow_nibble_only);
    plan_.warnings.emplace_back(why + ": nibble's own loader reads the result, transformers does not");
  }

  void warn() {
    if (auto nothing = nothing_done()) plan_.warnings.push_back(*std::move(nothing));
    if (ReaderInternals::was_tied(in_))
      plan_.warnings.emplace_back(
          "the output layer does not share the weight of the embeddings any more: it has a tensor of its own, and "
          "tie_word_embeddings is false");
    if (!codec_of(plan_.recipe.to).quantizes()) return warn_of_other_types();
    std::uint64_t all = 0;
    std::map<Role, std::uint64_t> left;  // bytes that are not quantized
    for (const PlannedTensor& tensor : plan_.tensors) {
      if (!is_weight_type(tensor.info.dtype)) continue;
      all += tensor.info.bytes();
      if (!tensor.quantized) left[tensor.role] += tensor.info.bytes();
    }
    const auto percent = [all](std::uint64_t bytes) {
      return percent_text(static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(all, 1)));
    };
    if (left[Role::expert] > 0)
      plan_.warnings.emplace_back(
          fmt::format("{} of the weights' bytes are experts, which {} cannot hold: they stay as they are",
                      percent(left[Role::expert]), scheme_of(codec_of(plan_.recipe.to)).quant_method()),
          Remedy{Remedy::Kind::experts});
    if (const std::string obstacle = loading_obstacle(plan_.model); !obstacle.empty())
      plan_.warnings.emplace_back(fmt::format("transformers {} cannot load a quantized {}: {}", architectures_version(),
                                              plan_.model.architecture, obstacle));
    warn_of_mixed_types();
    const std::uint64_t embeddings = left[Role::embedding] + left[Role::output_embeddings];
    if (const double share = plan_.quantized_share(); share < low_share && (share > 0 || embeddings > 0)) {
      const Remedy remedy = embeddings > 0 ? remedy_of_embeddings() : Remedy{};
      std::vector<std::string> parts;
      if (share > 0)
        parts.push_back(fmt::format("{}{} of the weights' bytes are quantized", share < min_share ? "" : "only ",
                                    percent_text(share)));
      if (embeddings > 0)
        parts.push_back(fmt::format("{}{} are {}embeddings", percent(embeddings),
                                    parts.empty() ? " of the weights' bytes" : "",
                                    remedy.kind == Remedy::Kind::none ? "" : "fp32 "));
      plan_.warnings.emplace_back(fmt::format("{}", fmt::join(parts, "; ")), remedy);
    }
  }

  // A model in bf16 with norms in fp32 runs when transformers has cast them, and may fail where it does not.
  void warn_of_mixed_types() {
    if (plan_.nibble_only || !leaves_plain_types()) return;
    std::string first;
    std::size_t count = 0;
    for (const PlannedTensor& tensor : plan_.tensors) {
      if (tensor.quantized || !is_weight_type(tensor.info.dtype) || !tensor.info.name.ends_with(".weight")) continue;
      if (tensor.decided_by != DecidedBy::model && tensor.decided_by != DecidedBy::skip) continue;
      // Models keep some layers in fp32.
      if (tensor.role == Role::other && tensor.info.shape.size() > 1) continue;
      const DType type = codec_of(tensor.codec).cast_type().value_or(tensor.info.dtype);
      if (type == plan_.dtype) continue;
      if (count++ == 0) first = fmt::format("'{}' ({})", printable(tensor.info.name), traits(type).name);
    }
    if (count == 0) return;
    const std::string which =
        count == 1 ? fmt::format("{} is", first) : fmt::format("{} and {} more plain weights are", first, count - 1);
    plan_.warnings.emplace_back(fmt::format("{} not of the model's type, {}: transformers does not cast plain weights "
                                            "of a quantized model, and not every layer takes two types",
                                            which, traits(plan_.dtype).name),
                                Remedy{Remedy::Kind::plain_types});
  }

  // A cast of the whole model leaves types that mean nothing without scales, such as FP8.
  void warn_of_other_types() {
    std::vector<std::string> left;
    for (const PlannedTensor& tensor : plan_.tensors)
      if (is_floating_point(tensor.info.dtype) && !is_weight_type(tensor.info.dtype) &&
          tensor.decided_by == DecidedBy::model)
        left.push_back(fmt::format("'{}' in {}", printable(tensor.info.name), traits(tensor.info.dtype).name));
    if (left.empty()) return;
    const std::string others =
        left.size() == 1 ? " stays as it is" : fmt::format(" and {} more stay as they are", left.size() - 1);
    plan_.warnings.emplace_back(fmt::format("tensor {}{}: only F64, F32, BF16 and F16 are cast", left.front(), others));
  }

  // Why a conversion will change nothing that it was asked to change, if that is so.
  std::optional<Message> nothing_done() {
    const bool quantizing = codec_of(plan_.recipe.to).quantizes();
    const std::string_view done = quantizing ? "quantized" : "cast";
    std::map<std::string, std::size_t> reasons;  // of the tensors that are weights
    std::size_t weights = 0, as_they_are = 0;    // of the type already
    for (const PlannedTensor& tensor : plan_.tensors) {
      if (!is_weight_type(tensor.info.dtype)) continue;
      const auto type = codec_of(tensor.codec).cast_type();
      if (quantizing ? tensor.quantized : !tensor.codec.keeps() && (tensor.decoded || type != tensor.info.dtype))
        return std::nullopt;
      as_they_are += type == tensor.info.dtype ? 1 : 0;
      ++reasons[std::string(tensor.reason)];
      ++weights;
    }
    if (plan_.tensors.empty()) return fmt::format("nothing is {}: the input has no tensors", done);
    if (weights == 0)
      return fmt::format("nothing is {}: no tensor of the input has a weight type (F64, F32, BF16, F16)", done);
    if (!quantizing && as_they_are == weights)
      return fmt::format("nothing is cast: every F64, F32, BF16 and F16 tensor is {} already", plan_.recipe.to.name());
    const auto commonest = std::max_element(reasons.begin(), reasons.end(),
                                            [](const auto& a, const auto& b) { return a.second < b.second; });
    return Message(fmt::format("nothing is {}: the reason for {} of {} tensors is '{}'", done, commonest->second,
                               weights, commonest->first),
                   Remedy{Remedy::Kind::reasons});
  }

  // Suggests a smaller type for fp32 embeddings that no user rule keeps.
  Remedy remedy_of_embeddings() const {
    bool embeddings = false, head = false;
    for (const PlannedTensor& tensor : plan_.tensors) {
      if (tensor.info.dtype != DType::f32 || !tensor.codec.keeps() || tensor.decided_by != DecidedBy::model) continue;
      embeddings |= tensor.role == Role::embedding;
      head |= tensor.role == Role::output_embeddings;
    }
    if (embeddings && head) return {Remedy::Kind::embeddings_and_lm_head};
    return {embeddings ? Remedy::Kind::embeddings : head ? Remedy::Kind::lm_head : Remedy::Kind::none};
  }

  // A file becomes a file, however large it is.
  void cut() {
    const bool one_file = !in_.is_directory();
    std::uint64_t bytes = 0;
    std::size_t file = 0;
    for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
      const PlannedTensor tensor = plan_.tensors[i];
      const std::size_t last_file = std::exchange(file, in_.file_of(tensor.source));
      const bool full = plan_.recipe.keep_shards
                            ? i > 0 && file != last_file
                            : bytes > 0 && bytes + tensor.stored_bytes > plan_.recipe.max_shard_bytes;
      if (full && !one_file) {
        plan_.shard_ends.push_back(i);
        bytes = 0;
      }
      bytes += tensor.stored_bytes;
    }
    plan_.shard_ends.push_back(plan_.tensors.size());
  }

  const StoredWeights& stored_;
  const Reader& in_;
  const Codings codings_;
  Plan plan_;
  std::vector<RulePattern> rules_;
  std::vector<RulePattern> skips_;
};

}  // namespace

std::uint64_t Plan::source_bytes() const {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const PlannedTensor& tensor) { return sum + tensor.source_bytes; });
}

std::uint64_t Plan::stored_bytes() const {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const PlannedTensor& tensor) { return sum + tensor.stored_bytes; });
}

double Plan::quantized_share() const {
  std::uint64_t all = 0;
  std::uint64_t quantized = 0;
  for (const PlannedTensor& tensor : tensors) {
    if (!is_weight_type(tensor.info.dtype)) continue;
    all += tensor.info.bytes();
    if (tensor.quantized) quantized += tensor.info.bytes();
  }
  return all == 0 ? 1.0 : static_cast<double>(quantized) / static_cast<double>(all);
}

Plan make_plan(const StoredWeights& in, const Recipe& recipe) { return Planner(in, recipe).run(); }

Plan make_plan(const Reader& in, const Recipe& recipe) {
  return make_plan(StoredWeights(in, schemes_of(recipe.intake)), recipe);
}

}  // namespace nibble
