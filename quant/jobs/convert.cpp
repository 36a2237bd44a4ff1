// The pipeline. Every size follows from the headers, so a shard is laid out before its first weight is read; after
// that batches go straight from pread through a codec to their final place, on as many threads as there are, with
// a fixed number of batches in memory:
//
//   cut (serial) -> read, encode (parallel) -> hash, count, hand to the disk, finish the tensor (serial, in order)
//
// A batch is what is written at once. It is read and encoded chunk by chunk, so that what the encoder looks at is in
// cache, and the disk is asked for large requests all the same.
//
// The serial stages touch next to nothing: a batch is hashed where it is encoded, but for the rest of a hash chunk that
// an earlier batch began; the disk fetches a batch from the buffer it was encoded into.
//
// One file, because the stages, and a shard's restart when a tensor turns out not to be finite, share the state of one
// conversion and can only be judged together.

#include "nibble/convert.hpp"

#include <fmt/format.h>
#include <oneapi/tbb/parallel_pipeline.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/handover.hpp"
#include "core/spare_scratch.hpp"
#include "core/workers.hpp"
#include "core/xxh3.hpp"
#include "nibble/buffers.hpp"
#include "nibble/device.hpp"
#include "nibble/error.hpp"
#include "nibble/measure.hpp"
#include "quant/jobs/manifest.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/nonfinite.hpp"
#include "quant/stream/shard_parts.hpp"
#include "quant/stream/source.hpp"

namespace nibble {
namespace {

// A tensor while it is converted.
struct Work {
  std::size_t index = 0;  // in the plan
  PlannedTensor tensor;
  std::size_t first_part = 0;  // in the shard
  const Codec* codec = nullptr;
  std::optional<Source> source;
  std::vector<Part> parts;
  Chunking chunking;                // into chunks
  std::uint64_t batch_weights = 0;  // a whole number of chunks
  std::uint64_t elements = 0;
  std::unique_ptr<Scratch> scratch;
  std::unique_ptr<Encoder> encoder;
  Xxh3Chunks hashes;  // of the codes
  Findings findings;
  ErrorSums error;

  // Where a chunk that starts at `weight` begins among the codes.
  [[nodiscard]] std::uint64_t stored_offset(std::uint64_t weight) const {
    return codec->code_bytes(tensor.info, weight);
  }
};

struct Batch {
  Work* work = nullptr;
  std::uint64_t first = 0;
  std::uint64_t weights = 0;
  std::uint64_t out_offset = 0;
  Findings findings;
  std::vector<ErrorSums> errors;
  Buffers::Loan out;
  Xxh3Chunks hashes;  // of `out`
  Handover handover;  // last, so that it ends first
};

class Conversion {
 public:
  Conversion(const Reader& in, Plan plan, Writer& out, const Resources& resources, Progress& progress)
      : in_(in),
        stored_(in, source_schemes()),
        out_(out),
        progress_(progress),
        memory_(plan_memory(plan, resources)),
        codings_(plan.recipe, resources.device),
        manifest_(plan, out),
        resources_(resources),
        buffers_(chunk_memory(resources.device)) {
    report_.plan = std::move(plan);
    total_ = report_.plan.source_bytes();
  }

  Report run() && {
    if (report_.plan.recipe.error_report == ErrorReport::full) measure_first();
    Workers workers(memory_.threads);
    workers.execute([this] {
      for (std::size_t shard = 0; shard < report_.plan.shard_ends.size(); ++shard) convert_shard(shard);
    });
    in_.check_unchanged();
    add_warnings();
    manifest_.end(report_);
    // Not in the manifest, which says the same wherever codecs ran.
    if (std::string warning = workers.warning(); !warning.empty()) report_.warnings.push_back(std::move(warning));
    if (resources_.device != nullptr)
      for (std::string& warning : resources_.device->warnings()) report_.warnings.push_back(std::move(warning));
    first_part_ = {};
    finish();
    return std::move(report_);
  }

 private:
  Plan& plan() { return report_.plan; }

  static bool is_kept(const MeasuredWeights& tensor, const MeasuredError& error) {
    return error.dtype == tensor.info.dtype;
  }

  // The same bytes are made twice: what measure() finds is what will be written.
  void measure_first() {
    const Candidate candidate{{}, nullptr, plan()};
    Measurement measurement = measure(in_, std::span(&candidate, 1), {.resources = resources_}, progress_);
    std::vector<std::optional<MeasuredError>>& errors = measurement.candidates.front().tensors;
    for (std::size_t t = 0; t < errors.size(); ++t)
      if (errors[t] && !is_kept(measurement.tensors[t], *errors[t]))
        measured_.emplace(std::move(measurement.tensors[t].info.name), std::move(*errors[t]));
  }

  const Codec& codec(const CodecSpec& spec) { return *codings_[spec].codec; }
  const Quantizer& quantizer(const CodecSpec& spec) { return *codings_[spec].quantizer; }

  [[nodiscard]] std::size_t shard_begin(std::size_t shard) const {
    return shard == 0 ? 0 : report_.plan.shard_ends[shard - 1];
  }

  ShardParts parts_of(std::size_t shard) {
    return {report_.plan.tensors, shard_begin(shard), report_.plan.shard_ends[shard], codings_};
  }

  void finish() {
    Finish finish{quantization_config(report_.plan), std::string(traits(report_.plan.dtype).torch_name), {}};
    // Only an index of several shards names all parts once more.
    std::deque<ShardParts> shards;
    if (report_.plan.shard_ends.size() > 1)
      for (std::size_t shard = 0; shard < report_.plan.shard_ends.size(); ++shard)
        finish.shards.push_back(&shards.emplace_back(parts_of(shard)));
    out_.complete(finish);
    for (std::string& warning : out_.warnings()) report_.warnings.push_back(std::move(warning));
    progress_.ready(report_);
    out_.commit();
  }

  // A tensor that turns out non-finite after its place was fixed restarts its shard with that tensor kept.
  void convert_shard(std::size_t shard) {
    const std::uint64_t done_before = done_;
    const Manifest::Mark manifest_before = manifest_.mark();
    const Findings findings_before = report_.findings;
    const ByOutcome<Totals> totals_before = report_.totals;
    const WorstTensor worst_before = report_.worst;
    while (true) {
      found_.erase(found_.lower_bound(shard_begin(shard)), found_.end());
      encode_shard(shard);
      if (!keep_nonfinite(shard)) break;
      done_ = done_before;
      manifest_.rewind(manifest_before);
      report_.findings = findings_before;
      report_.totals = totals_before;
      report_.worst = worst_before;
    }
    out_.end();
  }

  void encode_shard(std::size_t shard) {
    const std::size_t begin = shard_begin(shard);
    const std::size_t end = plan().shard_ends[shard];
    shard_ = shard;
    {
      ShardParts parts = parts_of(shard);
      out_.begin(shard, parts);
      first_part_ = parts.take_first_parts();
    }

    // A tensor that is read twice is a pipeline of its own; all between two such tensors are one.
    for (std::size_t next = begin; next < end;) {
      if (chunking(plan().tensors[next]).scan) {
        Work* const work = add_work(next++, begin);
        for (const bool scan : {true, false})
          run_pipeline([&, given = false]() mutable { return std::exchange(given, true) ? nullptr : work; }, scan);
      } else {
        run_pipeline([&] { return next_work(next, begin, end); }, false);
      }
    }
  }

  Chunking chunking(const PlannedTensor& tensor) {
    const std::uint64_t limit = memory_.chunk_bytes * (tensor.transposed ? transposed_chunk : 1);
    return quantizer(tensor.codec).chunking(tensor.info, limit * 8 / traits(tensor.info.dtype).bits);
  }

  Work* add_work(std::size_t index, std::size_t begin) {
    PlannedTensor tensor = plan().tensors[index];
    auto work = std::make_unique<Work>();
    work->index = index;
    work->first_part = first_part_[index - begin];
    work->codec = &codec(tensor.codec);
    work->source.emplace(open_source(stored_, tensor, buffers_));
    work->parts = stored_parts(*work->codec, tensor.info);
    work->elements = tensor.info.elements();
    work->chunking = chunking(tensor);
    work->scratch = make_scratch(quantizer(tensor.codec).scratch_bytes(tensor.info));
    work->encoder = quantizer(tensor.codec).encoder(tensor.info, work->chunking, *work->scratch);
    work->tensor = std::move(tensor);
    const std::uint64_t chunk = work->stored_offset(std::min(work->chunking.weights, work->elements));
    work->batch_weights =
        work->chunking.weights * std::max<std::uint64_t>(memory_.batch_bytes / std::max<std::uint64_t>(chunk, 1), 1);
    const std::scoped_lock lock(mutex_);
    return in_work_.emplace_back(std::move(work)).get();
  }

  // Two tensors are in work at a time when one ends and the next begins, but memory that is not written yet takes none.
  std::unique_ptr<Scratch> make_scratch(std::uint64_t bytes) {
    if (bytes > memory_.scratch_bytes) return out_.make_scratch();
    const std::scoped_lock lock(mutex_);
    return spare_.make(bytes);
  }

  // The next tensor of a pipeline; nothing at the end, or before one that has to be scanned.
  Work* next_work(std::size_t& next, std::size_t begin, std::size_t end) {
    if (next == end || chunking(plan().tensors[next]).scan) return nullptr;
    return add_work(next++, begin);
  }

  // `source` yields the tensors in turn. Batches live in a ring: those in flight are the latest ones, since the last
  // stage is in order, so a place is free again when its turn comes.
  template <class Source> void run_pipeline(Source source, bool scan) {
    std::vector<Batch> ring(memory_.tokens);
    Handover cutting;
    Handover accounting;
    std::size_t turn = 0;
    std::uint64_t first = 0;
    Work* work = source();
    cutting.give();
    accounting.give();
    const auto cut = [&](tbb::flow_control& control) -> Batch* {
      const Turn turn_to_cut(cutting);
      if (progress_.cancelled()) throw Error(Errc::interrupted, "interrupted: no output was written");
      if (work == nullptr) {
        control.stop();
        return nullptr;
      }
      Batch& batch = ring[turn++ % ring.size()];
      const Turn turn_with_batch(batch.handover);
      batch.work = work;
      batch.first = first;
      batch.weights = std::min(work->batch_weights, work->elements - first);
      first += batch.weights;
      if (first == work->elements) {
        work = source();
        first = 0;
      }
      return &batch;
    };
    const auto encode = [&](Batch* batch) {
      const Turn turn_with_batch(batch->handover);
      end_finished();
      if (scan)
        for_each_chunk(*batch, [&](std::uint64_t at, std::uint64_t, std::span<const std::byte> weights) {
          batch->work->encoder->scan(at, weights);
        });
      else
        encode_batch(*batch);
      return batch;
    };
    const auto account = [&](Batch* batch) {
      const Turn turn_to_account(accounting);
      const Turn turn_with_batch(batch->handover);
      if (!scan) add(*batch);
      batch->out = {};
    };
    tbb::parallel_pipeline(memory_.tokens,
                           tbb::make_filter<void, Batch*>(tbb::filter_mode::serial_in_order, cut) &
                               tbb::make_filter<Batch*, Batch*>(tbb::filter_mode::parallel, encode) &
                               tbb::make_filter<Batch*, void>(tbb::filter_mode::serial_in_order, account));
    cutting.take();
    accounting.take();
    end_finished();  // before files are flushed
  }

  // Calls f(first, end, weights) for the chunks of a batch, read in turn.
  template <class F> void for_each_chunk(const Batch& batch, F&& f) {
    const Work& work = *batch.work;
    const std::uint64_t last = batch.first + batch.weights;
    for (std::uint64_t first = batch.first; first < last; first += work.chunking.weights) {
      const std::uint64_t end = std::min(first + work.chunking.weights, last);
      Buffers::Loan loan;
      f(first, end, work.source->weights(first, end - first, loan));
    }
  }

  // The codes of a chunk go where its weights stand in the tensor.
  void encode_batch(Batch& batch) {
    const Work& work = *batch.work;
    batch.out_offset = work.stored_offset(batch.first);
    const std::uint64_t size = work.stored_offset(batch.first + batch.weights) - batch.out_offset;
    batch.out = memory_.behind > 0 ? out_.lend(work.first_part, batch.out_offset, size)
                                   : buffers_.lend(size, batch.out_offset);  // not of huge pages
    batch.findings = {};
    batch.errors.clear();
    batch.hashes = Xxh3Chunks(batch.out_offset);
    const bool sums_errors = report_.plan.recipe.error_report != ErrorReport::none;
    for_each_chunk(batch, [&](std::uint64_t first, std::uint64_t end, std::span<const std::byte> weights) {
      const std::uint64_t begin = work.stored_offset(first);
      const std::span<std::byte> out =
          batch.out.bytes().subspan(begin - batch.out_offset, work.stored_offset(end) - begin);
      batch.findings.add(work.encoder->encode(first, weights, out, sums_errors ? &batch.errors : nullptr));
      batch.hashes.append(out);  // while it is in cache
    });
    if (memory_.behind == 0) out_.write(work.first_part, batch.out_offset, batch.out.bytes());
  }

  void add(Batch& batch) {
    Work& work = *batch.work;
    work.hashes.append(batch.out.bytes(), std::move(batch.hashes));
    if (memory_.behind > 0) out_.write_behind(work.first_part, batch.out_offset, std::move(batch.out));
    work.findings.add(batch.findings);
    for (const ErrorSums& error : batch.errors) work.error.add(error);
    done_ += byte_count(work.tensor.info.dtype, batch.weights);
    const bool last = batch.first + batch.weights == work.elements;
    if (last) finish(work);
    progress_.advance(work.tensor.info.name, done_, total_);
    if (!last) return;
    const std::scoped_lock lock(mutex_);
    finished_ = std::move(in_work_.front());
    in_work_.pop_front();
  }

  // Beside what other threads do: giving memory back takes a while.
  void end_finished() {
    std::unique_ptr<Work> finished;
    const std::scoped_lock lock(mutex_);
    finished.swap(finished_);
    if (finished) {
      finished->encoder.reset();
      spare_.keep(std::move(finished->scratch));
    }
  }

  void finish(Work& work) {
    const Findings& found = work.findings;
    report_.findings.add(found);
    if (found.nan + found.inf + found.overflow > 0) found_[work.index] = found;
    refuse(work);
    PartWriter rest(out_, work.first_part, work.parts, memory_.behind > 0 ? memory_.batch_bytes : 0);
    try {
      work.encoder->finish(rest);
      rest.write_own(*work.codec, work.tensor.info);
    } catch (const Error& error) {
      if (error.code() != Errc::bad_input) throw;
      throw Error(error.code(), fmt::format("{}: {}", in_.label_of(work.tensor.source), error.what()), error.remedy());
    }
    // Codecs that only copy have one part, of the type that was there.
    const PlannedTensor& tensor = work.tensor;
    const bool same = work.parts.size() == 1 && work.parts.front().info.dtype == tensor.info.dtype;
    std::vector<Manifest::Part> parts;
    for (std::size_t p = 0; p < work.parts.size(); ++p)
      parts.push_back({std::move(work.parts[p].info), p == 0 ? work.hashes.take() : rest.take_hashes(p)});
    EncodingError error = work.encoder->late_error();
    error.sums.add(work.error);
    const MeasuredError* const full = measured(tensor);
    Totals& totals = report_.totals[outcome_of(tensor.quantized, same)];
    ++totals.tensors;
    totals.weights += work.elements;
    totals.error.add(full != nullptr ? static_cast<const ErrorSums&>(full->stats) : error.sums);
    if (const double sqnr = error.sums.sqnr_db(); sqnr < report_.worst.sqnr_db)
      report_.worst = {tensor.info.name, sqnr};
    manifest_.add(tensor, shard_, found, error.sums.count > 0 ? &error : nullptr, full, parts);
  }

  // What measure() said of a tensor, if it was asked.
  const MeasuredError* measured(const PlannedTensor& tensor) const {
    const auto found = measured_.find(tensor.info.name);
    return found == measured_.end() ? nullptr : &found->second;
  }

  // The findings that the recipe does not allow.
  void refuse(const Work& work) {
    const PlannedTensor& tensor = work.tensor;
    if (const auto why = objection(plan().recipe, tensor, work.findings, work.elements))
      throw Error(
          Errc::bad_input,
          fmt::format("{}: tensor '{}': {}", in_.label_of(tensor.source), printable(tensor.info.name), why->text),
          why->remedy);
  }

  // Marks the shard's tensors that cannot be stored as planned as kept; whether there was any.
  bool keep_nonfinite(std::size_t shard) {
    bool any = false;
    for (auto found = found_.lower_bound(shard_begin(shard)); found != found_.end(); ++found) {
      const PlannedTensor tensor = plan().tensors[found->first];
      const auto instead = codec_instead(plan().recipe, tensor, found->second);
      if (!instead) continue;
      kept_[found->first] = describe(found->second, tensor.codec);
      keep(found->first, tensor, *instead);
      any = true;
    }
    return any;
  }

  void keep(std::size_t index, PlannedTensor tensor, const CodecSpec& instead) {
    tensor.codec = instead;
    tensor.quantized = false;
    tensor.decided_by = DecidedBy::nonfinite;
    const std::string reason = "kept: " + kept_[index];
    tensor.reason = reason;
    if (tensor.transposed) {
      tensor.transposed = false;
      std::swap(tensor.info.shape[0], tensor.info.shape[1]);
    }
    tensor.stored_bytes = stored_bytes(codec(tensor.codec), tensor.info);
    plan().tensors.replace(index, tensor);
  }

  void add_warnings() {
    report_.warnings = plan().warnings;
    std::map<std::size_t, std::string> warnings;  // an F64 that is kept as fp32 was found twice: one for each tensor
    for (const auto& [i, found] : found_) {
      const PlannedTensor tensor = plan().tensors[i];
      warnings[i] = fmt::format("tensor '{}': {}", printable(tensor.info.name), describe(found, plan().recipe, tensor));
    }
    for (const auto& [i, what] : kept_) {
      const PlannedTensor tensor = plan().tensors[i];
      const TensorInfo stored = stored_parts(codec(tensor.codec), tensor.info).front().info;
      warnings[i] =
          fmt::format("tensor '{}' is kept as {}: {}", printable(tensor.info.name), traits(stored.dtype).name, what);
    }
    for (auto& [i, warning] : warnings) report_.warnings.push_back(std::move(warning));
  }

  const Reader& in_;
  StoredWeights stored_;
  Writer& out_;
  Progress& progress_;
  MemoryPlan memory_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  Codings codings_;
  Manifest manifest_;
  Resources resources_;
  std::unordered_map<std::string, MeasuredError> measured_;  // by name, for a full report
  std::size_t shard_ = 0;                                    // in work
  std::map<std::size_t, Findings> found_;                    // the few tensors with NaN, infinities or overflow
  std::map<std::size_t, std::string> kept_;                  // what was found in those of them that are kept
  Buffers buffers_;
  std::vector<std::uint32_t> first_part_;  // of the shard's tensors
  std::mutex mutex_;                       // of the next: tensors are begun and finished on different threads
  std::deque<std::unique_ptr<Work>> in_work_;
  std::unique_ptr<Work> finished_;  // the last one, until there is a thread to end it
  SpareScratch spare_{memory_.spare_bytes > 0};
  Report report_;
};

}  // namespace

void Progress::advance(std::string_view /*tensor*/, std::uint64_t /*done*/, std::uint64_t /*total*/) {}
void Progress::ready(const Report& /*report*/) {}
bool Progress::cancelled() const { return false; }

Report convert(const Reader& in, Plan plan, Writer& out, const Resources& resources, Progress& progress) {
  return Conversion(in, std::move(plan), out, resources, progress).run();
}

}  // namespace nibble
