// Compares reference and candidates, tensor by tensor, in units of 131072 weights, however much memory there is:
//
//   cut (serial) -> read, decode, compare (parallel) -> add up (serial, in order)
//
// What a conversion would write is encoded when its tensor's turn comes, on all threads, and kept until it is compared.

#include "nibble/measure.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <utility>

#include "core/memory/buffers.hpp"
#include "core/ranges.hpp"
#include "core/refuse.hpp"
#include "core/workers.hpp"
#include "formats/models/layer_and_kind.hpp"
#include "nibble/error.hpp"
#include "quant/jobs/measure/candidate_weights.hpp"
#include "quant/jobs/measure/counts.hpp"
#include "quant/jobs/measure/measurement_memory.hpp"
#include "quant/jobs/measure/outlier_columns.hpp"
#include "quant/jobs/measure/pairing.hpp"
#include "quant/simd/widen.hpp"
#include "quant/stream/beyond_fp32.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/layer_inputs.hpp"
#include "quant/stream/pipeline.hpp"
#include "quant/stream/source.hpp"
#include "quant/stream/weighing.hpp"

namespace nibble {
namespace {

static_assert(unit_weights % tile_weights == 0);

// Two tiles: of the reference and of a test, each weight multiplied by what it is fed with.
constexpr std::uint64_t output_bytes = 2 * tile_weights * sizeof(float);

// One tensor while it is measured.
struct Comparison {
  MeasuredWeights measured;
  std::uint64_t elements = 0;
  std::uint64_t batch_weights = unit_weights;
  std::uint64_t columns = 0;  // 0 if outlier columns are not searched
  float pivot = 0;
  Buffers::Loan memory;  // all weights of the reference, if they are kept
  std::optional<WeightSource> weights;
  OutputWeights output_weights;
  std::vector<std::optional<CandidateTensor>> tests;
  std::vector<MeasuredError> errors;
  std::vector<double> column_energy;
};

struct Unit {
  Comparison* tensor = nullptr;
  std::uint64_t first = 0;
  std::uint64_t weights = 0;
  WeightStats stats;
  std::vector<float> column_energy;
  std::vector<MeasuredError> errors;
};

class Measuring {
 public:
  Measuring(const Reader& reference, std::span<const Candidate> candidates, const MeasureOptions& options,
            Progress& progress)
      : in_(reference),
        candidates_(candidates),
        options_(options),
        progress_(progress),
        pairing_(reference, candidates),
        missing_(candidates.size()) {
    result_.name = reference.path().string();
    result_.bytes = bytes_of(reference);
    result_.has_statistics = !options.calibration.empty();
    for (const Candidate& candidate : candidates) {
      MeasuredCandidate& measured = result_.candidates.emplace_back();
      measured.name = candidate.name;
      measured.bytes = candidate.plan ? candidate.plan->stored_bytes() : bytes_of(*candidate.checkpoint);
      Recipe recipe = candidate.plan ? candidate.plan->recipe : Recipe{};
      recipe.error_report = ErrorReport::none;  // they are compared
      if (candidate.plan)
        codings_.emplace_back(recipe, candidate.plan->tensors);
      else
        codings_.emplace_back(recipe);
      if (candidate.plan)
        weighings_.emplace_back(reference, *candidate.plan, options.resources.max_memory);
      else
        weighings_.emplace_back();
    }
    if (!options.calibration.empty()) open_statistics();
    memory_ = measurement_memory(pairing_, candidates, codings_, options, statistics_bytes());
    result_.tensors.reserve(memory_.results);  // touched when it is filled
    for (MeasuredCandidate& candidate : result_.candidates) candidate.tensors.reserve(memory_.results);
  }

  Measurement run() && {
    Workers(memory_.threads).execute([this] { compare_all(); });
    check_cancelled(progress_);
    const auto check_unchanged = [](const Reader& checkpoint) {
      about(checkpoint, [&] { checkpoint.check_unchanged(); });
    };
    check_unchanged(in_);
    if (statistics_) statistics_->check_unchanged();
    for (const Candidate& candidate : candidates_)
      if (candidate.checkpoint != nullptr) check_unchanged(*candidate.checkpoint);
    for (std::size_t c = 0; c < missing_.size(); ++c) result_.candidates[c].missing = std::move(missing_[c]);
    return std::move(result_);
  }

 private:
  // What is wrong with them is found before anything is measured, as far as the plans say what becomes of a tensor.
  void open_statistics() {
    statistics_ = std::make_unique<Calibration>(options_.calibration, options_.resources.max_memory);
    const TensorList& tensors = in_.tensors();
    bool any = false;
    for (std::size_t t = 0; t < tensors.size() && !any; ++t) any = statistics_->find(tensors.name(t)) != nullptr;
    if (!any)
      refuse(escaped((options_.calibration / Calibration::file_name).native()),
             "lists no tensor of '{}': is it of another model?", escaped(in_.path().native()));
    for (const Candidate& candidate : candidates_)
      if (candidate.plan)
        for (const PlannedTensor& tensor : candidate.plan->tensors) (void)layer_input(in_, *statistics_, tensor);
  }

  // Twice: a plan that has statistics is that of a conversion, which has them open, too. Tensors are encoded one at a
  // time.
  [[nodiscard]] std::uint64_t statistics_bytes() const {
    const std::uint64_t threads = options_.resources.threads != 0 ? options_.resources.threads : default_threads();
    std::uint64_t bytes = 0, of_tensor = 0;
    for (const Weighing& weighing : weighings_) {
      const StatisticsMemory& memory = weighing.memory();
      bytes += 2 * memory.bytes;
      of_tensor =
          std::max({of_tensor, memory.column_bytes, memory.compensation.bytes(threads, unit_weights * sizeof(float))});
    }
    if (statistics_) {
      std::uint64_t columns = 0;
      for (const Calibration::Input& input : statistics_->inputs()) columns = std::max(columns, input.columns);
      // Those of two tensors may be in use while those of a third are read.
      bytes += statistics_->memory_bytes() + 3 * columns * sizeof(float) + output_bytes * threads;
    }
    return bytes + of_tensor;
  }

  static std::uint64_t bytes_of(const Reader& checkpoint) {
    std::uint64_t bytes = 0;
    for (std::size_t t = 0; t < checkpoint.tensors().size(); ++t) bytes += checkpoint.tensors().bytes(t);
    return bytes;
  }

  // The next tensor, or nothing.
  Comparison* next_work() {
    while (rows_.empty()) {
      if (next_tensor_ == pairing_.reference().size()) return nullptr;
      for (Pairing::Row& row : pairing_.rows_of(next_tensor_, missing_)) rows_.push_back(std::move(row));
      ++next_tensor_;
    }
    const Pairing::Row row = std::move(rows_.front());
    rows_.pop_front();
    auto work = std::make_unique<Comparison>();
    const PlannedTensor& view = row.view;
    work->measured.info = view.info;
    const LayerAndKind found = layer_and_kind(view.info.name);
    work->measured.kind = found.kind;
    work->measured.layer = found.layer;
    work->elements = view.info.elements();
    const StoredWeights::Tensor stored = pairing_.reference()[*pairing_.reference().find(view.source)];
    work->measured.form = form_of(stored);
    work->measured.bytes = stored.quantized() ? stored.bytes : view.info.bytes();
    work->weights.emplace(about(in_, [&] { return open_source(pairing_.reference(), view, buffers_); }));
    if (view.info.shape.size() == 2 && view.info.shape[1] <= max_columns) work->columns = view.info.shape[1];
    work->column_energy.resize(work->columns);
    if (statistics_)
      if (const auto input = layer_input(in_, *statistics_, view))
        work->output_weights = OutputWeights(*statistics_, *input, view.info.shape[1]);
    // Weights that are encoded are read at least twice: by the encoders and for the comparison. The second time it
    // comes from the page cache into a buffer that stays in the processor's cache, which is faster than keeping whole
    // tensors in memory, but not if the weights have to be gathered.
    const bool keeps = work->weights->is_gathered();
    const bool fits = fits_memory(row, *work->weights, keeps ? work->measured.bytes : 0);
    if (keeps && fits) load(*work);
    work->pivot = pivot_of(*work);
    work->measured.stats.pivot = work->pivot;
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      auto& test = work->tests.emplace_back();
      if (row.stored[c]) test = tests_.stored(c, *row.stored[c]);
      if (!row.planned[c]) continue;
      test = tests_.encoded(c, *row.planned[c], *work->weights, fits);
      result_.candidates[c].bytes += test->bytes - row.planned[c]->stored_bytes;
    }
    work->errors.resize(candidates_.size());
    const std::scoped_lock lock(mutex_);
    return in_work_.emplace_back(std::move(work)).get();
  }

  // Whether there is room for the codes and other `bytes`, twice: the previous tensor may still be in progress.
  bool fits_memory(const Pairing::Row& row, const WeightSource& reference, std::uint64_t bytes) {
    bool any = false;
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      if (!row.planned[c]) continue;
      const auto encoded = tests_.memory_bytes(c, *row.planned[c], reference);
      bytes += encoded.value_or(0);
      any = any || encoded;
    }
    return any && bytes <= memory_.tensor_bytes;
  }

  void load(Comparison& work) {
    WeightSource& weights = *work.weights;
    work.memory = buffers_.lend(weights.bytes(0, work.elements), weights.position(0));
    const std::span<std::byte> all = work.memory.bytes();
    for_each_range(work.elements, unit_weights, [&](std::uint64_t first, std::uint64_t n) {
      check_cancelled(progress_);
      weights.read(first, all.subspan(weights.bytes(0, first), weights.bytes(first, n)));
    });
    weights.set_memory(all);
  }

  float pivot_of(const Comparison& work) {
    const std::size_t n = std::min<std::uint64_t>(work.elements, tile_weights);
    if (n == 0) return 0;
    Buffers::Loan loan;
    const std::span<const std::byte> raw = work.weights->raw(0, n, loan);
    alignas(64) std::array<float, tile_weights> tile;
    return choose_pivot(work.weights->decode(0, raw, 0, n, tile));
  }

  void compare_all() {
    run_pipeline<Unit>(memory_.tokens, {.check = [this] { check_cancelled(progress_); },
                                        .next_tensor = [this] { return next_work(); },
                                        .work = [this](Unit& unit) { look_at(unit); },
                                        .account = [this](Unit& unit) { add_up(unit); }});
  }

  void look_at(Unit& unit) const {
    const Comparison& work = *unit.tensor;
    Buffers::Loan loan;
    const std::span<const std::byte> raw = work.weights->raw(unit.first, unit.weights, loan);
    std::vector<Buffers::Loan> test_loans(work.tests.size());
    std::vector<std::span<const std::byte>> test_raw(work.tests.size());
    for (std::size_t c = 0; c < work.tests.size(); ++c)
      if (work.tests[c] && !work.tests[c]->is_reference)
        test_raw[c] = work.tests[c]->weights->raw(unit.first, unit.weights, test_loans[c]);

    unit.stats = {};
    unit.stats.pivot = work.pivot;
    unit.errors.assign(work.tests.size(), {});
    unit.column_energy.assign(work.columns, 0.0f);
    alignas(64) std::array<float, tile_weights> tile;
    alignas(64) std::array<float, tile_weights> test_tile;
    const bool has_output = !work.output_weights.empty();
    std::vector<float> output(has_output ? output_bytes / sizeof(float) : 0);
    const auto weighed = [&](std::span<const float> from, std::uint64_t at, std::size_t to) {
      const auto part = std::span(output).subspan(to, from.size());
      std::ranges::copy(from, part.begin());
      work.output_weights.apply(at, part);
      return part;
    };
    for (std::uint64_t at = unit.first; at < unit.first + unit.weights; at += tile_weights) {
      const std::size_t n = std::min<std::uint64_t>(tile_weights, unit.first + unit.weights - at);
      const std::span<const float> weights = work.weights->decode(unit.first, raw, at, n, tile);
      const auto with_fp64 = [&](std::span<const float> decoded, const WeightSource& source,
                                 std::span<const std::byte> from) {
        return ComparedTile{decoded,
                            source.is_fp64() ? source.stored(unit.first, from, at, n) : std::span<const std::byte>{}};
      };
      const ComparedTile reference = with_fp64(weights, *work.weights, raw);
      WeightStats stats = describe(weights, work.pivot);
      correct_beyond_fp32(reference, stats);
      unit.stats.add(stats);
      if (work.columns > 0) add_column_energy(weights, at % work.columns, stats.count == n, unit.column_energy);
      const std::span<const float> reference_output = has_output ? weighed(weights, at, 0) : std::span<float>{};
      for (std::size_t c = 0; c < work.tests.size(); ++c) {
        if (!work.tests[c]) continue;
        const CandidateTensor& test = *work.tests[c];
        const std::span<const float> decoded =
            test.is_reference ? weights : test.weights->decode(unit.first, test_raw[c], at, n, test_tile);
        MeasuredError& error = unit.errors[c];
        compare(weights, decoded, at, error.stats);
        if (has_output) error.output.add(compare(reference_output, weighed(decoded, at, tile_weights)));
        correct_beyond_fp32(reference, test.is_reference ? reference : with_fp64(decoded, *test.weights, test_raw[c]),
                            at, error.stats);
        if (!options_.counts) continue;
        count_errors(weights, decoded, error.counts);
        if (test.has_codes) count_codes(test.weights->stored(unit.first, test_raw[c], at, n), n, error.counts);
      }
    }
  }

  void add_up(const Unit& unit) {
    Comparison& work = *unit.tensor;
    work.measured.stats.add(unit.stats);
    for (std::size_t c = 0; c < work.errors.size(); ++c) {
      work.errors[c].stats.add(unit.errors[c].stats);
      work.errors[c].output.add(unit.errors[c].output);
      add(work.errors[c].counts, unit.errors[c].counts);
    }
    for (std::size_t i = 0; i < work.columns; ++i) work.column_energy[i] += unit.column_energy[i];
    done_ += work.measured.bytes == 0 || work.elements == 0
                 ? 0
                 : static_cast<std::uint64_t>(static_cast<double>(work.measured.bytes) *
                                              static_cast<double>(unit.weights) / static_cast<double>(work.elements));
    progress_.advance(work.measured.info.name, std::min(done_, result_.bytes), result_.bytes);
    if (unit.first + unit.weights < work.elements) return;
    finish(work);
    const std::scoped_lock lock(mutex_);
    in_work_.pop_front();
  }

  void finish(Comparison& work) {
    if (work.columns > 0 && work.elements > 0 && has_column_energy(work.measured.stats.absmax_max)) {
      const OutlierColumns outliers = find_outliers(work.column_energy);
      work.measured.outlier_columns = outliers.count;
      work.measured.outlier_energy = outliers.energy;
    }
    result_.tensors.push_back(work.measured);
    for (std::size_t c = 0; c < work.tests.size(); ++c) {
      auto& to = result_.candidates[c].tensors.emplace_back();
      if (!work.tests[c]) continue;
      to = std::move(work.errors[c]);
      to->form = work.tests[c]->form;
      to->bytes = work.tests[c]->bytes;
      // If test and reference have the same form, a difference does not come from that form.
      if (to->form != work.measured.form) to->normal_sqnr_db = work.tests[c]->normal_sqnr_db;
    }
  }

  const Reader& in_;
  std::span<const Candidate> candidates_;
  const MeasureOptions& options_;
  Progress& progress_;
  Pairing pairing_;
  std::deque<Codings> codings_;  // of the candidates
  std::deque<Weighing> weighings_;
  std::unique_ptr<const Calibration> statistics_;  // of MeasureOptions::calibration
  MeasurementMemory memory_;
  Buffers buffers_;
  CandidateWeights tests_{pairing_, candidates_, codings_, weighings_, buffers_, progress_};

  std::size_t next_tensor_ = 0;
  std::vector<std::vector<std::string>> missing_;  // of every candidate
  std::deque<Pairing::Row> rows_;
  std::mutex mutex_;                                 // of what follows
  std::deque<std::unique_ptr<Comparison>> in_work_;  // in the order of the input
  std::uint64_t done_ = 0;
  Measurement result_;
};

}  // namespace

std::string StoredForm::text() const {
  if (const CodecSpec* const spec = codec()) return spec->text();
  return std::string(traits(std::get<DType>(form_)).torch_name);
}

Outcome outcome_of(const MeasuredWeights& reference, const MeasuredError& error) {
  return outcome_of(error.form.quantized(), error.form == reference.form && !has_error(reference, error));
}

bool has_error(const MeasuredWeights& reference, const MeasuredError& error) {
  return error.stats.square > 0 || error.stats.lost > 0 || error.stats.nan != reference.stats.nan ||
         error.stats.inf != reference.stats.inf;
}

Measurement measure(const Reader& reference, std::span<const Candidate> candidates, const MeasureOptions& options,
                    Progress& progress) {
  return Measuring(reference, candidates, options, progress).run();
}

}  // namespace nibble
