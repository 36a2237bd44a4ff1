// Reference and candidates, tensor by tensor, in units of the same 131072 weights whatever the memory:
//
//   cut (serial) -> read, decode, compare (parallel) -> add up (serial, in order)
//
// What a conversion would write is encoded when its tensor's turn comes, on all threads, and kept until it is compared.

#include "nibble/measure.hpp"

#include <fmt/format.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/parallel_pipeline.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <mutex>
#include <utility>

#include "nibble/error.hpp"
#include "quant/buffers.hpp"
#include "quant/codecs.hpp"
#include "quant/handover.hpp"
#include "quant/stored_weights.hpp"
#include "quant/widen.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t unit_weights = 1 << 17;
static_assert(unit_weights % tile_weights == 0);
constexpr std::uint64_t most_columns = 1 << 16;
constexpr double outlier_factor = 6;

// Measured as peak RSS, and up to a third more, as for a conversion. Beside these every list holds the names once, and
// what is found holds them twice: as name and as kind.
constexpr std::uint64_t program_bytes = 14 << 20;
constexpr std::uint64_t bytes_per_part = 64;     // of a checkpoint that is open
constexpr std::uint64_t bytes_per_planned = 80;  // of a plan
constexpr std::uint64_t bytes_per_tensor = 380;  // of what is found, and of that for every candidate:
constexpr std::uint64_t bytes_per_error = 280;
constexpr std::uint64_t bytes_per_counts = 640;

// While a checkpoint was opened, which is over by now, but counts.
constexpr std::uint64_t bytes_per_opened = 96;
constexpr std::uint64_t opened_names = 3;

// Parts of a tensor after its first are read whole and copied into its decoder, while that of the tensor before it may
// still be in use.
constexpr std::uint64_t decoder_copies = 3;
constexpr std::uint64_t finish_bytes = (1 << 20) * 5 / 4;  // what Encoder::finish() takes
constexpr std::uint64_t bytes_per_scanned_row = 8;

// The parts of a tensor that follow its first, in memory.
class KeptParts final : public PartSink {
 public:
  explicit KeptParts(std::size_t parts) : parts_(parts - 1) {}
  void write(std::size_t part, std::span<const std::byte> bytes) override {
    parts_[part - 1].insert(parts_[part - 1].end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] std::vector<std::span<const std::byte>> spans() const { return {parts_.begin(), parts_.end()}; }

 private:
  std::vector<std::vector<std::byte>> parts_;
};

// What a candidate has for a tensor, ready to be read.
struct Test {
  std::string codec;
  std::uint64_t bytes = 0;
  bool is_reference = false;  // the very same weights: nothing to be read
  bool has_codes = false;
  Buffers::Loan memory{};  // of what was encoded for this, or
  std::unique_ptr<Scratch> file{};
  std::optional<WeightSource> weights{};
};

// One tensor while it is measured.
struct Work {
  MeasuredWeights measured;
  std::uint64_t elements = 0;
  std::uint64_t columns = 0;  // 0 where they are not looked at
  float pivot = 0;
  Buffers::Loan memory;  // all of the reference's weights, if something is to be encoded and there is room
  std::optional<WeightSource> weights;
  std::vector<std::optional<Test>> tests;
  std::vector<MeasuredError> errors;
  std::vector<double> column_energy;
};

struct Unit {
  Work* work = nullptr;
  std::uint64_t first = 0;
  std::uint64_t weights = 0;
  WeightStats stats;
  std::vector<float> column_energy;
  std::vector<MeasuredError> errors;
  Handover handover;
};

void add_errors(Counts& to, int exponent, std::uint64_t count) {
  const auto at = std::lower_bound(to.errors.begin(), to.errors.end(), std::pair(exponent, std::uint64_t{0}));
  if (at != to.errors.end() && at->first == exponent)
    at->second += count;
  else
    to.errors.insert(at, {exponent, count});
}

void add(Counts& to, const Counts& from) {
  to.codes.resize(std::max(to.codes.size(), from.codes.size()));
  for (std::size_t i = 0; i < from.codes.size(); ++i) to.codes[i] += from.codes[i];
  for (const auto& [exponent, count] : from.errors) add_errors(to, exponent, count);
  to.exact += from.exact;
}

void count_errors(std::span<const float> reference, std::span<const float> test, Counts& counts) {
  std::array<std::uint32_t, 256> found{};  // by exponent, which is how fp32 stores it
  for (std::size_t i = 0; i < reference.size(); ++i)
    ++found[std::bit_cast<std::uint32_t>(test[i] - reference[i]) << 1 >> 24];
  counts.exact += found[0];  // with the subnormal ones, which are as good as none
  for (std::size_t e = 1; e < 255; ++e)
    if (found[e] != 0) add_errors(counts, static_cast<int>(e) - 127, found[e]);
}

void count_codes(std::span<const std::byte> packed, std::size_t weights, Counts& counts) {
  std::array<std::uint32_t, 256> pairs{};
  for (const std::byte pair : packed) ++pairs[static_cast<std::uint8_t>(pair)];
  counts.codes.resize(16);
  for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
    counts.codes[pair >> 4] += pairs[pair];
    counts.codes[pair & 15] += pairs[pair];
  }
  if (weights % 2 != 0) --counts.codes[static_cast<std::uint8_t>(packed.back()) & 15];  // nobody's
}

class Measuring {
 public:
  Measuring(const Reader& reference, std::span<const Candidate> candidates, const MeasureOptions& options,
            Progress& progress)
      : in_(reference), candidates_(candidates), options_(options), progress_(progress), reference_(reference) {
    result_.name = reference.path().string();
    for (std::size_t t = 0; t < reference.tensors().size(); ++t) result_.bytes += reference.tensors().bytes(t);
    bool slices = false;
    for (const Candidate& candidate : candidates) {
      stored_.emplace_back();
      MeasuredCandidate& measured = result_.candidates.emplace_back();
      measured.name = candidate.name;
      if (candidate.checkpoint != nullptr) {
        stored_.back().emplace(*candidate.checkpoint);
        slices = true;
        for (std::size_t t = 0; t < candidate.checkpoint->tensors().size(); ++t)
          measured.bytes += candidate.checkpoint->tensors().bytes(t);
        views_.emplace_back();
      } else {
        measured.bytes = candidate.plan->stored_bytes();
        views_.push_back(index_by_source(*candidate.plan));
      }
      CodecOptions codec_options = candidate.plan ? candidate.plan->recipe.options : CodecOptions{};
      codec_options.sums_errors = false;
      codecs_.emplace_back(codec_options);
    }
    const bool quantized = is_quantized();
    for (const Candidate& candidate : candidates)
      if (quantized && candidate.plan)
        throw Error(Errc::bad_input, fmt::format("{}: is quantized already: only plain weights can be converted to {}",
                                                 printable(result_.name), printable(candidate.name)));
    if (slices && !quantized && has_matrix()) {
      everything_ = make_plan(in_, quantize_everything());
      everything_by_source_ = index_by_source(*everything_);
    }
    plan_memory();
  }

  Measurement run() && {
    std::optional<tbb::global_control> allow;
    if (static_cast<int>(threads_) > tbb::info::default_concurrency())
      allow.emplace(tbb::global_control::max_allowed_parallelism, threads_);
    tbb::task_arena arena(static_cast<int>(threads_));
    arena.execute([this] { run_pipeline(); });
    in_.check_unchanged();
    for (const Candidate& candidate : candidates_)
      if (candidate.checkpoint != nullptr) candidate.checkpoint->check_unchanged();
    return std::move(result_);
  }

 private:
  // The names, slices and transpositions that any quantization could give the tensors of the reference.
  static Recipe quantize_everything() {
    Recipe recipe;
    recipe.to = "nf4";
    recipe.rules.push_back({".*", "nf4"});
    recipe.allow_nibble_only = true;
    return recipe;
  }

  [[nodiscard]] bool has_matrix() const {
    const TensorList& tensors = in_.tensors();
    for (std::size_t t = 0; t < tensors.size(); ++t)
      if (tensors.shape(t).size() >= 2 && is_weight_type(tensors.dtype(t))) return true;
    return false;
  }

  [[nodiscard]] bool is_quantized() const {
    for (std::size_t t = 0; t < reference_.size(); ++t)
      if (reference_[t].quantized()) return true;
    return false;
  }

  // Where the planned tensors of each source begin: they are in the order of the input.
  static std::vector<std::uint32_t> index_by_source(const Plan& plan) {
    std::vector<std::uint32_t> begin{0};
    for (std::size_t p = 0; p < plan.tensors.size(); ++p)
      while (begin.size() <= plan.tensors[p].source) begin.push_back(static_cast<std::uint32_t>(p));
    begin.push_back(static_cast<std::uint32_t>(plan.tensors.size()));
    return begin;
  }
  template <class F>
  static void for_each_view(const Plan& plan, const std::vector<std::uint32_t>& index, std::size_t source, F&& f) {
    if (source + 1 >= index.size()) return;
    for (std::size_t p = index[source]; p < plan.tensors.size() && plan.tensors[p].source == source; ++p)
      f(plan.tensors[p]);
  }

  void plan_memory() {
    threads_ = options_.resources.threads != 0 ? options_.resources.threads : default_threads();
    const std::uint64_t limit = options_.resources.max_memory;
    Needs needs = needs_of(reference_);
    const std::uint64_t per_error = bytes_per_error + (options_.counts ? bytes_per_counts : 0);
    std::uint64_t results = reference_.size();
    std::uint64_t names = name_bytes(in_.tensors());
    const auto add_plan = [&](const Plan& plan) {
      const std::uint64_t own_names = name_bytes(plan.tensors.infos());
      needs.lists += bytes_per_planned * plan.tensors.size() + own_names;
      results = std::max<std::uint64_t>(results, plan.tensors.size());
      names = std::max(names, own_names);
    };
    if (everything_) add_plan(*everything_);
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      const Needs own = stored_[c] ? needs_of(*stored_[c]) : needs_of(*candidates_[c].plan, codecs_[c]);
      needs.lists += own.lists;
      needs.decoders += own.decoders;
      needs.encoders = std::max(needs.encoders, own.encoders);
      needs.opening = std::max(needs.opening, own.opening);
      if (candidates_[c].plan) add_plan(*candidates_[c].plan);
    }
    std::uint64_t columns = 0;
    for (std::size_t t = 0; t < in_.tensors().size(); ++t)
      if (const auto shape = in_.tensors().shape(t); shape.size() == 2 && shape[1] <= most_columns)
        columns = std::max(columns, shape[1]);

    std::uint64_t fixed = program_bytes + needs.lists + decoder_copies * needs.decoders + needs.encoders;
    fixed += results * (bytes_per_tensor + candidates_.size() * per_error) + 2 * names;
    // Weights of up to 8 bytes, for every candidate up to 4 as they are read and as many as they were encoded; and the
    // sums of columns, of a unit and of its tensor.
    const std::uint64_t token =
        unit_weights * (8 + 8 * candidates_.size()) + columns * (sizeof(float) + sizeof(double));
    tokens_ = threads_ + std::size_t{1};
    while (tokens_ > 1 && fixed + tokens_ * token > limit) --tokens_;
    fixed = std::max(fixed + tokens_ * token, program_bytes + needs.opening);
    if (fixed > limit)
      throw Error(Errc::no_space, fmt::format("measuring needs {:.1f} MB of memory, --max-memory allows {:.1f} MB",
                                              static_cast<double>(fixed) / 1e6, static_cast<double>(limit) / 1e6));
    result_.tensors.reserve(results);  // touched as it is filled
    for (MeasuredCandidate& candidate : result_.candidates) candidate.tensors.reserve(results);
    scratch_bytes_ = (limit - fixed) / 2;  // the tensor before may be in work still
  }

  struct Needs {
    std::uint64_t lists = 0;
    std::uint64_t opening = 0;
    std::uint64_t decoders = 0;  // the largest
    std::uint64_t encoders = 0;
  };

  static std::uint64_t name_bytes(const TensorList& tensors) {
    std::uint64_t bytes = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) bytes += tensors.name(t).size();
    return bytes;
  }

  static Needs needs_of(const StoredWeights& stored) {
    const TensorList& parts = stored.reader().tensors();
    const std::uint64_t names = name_bytes(parts);
    Needs needs{.lists = bytes_per_part * parts.size() + names,
                .opening = bytes_per_opened * parts.size() + opened_names * names};
    for (std::size_t t = 0; t < stored.size(); ++t) {
      const StoredWeights::Tensor tensor = stored[t];
      needs.decoders = std::max(needs.decoders, tensor.bytes - parts.bytes(tensor.stored.parts.front()));
    }
    return needs;
  }

  static Needs needs_of(const Plan& plan, Codecs& codecs) {
    Needs needs;
    for (const PlannedTensor& tensor : plan.tensors) {
      const Codec& codec = codecs[tensor.codec];
      needs.decoders = std::max(needs.decoders, tensor.stored_bytes - codec.parts(tensor.info).front().bytes());
      std::uint64_t encoder = std::min(codec.scratch_bytes(tensor.info), finish_bytes);
      if (codec.chunking(tensor.info, unit_weights).scan) encoder += bytes_per_scanned_row * tensor.info.shape.at(0);
      needs.encoders = std::max(needs.encoders, encoder);
    }
    return needs;
  }

  static std::unique_ptr<Scratch> make_scratch(std::uint64_t bytes, bool fits) {
    if (fits) return std::make_unique<MemoryScratch>(bytes);
    return make_file_scratch(std::filesystem::temp_directory_path());
  }

  // A view of a tensor of the reference, and what every candidate has for it.
  struct Row {
    PlannedTensor view;
    std::vector<std::optional<PlannedTensor>> planned;
    std::vector<std::optional<std::size_t>> stored;
  };

  Row& row_of(std::vector<Row>& rows, const PlannedTensor& view) {
    for (Row& row : rows)
      if (row.view.info.name == view.info.name && row.view.transposed == view.transposed &&
          row.view.source_offset == view.source_offset)
        return row;
    Row& row = rows.emplace_back();
    row.view = view;
    row.planned.resize(candidates_.size());
    row.stored.resize(candidates_.size());
    return row;
  }

  std::vector<Row> rows_of(std::size_t tensor) {
    const StoredWeights::Tensor reference = reference_[tensor];
    std::vector<Row> rows;
    const DType dtype = reference.stored.info.dtype;
    if (!is_weight_type(dtype)) {
      if (traits(dtype).name.starts_with("F"))  // numbers, but none that this decodes
        for (MeasuredCandidate& candidate : result_.candidates) candidate.missing.push_back(reference.stored.info.name);
      return rows;
    }
    PlannedTensor whole;
    whole.info = reference.stored.info;
    whole.source = reference.stored.parts.front();
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      bool any = false;
      if (candidates_[c].plan) {
        for_each_view(*candidates_[c].plan, views_[c], whole.source, [&](const PlannedTensor& planned) {
          row_of(rows, planned).planned[c] = planned;
          any = true;
        });
      } else {
        any = match_stored(rows, whole, c);
      }
      if (!any) result_.candidates[c].missing.push_back(whole.info.name);
    }
    return rows;
  }

  bool match_stored(std::vector<Row>& rows, const PlannedTensor& whole, std::size_t c) {
    const StoredWeights& stored = *stored_[c];
    const auto match = [&](const PlannedTensor& view, std::size_t tensor) {
      const TensorInfo found = stored[tensor].stored.info;
      if (found.shape != view.info.shape || !is_weight_type(found.dtype)) return false;
      row_of(rows, view).stored[c] = tensor;
      return true;
    };
    const auto same_name = stored.find(whole.info.name);
    std::vector<std::string> lacking;
    bool any = false;
    if (everything_ && !(same_name && !stored[*same_name].quantized()))
      for_each_view(*everything_, everything_by_source_, whole.source, [&](const PlannedTensor& view) {
        const auto tensor = stored.find(view.info.name);
        if (tensor && match(view, *tensor))
          any = true;
        else
          lacking.push_back(view.info.name);
      });
    if (!any) return same_name && match(whole, *same_name);
    std::vector<std::string>& missing = result_.candidates[c].missing;
    missing.insert(missing.end(), lacking.begin(), lacking.end());
    return true;
  }

  // The next tensor, or nothing.
  Work* next_work() {
    while (rows_.empty()) {
      if (next_tensor_ == reference_.size()) return nullptr;
      for (Row& row : rows_of(next_tensor_)) rows_.push_back(std::move(row));
      ++next_tensor_;
    }
    const Row row = std::move(rows_.front());
    rows_.pop_front();
    auto work = std::make_unique<Work>();
    const PlannedTensor& view = row.view;
    work->measured.info = view.info;
    const Place place = place_of(view.info.name);
    work->measured.kind = place.kind;
    work->measured.layer = place.layer;
    work->elements = view.info.elements();
    const std::size_t tensor = *reference_.find(in_.tensors().name(view.source));
    const StoredWeights::Tensor stored = reference_[tensor];
    if (stored.quantized()) {
      work->weights.emplace(open_weights(reference_, stored));
      work->measured.bytes = stored.bytes;
    } else {
      work->weights.emplace(open_weights(in_, view, buffers_));
      work->measured.bytes = view.info.bytes();
    }
    if (view.info.shape.size() == 2 && view.info.shape[1] <= most_columns) work->columns = view.info.shape[1];
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

  // Whether the weights and what they are encoded to have room, twice: the tensor before may be in work still.
  bool fits_memory(const Row& row, std::uint64_t bytes) {
    bool any = false;
    for (std::size_t c = 0; c < candidates_.size(); ++c) {
      if (!row.planned[c]) continue;
      const Codec& codec = codecs_[c][row.planned[c]->codec];
      const std::vector<TensorInfo> parts = codec.parts(row.planned[c]->info);
      if (parts.size() == 1 && parts.front().dtype == row.view.info.dtype) continue;
      bytes += parts.front().bytes() + codec.scratch_bytes(row.planned[c]->info);
      any = true;
    }
    return any && bytes <= scratch_bytes_;
  }

  // Calls f(first, n) for ranges of weights, on all threads.
  template <class F> void for_each_range(std::uint64_t weights, std::uint64_t size, F&& f) const {
    const std::uint64_t ranges = weights / size + (weights % size != 0 ? 1 : 0);
    const auto call = [&](std::uint64_t range) {
      if (progress_.cancelled()) throw Error(Errc::interrupted, "interrupted");
      f(range * size, std::min(size, weights - range * size));
    };
    // Isolated: a thread that waits must not begin a unit of the pipeline meanwhile.
    tbb::this_task_arena::isolate([&] { tbb::parallel_for(std::uint64_t{0}, ranges, call); });
  }

  void load(Work& work) {
    WeightSource& weights = *work.weights;
    work.memory = buffers_.lend(weights.bytes(0, work.elements), weights.position(0));
    const std::span<std::byte> all = work.memory.bytes();
    for_each_range(work.elements, unit_weights, [&](std::uint64_t first, std::uint64_t n) {
      weights.read(first, all.subspan(weights.bytes(0, first), weights.bytes(first, n)));
    });
    weights.set_memory(all);
  }

  float pivot_of(const Work& work) {
    const std::size_t n = std::min<std::uint64_t>(work.elements, tile_weights);
    if (n == 0) return 0;
    std::vector<std::byte> raw(work.weights->bytes(0, n));
    work.weights->read(0, raw);
    alignas(64) std::array<float, tile_weights> tile;
    return choose_pivot(work.weights->decode(0, raw, 0, n, tile));
  }

  Test open_stored(std::size_t c, std::size_t tensor) const {
    const StoredWeights::Tensor stored = (*stored_[c])[tensor];
    Test test{.codec = std::string(stored.quantized() ? stored.codec : traits(stored.stored.info.dtype).torch_name),
              .bytes = stored.bytes};
    const auto bnb = make_codec(stored.codec)->bnb_config();
    test.has_codes = stored.quantized() && bnb && bnb->bits == 4;
    test.weights.emplace(open_weights(*stored_[c], stored));
    return test;
  }

  // What a conversion would write in place of a tensor.
  Test encode(std::size_t c, const PlannedTensor& planned, const Work& work, bool fits) {
    const Codec& codec = codecs_[c][planned.codec];
    Test test{.codec = std::string(planned.codec), .bytes = planned.stored_bytes};
    const std::vector<TensorInfo> parts = codec.parts(planned.info);
    if (parts.size() == 1) test.codec = traits(parts.front().dtype).torch_name;
    if (parts.size() == 1 && parts.front().dtype == planned.info.dtype) {
      test.is_reference = true;
      return test;
    }

    if (fits)
      test.memory = buffers_.lend(parts.front().bytes(), 0);
    else
      test.file = make_file_scratch(std::filesystem::temp_directory_path());
    const std::unique_ptr<Scratch> absmax = make_scratch(codec.scratch_bytes(planned.info), fits);
    const Chunking chunking = codec.chunking(planned.info, unit_weights);
    const std::unique_ptr<Encoder> encoder = codec.encoder(planned.info, chunking, *absmax);
    const WeightSource encoded(parts.front(), work.elements, nullptr, {});
    Findings findings;
    const auto encode_range = [&](std::uint64_t first, std::uint64_t n, std::span<const std::byte> in) {
      Buffers::Loan loan;
      if (!fits) loan = buffers_.lend(encoded.bytes(first, n), 0);
      const std::span<std::byte> out =
          fits ? test.memory.bytes().subspan(encoded.bytes(0, first), encoded.bytes(first, n)) : loan.bytes();
      const Findings found = encoder->encode(first, in, out);
      if (!fits) test.file->write(encoded.bytes(0, first), out);
      if (found == Findings{}) return;
      const std::scoped_lock lock(mutex_);
      findings.add(found);
    };
    for (const bool scan : {true, false}) {
      if (scan && !chunking.scan) continue;
      for_each_range(work.elements, chunking.weights, [&](std::uint64_t first, std::uint64_t n) {
        Buffers::Loan loan;
        std::span<const std::byte> in;
        if (work.weights->is_in_memory()) {
          in = work.weights->memory(first, n);
        } else {
          loan = buffers_.lend(work.weights->bytes(first, n), work.weights->position(first));
          work.weights->read(first, loan.bytes());
          in = loan.bytes();
        }
        scan ? encoder->scan(first, in) : encode_range(first, n, in);
      });
    }
    // As a conversion does it: what is not finite stays as it is, but for F64, which becomes fp32.
    if (planned.quantized && findings.nan + findings.inf + findings.overflow > 0 &&
        candidates_[c].plan->recipe.nonfinite == Nonfinite::keep) {
      const DType dtype = planned.info.dtype == DType::f64 ? DType::f32 : planned.info.dtype;
      Test kept{.codec = std::string(traits(dtype).torch_name),
                .bytes = byte_count(dtype, work.elements),
                .is_reference = true};
      result_.candidates[c].bytes += kept.bytes - planned.stored_bytes;
      return kept;
    }
    KeptParts rest(parts.size());
    encoder->finish(rest);
    const auto bnb = codec.bnb_config();
    test.has_codes = bnb && bnb->bits == 4;
    std::unique_ptr<const Decoder> decoder;
    if (parts.size() > 1) decoder = codec.decoder(planned.info, rest.spans());
    test.weights.emplace(
        parts.front(), work.elements, std::move(decoder),
        [from = test.file.get()](std::uint64_t offset, std::span<std::byte> out) { from->read(offset, out); });
    if (fits) test.weights->set_memory(test.memory.bytes());
    return test;
  }

  void run_pipeline() {
    std::vector<Unit> ring(tokens_);
    Handover cutting;
    Handover accounting;
    cutting.give();
    accounting.give();
    std::size_t turn = 0;
    std::uint64_t first = 0;
    Work* work = nullptr;
    const auto cut = [&](tbb::flow_control& control) -> Unit* {
      const Turn turn_to_cut(cutting);
      if (progress_.cancelled()) throw Error(Errc::interrupted, "interrupted");
      if (work == nullptr) work = next_work();
      if (work == nullptr) {
        control.stop();
        return nullptr;
      }
      Unit& unit = ring[turn++ % ring.size()];
      const Turn turn_with_unit(unit.handover);
      unit.work = work;
      unit.first = first;
      unit.weights = std::min(unit_weights, work->elements - first);
      first += unit.weights;
      if (first == work->elements) {
        work = nullptr;
        first = 0;
      }
      return &unit;
    };
    const auto compare_all = [&](Unit* unit) {
      const Turn turn_with_unit(unit->handover);
      look_at(*unit);
      return unit;
    };
    const auto account = [&](Unit* unit) {
      const Turn turn_to_account(accounting);
      const Turn turn_with_unit(unit->handover);
      add_up(*unit);
    };
    tbb::parallel_pipeline(tokens_, tbb::make_filter<void, Unit*>(tbb::filter_mode::serial_in_order, cut) &
                                        tbb::make_filter<Unit*, Unit*>(tbb::filter_mode::parallel, compare_all) &
                                        tbb::make_filter<Unit*, void>(tbb::filter_mode::serial_in_order, account));
    cutting.take();
    accounting.take();
  }

  // The bytes of a unit, in memory already or in `loan`.
  std::span<const std::byte> read(const WeightSource& weights, const Unit& unit, Buffers::Loan& loan) {
    if (weights.is_in_memory()) return weights.memory(unit.first, unit.weights);
    loan = buffers_.lend(weights.bytes(unit.first, unit.weights), weights.position(unit.first));
    weights.read(unit.first, loan.bytes());
    return loan.bytes();
  }

  void look_at(Unit& unit) {
    const Work& work = *unit.work;
    Buffers::Loan loan;
    const std::span<const std::byte> raw = read(*work.weights, unit, loan);
    std::vector<Buffers::Loan> test_loans(work.tests.size());
    std::vector<std::span<const std::byte>> test_raw(work.tests.size());
    for (std::size_t c = 0; c < work.tests.size(); ++c)
      if (work.tests[c] && !work.tests[c]->is_reference)
        test_raw[c] = read(*work.tests[c]->weights, unit, test_loans[c]);

    unit.stats = {};
    unit.stats.pivot = work.pivot;
    unit.errors.assign(work.tests.size(), {});
    unit.column_energy.assign(work.columns, 0.0f);
    alignas(64) std::array<float, tile_weights> tile;
    alignas(64) std::array<float, tile_weights> test_tile;
    for (std::uint64_t at = unit.first; at < unit.first + unit.weights; at += tile_weights) {
      const std::size_t n = std::min<std::uint64_t>(tile_weights, unit.first + unit.weights - at);
      const std::span<const float> weights = work.weights->decode(unit.first, raw, at, n, tile);
      const WeightStats stats = describe(weights, work.pivot);
      unit.stats.add(stats);
      if (work.columns > 0) add_columns(weights, at % work.columns, stats.count == n, unit.column_energy);
      for (std::size_t c = 0; c < work.tests.size(); ++c) {
        if (!work.tests[c]) continue;
        const Test& test = *work.tests[c];
        const std::span<const float> decoded =
            test.is_reference ? weights : test.weights->decode(unit.first, test_raw[c], at, n, test_tile);
        MeasuredError& error = unit.errors[c];
        compare(weights, decoded, at, error.stats);
        if (!options_.counts) continue;
        count_errors(weights, decoded, error.counts);
        if (test.has_codes) count_codes(test.weights->stored(unit.first, test_raw[c], at, n), n, error.counts);
      }
    }
  }

  static void add_columns(std::span<const float> weights, std::uint64_t column, bool finite, std::span<float> energy) {
    for (std::size_t begin = 0; begin < weights.size();) {
      const std::size_t n = std::min<std::uint64_t>(weights.size() - begin, energy.size() - column);
      const auto part = weights.subspan(begin, n);
      const auto sums = energy.subspan(column, n);
      if (finite)
        add_squares(part, sums);
      else
        for (std::size_t i = 0; i < n; ++i) sums[i] += std::isfinite(part[i]) ? part[i] * part[i] : 0;
      begin += n;
      column = 0;
    }
  }

  void add_up(const Unit& unit) {
    Work& work = *unit.work;
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

  void finish(Work& work) {
    if (work.columns > 0 && work.elements > 0) find_outliers(work);
    result_.tensors.push_back(std::move(work.measured));
    for (std::size_t c = 0; c < work.tests.size(); ++c) {
      auto& to = result_.candidates[c].tensors.emplace_back();
      if (!work.tests[c]) continue;
      to = std::move(work.errors[c]);
      to->codec = work.tests[c]->codec;
      to->bytes = work.tests[c]->bytes;
    }
  }

  static void find_outliers(Work& work) {
    std::vector<double> sorted = work.column_energy;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    const double least = outlier_factor * outlier_factor * *middle;
    double all = 0;
    double outliers = 0;
    std::uint64_t count = 0;
    for (const double energy : work.column_energy) {
      all += energy;
      if (*middle == 0 || energy < least) continue;
      outliers += energy;
      ++count;
    }
    work.measured.outlier_columns = count;
    work.measured.outlier_energy = all == 0 ? 0 : outliers / all;
  }

  const Reader& in_;
  std::span<const Candidate> candidates_;
  const MeasureOptions& options_;
  Progress& progress_;
  StoredWeights reference_;
  std::deque<std::optional<StoredWeights>> stored_;  // of candidates that are checkpoints
  std::vector<std::vector<std::uint32_t>> views_;    // of those that are plans
  std::deque<Codecs> codecs_;
  std::optional<Plan> everything_;
  std::vector<std::uint32_t> everything_by_source_;

  unsigned threads_ = 1;
  std::size_t tokens_ = 1;
  std::uint64_t scratch_bytes_ = 0;
  Buffers buffers_;

  std::size_t next_tensor_ = 0;
  std::deque<Row> rows_;
  std::mutex mutex_;                           // of what follows, and of findings
  std::deque<std::unique_ptr<Work>> in_work_;  // in the order of the input
  std::uint64_t done_ = 0;
  Measurement result_;
};

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

double Counts::entropy() const {
  std::uint64_t total = 0;
  for (const std::uint64_t count : codes) total += count;
  if (total == 0) return std::numeric_limits<double>::quiet_NaN();
  double bits = 0;
  for (const std::uint64_t count : codes) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / static_cast<double>(total);
    bits -= p * std::log2(p);
  }
  return bits;
}

Place place_of(std::string_view name) {
  if (name.ends_with(".weight")) name.remove_suffix(std::string_view(".weight").size());
  Place place;
  while (!name.empty()) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string_view piece = name.substr(0, dot);
    name.remove_prefix(std::min(dot + 1, name.size()));
    if (is_number(piece)) {
      if (!place.layer) {
        place.layer = std::stoull(std::string(piece));
        place.kind.clear();  // what stands before a layer's number is the same for all kinds
      }
      continue;
    }
    if (!place.kind.empty()) place.kind += '.';
    place.kind += piece;
  }
  return place;
}

Measurement measure(const Reader& reference, std::span<const Candidate> candidates, const MeasureOptions& options,
                    Progress& progress) {
  return Measuring(reference, candidates, options, progress).run();
}

}  // namespace nibble
