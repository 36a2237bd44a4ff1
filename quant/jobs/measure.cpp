// Reference and candidates, tensor by tensor, in units of the same 131072 weights whatever the memory:
//
//   cut (serial) -> read, decode, compare (parallel) -> add up (serial, in order)
//
// What a conversion would write is encoded when its tensor's turn comes, on all threads, and kept until it is compared.
// One file, because its stages share the state of one measurement.

#include "nibble/measure.hpp"

#include <fmt/format.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <limits>
#include <mutex>
#include <utility>

#include "core/workers.hpp"
#include "nibble/buffers.hpp"
#include "nibble/error.hpp"
#include "quant/jobs/counts.hpp"
#include "quant/jobs/measure_memory.hpp"
#include "quant/jobs/outlier_columns.hpp"
#include "quant/jobs/pairing.hpp"
#include "quant/schemes/scheme.hpp"
#include "quant/simd/widen.hpp"
#include "quant/stream/beyond_fp32.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/encode.hpp"
#include "quant/stream/nonfinite.hpp"
#include "quant/stream/pipeline.hpp"
#include "quant/stream/source.hpp"

namespace nibble {
namespace {

static_assert(unit_weights % tile_weights == 0);

// The planes of a tensor that follow the codes, in memory.
class KeptPlanes final : public PlaneSink {
 public:
  explicit KeptPlanes(std::size_t planes) : planes_(planes - 1) {}
  void write(std::size_t plane, std::span<const std::byte> bytes) override {
    planes_[plane - 1].insert(planes_[plane - 1].end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] std::vector<std::span<const std::byte>> spans() const { return {planes_.begin(), planes_.end()}; }

 private:
  std::vector<std::vector<std::byte>> planes_;
};

// What a candidate has for a tensor, ready to be read.
struct Test {
  std::string codec;
  bool quantized = false;
  std::optional<DType> dtype{};  // of a plain tensor
  std::uint64_t bytes = 0;
  double normal_sqnr_db = std::numeric_limits<double>::quiet_NaN();
  bool is_reference = false;  // the very same weights: nothing to be read
  bool has_codes = false;
  Buffers::Loan memory{};  // of what was encoded for this, or
  std::unique_ptr<Scratch> file{};
  std::optional<Source> weights{};
};

// One tensor while it is measured.
struct Comparison {
  MeasuredWeights measured;
  std::uint64_t elements = 0;
  std::uint64_t batch_weights = unit_weights;
  bool is_decoded = false;    // a scheme stored codes of it
  std::uint64_t columns = 0;  // 0 where they are not looked at
  float pivot = 0;
  Buffers::Loan memory;  // all of the reference's weights, if something is to be encoded and there is room
  std::optional<Source> weights;
  std::vector<std::optional<Test>> tests;
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
    for (const Candidate& candidate : candidates) {
      MeasuredCandidate& measured = result_.candidates.emplace_back();
      measured.name = candidate.name;
      measured.bytes = candidate.plan ? candidate.plan->stored_bytes() : bytes_of(*candidate.checkpoint);
      Recipe recipe = candidate.plan ? candidate.plan->recipe : Recipe{};
      recipe.error_report = ErrorReport::none;  // they are compared
      codings_.emplace_back(recipe);
    }
    memory_ = plan_measure_memory(pairing_, candidates, codings_, options);
    result_.tensors.reserve(memory_.results);  // touched as it is filled
    for (MeasuredCandidate& candidate : result_.candidates) candidate.tensors.reserve(memory_.results);
  }

  Measurement run() && {
    Workers(memory_.threads).execute([this] { compare_all(); });
    const auto check_unchanged = [](const Reader& checkpoint) {
      about(checkpoint, [&] { checkpoint.check_unchanged(); });
    };
    check_unchanged(in_);
    for (const Candidate& candidate : candidates_)
      if (candidate.checkpoint != nullptr) check_unchanged(*candidate.checkpoint);
    for (std::size_t c = 0; c < missing_.size(); ++c) result_.candidates[c].missing = std::move(missing_[c]);
    return std::move(result_);
  }

 private:
  static std::string name_of(const StoredWeights::Tensor& stored) {
    return std::string(stored.quantized() ? stored.stored.codec.name() : traits(stored.stored.info.dtype).torch_name);
  }

  // Of the codec that a tensor was given; weights that were cast are in no codec's form but have its type.
  static double normal_sqnr_of(const StoredWeights::Tensor& stored) {
    if (stored.quantized()) return make_codec(stored.stored.codec)->normal_sqnr_db(stored.stored.info);
    for (const std::string_view name : codec_names())
      if (const auto codec = make_codec(name); codec->cast_type() == stored.stored.info.dtype)
        return codec->normal_sqnr_db(stored.stored.info);
    return std::numeric_limits<double>::quiet_NaN();
  }

  static std::uint64_t bytes_of(const Reader& checkpoint) {
    std::uint64_t bytes = 0;
    for (std::size_t t = 0; t < checkpoint.tensors().size(); ++t) bytes += checkpoint.tensors().bytes(t);
    return bytes;
  }

  static std::unique_ptr<Scratch> make_temporary() {
    std::error_code error;
    const std::filesystem::path directory = std::filesystem::temp_directory_path(error);
    if (error) throw Error(Errc::io, "$TMPDIR: " + error.message());
    return make_file_scratch(directory);
  }

  static std::unique_ptr<Scratch> make_scratch(std::uint64_t bytes, bool fits) {
    if (fits) return std::make_unique<MemoryScratch>(bytes);
    return make_temporary();
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
    const Place place = place_of(view.info.name);
    work->measured.kind = place.kind;
    work->measured.layer = place.layer;
    work->elements = view.info.elements();
    const StoredWeights::Tensor stored = pairing_.reference()[*pairing_.reference().find(view.source)];
    work->measured.codec = name_of(stored);
    work->measured.bytes = stored.quantized() ? stored.bytes : view.info.bytes();
    work->is_decoded = stored.quantized();
    work->weights.emplace(about(in_, [&] { return open_source(pairing_.reference(), view, buffers_); }));
    if (view.info.shape.size() == 2 && view.info.shape[1] <= max_columns) work->columns = view.info.shape[1];
    work->column_energy.resize(work->columns);
    const bool fits = fits_memory(row, work->measured.bytes);
    if (fits) load(*work);
    work->pivot = pivot_of(*work);
    work->measured.stats.pivot = work->pivot;
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      if (row.stored[c])
        work->tests.emplace_back(open_stored(c, *row.stored[c]));
      else if (row.planned[c])
        work->tests.emplace_back(encode(c, *row.planned[c], *work, fits));
      else
        work->tests.emplace_back();
    }
    work->errors.resize(candidates_.size());
    const std::scoped_lock lock(mutex_);
    return in_work_.emplace_back(std::move(work)).get();
  }

  // Whether a codec stores a tensor as it is.
  static bool is_same(const Codec& codec, const TensorInfo& tensor) {
    return !codec.quantizes() && codec.planes(tensor).front().dtype == tensor.dtype;
  }

  // Whether the weights and what they are encoded to have room, twice: the tensor before may be in work still.
  bool fits_memory(const Pairing::Row& row, std::uint64_t bytes) {
    bool any = false;
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      if (!row.planned[c]) continue;
      const auto& [codec, quantizer] = codings_[c][row.planned[c]->codec];
      const TensorInfo& info = row.planned[c]->info;
      if (is_same(*codec, info)) continue;
      bytes += codec->code_bytes(info, info.elements()) + quantizer->scratch_bytes(info);
      any = true;
    }
    return any && bytes <= memory_.tensor_bytes;
  }

  // Calls f(first, n) for ranges of weights, on all threads.
  template <class F> void for_each_range(std::uint64_t weights, std::uint64_t size, F&& f) const {
    const std::uint64_t ranges = weights / size + (weights % size != 0 ? 1 : 0);
    const auto call = [&](std::uint64_t range) {
      check_cancelled();
      f(range * size, std::min(size, weights - range * size));
    };
    // Isolated: a thread that waits must not begin a unit of the pipeline meanwhile.
    tbb::this_task_arena::isolate([&] { tbb::parallel_for(std::uint64_t{0}, ranges, call); });
  }

  void load(Comparison& work) {
    Source& weights = *work.weights;
    work.memory = buffers_.lend(weights.bytes(0, work.elements), weights.position(0));
    const std::span<std::byte> all = work.memory.bytes();
    for_each_range(work.elements, unit_weights, [&](std::uint64_t first, std::uint64_t n) {
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

  // Whether its codes can be counted: two to a byte.
  static bool has_codes(const Codec& codec) { return !codec.codebook().empty(); }

  Test open_stored(std::size_t c, std::size_t tensor) {
    const StoredWeights::Tensor stored = pairing_.stored(c)[tensor];
    Test test{.codec = name_of(stored),
              .quantized = stored.quantized(),
              .bytes = stored.bytes,
              .normal_sqnr_db = normal_sqnr_of(stored)};
    if (!stored.quantized()) test.dtype = stored.stored.info.dtype;
    test.has_codes = has_codes(*make_codec(stored.stored.codec));
    test.weights.emplace(
        about(pairing_.stored(c).reader(), [&] { return open_source(pairing_.stored(c), stored, buffers_); }));
    return test;
  }

  // What a conversion would write in place of a tensor.
  Test encode(std::size_t c, const PlannedTensor& planned, const Comparison& work, bool fits) {
    const auto& [codec, quantizer] = codings_[c][planned.codec];
    Test test{.codec = std::string(planned.codec.name()),
              .quantized = planned.quantized,
              .bytes = planned.stored_bytes,
              .normal_sqnr_db = codec->normal_sqnr_db(planned.info),
              .has_codes = has_codes(*codec)};
    if (!codec->quantizes()) {
      test.dtype = codec->planes(planned.info).front().dtype;
      test.codec = traits(*test.dtype).torch_name;
    }
    if (!work.is_decoded && is_same(*codec, planned.info)) {
      test.is_reference = true;
      return test;
    }

    if (fits)
      test.memory = buffers_.lend(codec->code_bytes(planned.info, work.elements), 0);
    else
      test.file = make_temporary();
    Encoding encoding(*work.weights, planned.info, codings_[c][planned.codec],
                      quantizer->chunking(planned.info, unit_weights),
                      make_scratch(quantizer->scratch_bytes(planned.info), fits));
    Findings findings;
    const auto encode_range = [&](std::uint64_t first, std::uint64_t n) {
      Buffers::Loan loan;
      const std::uint64_t begin = encoding.offset(first), size = encoding.offset(first + n) - begin;
      if (!fits) loan = buffers_.lend(size, 0);
      const std::span<std::byte> out = fits ? test.memory.bytes().subspan(begin, size) : loan.bytes();
      const Findings found = encoding.encode(first, n, out, nullptr);
      if (!fits) test.file->write(begin, out);
      if (found == Findings{}) return;
      const std::scoped_lock lock(mutex_);
      findings.add(found);
    };
    const std::uint64_t chunk = encoding.chunking().weights;
    if (encoding.chunking().scan)
      for_each_range(work.elements, chunk, [&](std::uint64_t first, std::uint64_t n) { encoding.scan(first, n); });
    for_each_range(work.elements, chunk, encode_range);
    if (const auto instead = planned_instead(candidates_[c].plan->recipe, planned, findings, codings_[c])) {
      result_.candidates[c].bytes += instead->stored_bytes - planned.stored_bytes;
      return encode(c, *instead, work, false);  // `fits` was said of the codes, which are smaller
    }
    KeptPlanes rest(codec->planes(planned.info).size());
    encoding.encoder().finish(rest);
    test.weights.emplace(
        planned.info, make_codec(planned.codec), rest.spans(),
        [from = test.file.get()](std::uint64_t offset, std::span<std::byte> out) { from->read(offset, out); },
        buffers_);
    if (fits) test.weights->set_memory(test.memory.bytes());
    return test;
  }

  void compare_all() {
    run_pipeline<Unit>(memory_.tokens, {.check = [this] { check_cancelled(); },
                                        .next_tensor = [this] { return next_work(); },
                                        .work = [this](Unit& unit) { look_at(unit); },
                                        .account = [this](Unit& unit) { add_up(unit); }});
  }

  void check_cancelled() const {
    if (progress_.cancelled()) throw Error(Errc::interrupted, "interrupted");
  }

  void look_at(Unit& unit) {
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
    for (std::uint64_t at = unit.first; at < unit.first + unit.weights; at += tile_weights) {
      const std::size_t n = std::min<std::uint64_t>(tile_weights, unit.first + unit.weights - at);
      const std::span<const float> weights = work.weights->decode(unit.first, raw, at, n, tile);
      const auto with_fp64 = [&](std::span<const float> decoded, const Source& source,
                                 std::span<const std::byte> from) {
        return ComparedTile{decoded,
                            source.is_fp64() ? source.stored(unit.first, from, at, n) : std::span<const std::byte>{}};
      };
      const ComparedTile reference = with_fp64(weights, *work.weights, raw);
      WeightStats stats = describe(weights, work.pivot);
      correct_beyond_fp32(reference, stats);
      unit.stats.add(stats);
      if (work.columns > 0) add_column_energy(weights, at % work.columns, stats.count == n, unit.column_energy);
      for (std::size_t c = 0; c < work.tests.size(); ++c) {
        if (!work.tests[c]) continue;
        const Test& test = *work.tests[c];
        const std::span<const float> decoded =
            test.is_reference ? weights : test.weights->decode(unit.first, test_raw[c], at, n, test_tile);
        MeasuredError& error = unit.errors[c];
        compare(weights, decoded, at, error.stats);
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
      to->codec = work.tests[c]->codec;
      to->quantized = work.tests[c]->quantized;
      to->dtype = work.tests[c]->dtype;
      to->bytes = work.tests[c]->bytes;
      // In the same form as the reference, what differs is no matter of that form.
      if (to->codec != work.measured.codec) to->normal_sqnr_db = work.tests[c]->normal_sqnr_db;
    }
  }

  const Reader& in_;
  std::span<const Candidate> candidates_;
  const MeasureOptions& options_;
  Progress& progress_;
  Pairing pairing_;
  std::deque<Codings> codings_;  // of the candidates
  MeasureMemory memory_;
  Buffers buffers_;

  std::size_t next_tensor_ = 0;
  std::vector<std::vector<std::string>> missing_;  // of every candidate
  std::deque<Pairing::Row> rows_;
  std::mutex mutex_;                                 // of what follows, and of findings
  std::deque<std::unique_ptr<Comparison>> in_work_;  // in the order of the input
  std::uint64_t done_ = 0;
  Measurement result_;
};

}  // namespace

Outcome outcome_of(const MeasuredWeights& reference, const MeasuredError& error) {
  return outcome_of(error.quantized, error.codec == reference.codec && !has_error(reference, error));
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
