// The pipeline. Every size follows from the headers, so a shard is laid out before its first weight is read; after that
// batches go straight from pread through a codec to their final offset, on as many threads as there are, with a fixed
// number of batches in memory (quant/stream/pipeline.hpp):
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

#include "quant/jobs/convert/convert.hpp"

#include <fmt/format.h>

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

#include "core/memory/buffers.hpp"
#include "core/memory/spare_scratch.hpp"
#include "core/workers.hpp"
#include "core/xxh3.hpp"
#include "formats/checkpoint.hpp"
#include "nibble/error.hpp"
#include "nibble/measure.hpp"
#include "quant/jobs/convert/fingerprint.hpp"
#include "quant/jobs/convert/finished.hpp"
#include "quant/jobs/convert/manifest.hpp"
#include "quant/quantizers/device.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/conversion_memory.hpp"
#include "quant/stream/encode.hpp"
#include "quant/stream/nonfinite.hpp"
#include "quant/stream/pipeline.hpp"
#include "quant/stream/shard_parts.hpp"
#include "quant/stream/source.hpp"
#include "quant/stream/weighing.hpp"

namespace nibble {
namespace {

// A tensor while it is converted.
struct Work {
  Work(WeightSource from, PlannedTensor planned) : source(std::move(from)), tensor(std::move(planned)) {}

  WeightSource source;
  PlannedTensor tensor;
  std::size_t index = 0;       // in the plan
  std::size_t first_part = 0;  // in the shard
  std::vector<Part> parts;
  std::uint64_t elements = 0;
  std::uint64_t batch_weights = 0;  // a whole number of chunks
  std::optional<Encoding> encoding;
  Xxh3Chunks hashes;  // of the codes
  Findings findings;
  ErrorSums error;
  std::optional<Compensated> compensated;
};

struct Batch {
  Work* tensor = nullptr;
  std::uint64_t first = 0;
  std::uint64_t weights = 0;
  std::uint64_t out_offset = 0;
  Findings findings;
  std::vector<ErrorSums> errors;
  Buffers::Loan out;
  Xxh3Chunks hashes;  // of `out`
};

class Conversion {
 public:
  Conversion(const StoredWeights& in, Plan plan, Writer& out, const Resources& resources, Progress& progress)
      : stored_(in),
        in_(in.reader()),
        out_(out),
        progress_(progress),
        weighing_(in_, plan, resources.max_memory),
        memory_(conversion_memory(plan, resources, weighing_.memory())),
        codings_(plan.recipe, plan.tensors, resources.device),
        adapter_(read_adapter()),
        manifest_(plan, out, adapter_, weighing_.identity()),
        resources_(resources),
        buffers_(chunk_memory(resources.device)) {
    report_.plan = std::move(plan);
    count_work();
  }

  Report run() && {
    begin_log();
    const bool is_resumed = is_resuming_;
    try {
      return convert_all();
    } catch (const Error& error) {
      if (error.code() != Errc::interrupted || log_ == nullptr || !log_->has_records()) {
        if (is_resumed) (void)out_.keep();
        throw;
      }
      const std::string where = out_.keep();
      if (where.empty()) throw;
      throw Error(Errc::interrupted,
                  fmt::format("interrupted: no output was written, and what is finished stays in {}", escaped(where)),
                  Remedy::Kind::resume);
    } catch (...) {
      if (is_resumed) (void)out_.keep();
      throw;
    }
  }

 private:
  Report convert_all() {
    if (report_.plan.recipe.error_report == ErrorReport::full) measure_first();
    Workers workers(memory_.threads);
    workers.execute([this] {
      for (std::size_t shard = 0; shard < report_.plan.shard_ends.size(); ++shard) convert_shard(shard);
    });
    in_.check_unchanged();
    weighing_.check_unchanged();
    add_warnings();
    manifest_.end(report_);
    // Not in the manifest, which says the same wherever codecs ran.
    if (std::string warning = workers.warning(); !warning.empty()) report_.warnings.emplace_back(std::move(warning));
    if (resources_.device != nullptr)
      for (std::string& warning : resources_.device->warnings()) report_.warnings.emplace_back(std::move(warning));
    first_part_ = {};
    factor_ = {};
    finish();
    return std::move(report_);
  }

  void begin_log() {
    const std::string mine = fingerprint(in_, plan(), adapter_, weighing_.identity());
    log_ = out_.begin_log(mine, [&](std::string_view theirs) { return difference(theirs, mine); });
    is_resuming_ = log_ != nullptr && log_->has_records();
  }

  // The bytes of the weights, and those of each second moment that is read: to make its factor takes about as long as
  // to quantize a weight of as many rows as columns.
  void count_work() {
    total_ = 0;
    second_moments_.clear();
    std::optional<FactorOf> last;
    for (std::size_t t = 0; t < report_.plan.tensors.size(); ++t) {
      const PlannedTensor tensor = report_.plan.tensors[t];
      total_ += tensor.info.bytes();
      const auto factor = weighing_.factor_of(tensor);
      if (!factor || factor == last) continue;
      last = factor;
      total_ += second_moments_[t] = weighing_.second_moment_bytes(*factor);
    }
  }

  // A pass of its own: the files of an adapter have nothing to do with the weights that are counted later.
  [[nodiscard]] std::string read_adapter() const {
    return ReaderInternals::adapter(in_, [this](std::string_view file, std::uint64_t done, std::uint64_t total) {
      progress_.advance(file, done, total);
      check_cancelled();
    });
  }

  Plan& plan() { return report_.plan; }

  static bool is_kept(const MeasuredWeights& tensor, const MeasuredError& error) {
    return error.form == tensor.info.dtype;
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

  [[nodiscard]] const Codec& codec(const CodecSpec& spec) const { return *codings_[spec].codec; }
  [[nodiscard]] const Quantizer& quantizer(const CodecSpec& spec) const { return *codings_[spec].quantizer; }

  [[nodiscard]] std::size_t shard_begin(std::size_t shard) const {
    return shard == 0 ? 0 : report_.plan.shard_ends[shard - 1];
  }

  ShardParts parts_of(std::size_t shard) {
    return {report_.plan.tensors, shard_begin(shard), report_.plan.shard_ends[shard], codings_};
  }

  void finish() {
    Finish finish;
    finish.quantization_config = quantization_config(report_.plan);
    finish.was_decoded = stored_.is_declared() || ReaderInternals::was_quantized(in_);
    finish.unties = ReaderInternals::was_tied(in_);
    for (const TensorInfo& tensor : report_.plan.tensors.infos()) finish.parameters += tensor.elements();
    finish.dtype = traits(report_.plan.dtype).torch_name;
    // Only an index of several shards names all parts once more.
    std::deque<ShardParts> shards;
    if (report_.plan.shard_ends.size() > 1)
      for (std::size_t shard = 0; shard < report_.plan.shard_ends.size(); ++shard)
        finish.shards.push_back(&shards.emplace_back(parts_of(shard)));
    out_.complete(finish);
    for (std::string& warning : out_.warnings()) report_.warnings.emplace_back(std::move(warning));
    progress_.ready(report_);
    check_cancelled();  // the last time: from here on, the output appears
    out_.commit();
  }

  void check_cancelled() const {
    if (progress_.cancelled()) throw Error(Errc::interrupted, "interrupted: no output was written");
  }

  // A tensor that turns out non-finite after its offset was fixed restarts its shard with that tensor kept.
  void convert_shard(std::size_t shard) {
    const std::uint64_t done_before = done_;
    const Manifest::Mark manifest_before = manifest_.mark();
    const Findings findings_before = report_.findings;
    const ByOutcome<Totals> totals_before = report_.totals;
    const WorstTensor worst_before = report_.worst;
    const WorkLog::Position log_before = log_ == nullptr ? WorkLog::Position{} : log_->position();
    std::vector<KeptTensor> kept = take_over_kept(shard);
    while (true) {
      found_.erase(found_.lower_bound(shard_begin(shard)), found_.end());
      encode_shard(shard);
      const std::vector<KeptTensor> newly_kept = keep_nonfinite(shard);
      if (newly_kept.empty()) break;
      done_ = done_before;
      count_work();  // a tensor that is kept needs no factor
      factor_ = {};  // otherwise a shard with one factor would find it made, and not count it
      manifest_.rewind(manifest_before);
      report_.findings = findings_before;
      report_.totals = totals_before;
      report_.worst = worst_before;
      kept.insert(kept.end(), newly_kept.begin(), newly_kept.end());
      if (log_ == nullptr) continue;
      is_resuming_ = false;
      log_->go_to(log_before);
      for (const KeptTensor& tensor : kept) log_->append(record_of(tensor));
    }
    out_.end();
  }

  // The next record of an interrupted run, if it is a T of the tensors [begin, end). Any other one is read again.
  template <class T> std::optional<T> take_record(std::size_t begin, std::size_t end) {
    if (!is_resuming_) return std::nullopt;
    const WorkLog::Position before = log_->position();
    const auto record = log_->read();
    std::optional<Finished> finished = record ? finished_of(*record) : std::nullopt;
    is_resuming_ = finished.has_value();
    if (finished)
      if (T* const found = std::get_if<T>(&*finished);
          found != nullptr && found->tensor >= begin && found->tensor < end)
        return std::move(*found);
    log_->go_to(before);
    return std::nullopt;
  }

  // The tensors of a shard that an interrupted run has kept.
  std::vector<KeptTensor> take_over_kept(std::size_t shard) {
    std::vector<KeptTensor> kept;
    while (const auto tensor = take_record<KeptTensor>(shard_begin(shard), plan().shard_ends[shard])) {
      if (keep(*tensor)) kept.push_back(*tensor);
    }
    if (!kept.empty()) count_work();
    return kept;
  }

  // Those that it has finished and that lie on the disk as it says. Returns the first tensor that is left to convert.
  std::size_t take_over_finished(std::size_t begin, std::size_t end) {
    std::size_t next = begin;
    for (; next < end; ++next) {
      const WorkLog::Position before = log_->position();
      const auto finished = take_record<FinishedTensor>(next, next + 1);
      if (!finished) break;
      const PlannedTensor tensor = plan().tensors[next];
      const std::vector<Part> parts = stored_parts(codec(tensor.codec), tensor.info);
      if (!is_stored(parts, first_part_[next - begin], finished->hashes)) {
        log_->go_to(before);
        break;
      }
      account(tensor, parts, *finished);
      manifest_.add_entry(finished->entry);
      const auto moment = second_moments_.find(next);
      done_ += tensor.info.bytes() + (moment == second_moments_.end() ? 0 : moment->second);
      progress_.advance(tensor.info.name, done_, total_);
    }
    return next;
  }

  bool is_stored(const std::vector<Part>& parts, std::size_t first_part, const std::vector<std::vector<Xxh3>>& hashes) {
    if (hashes.size() != parts.size()) return false;
    std::vector<std::byte> chunk(Xxh3Chunks::chunk_bytes);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const std::uint64_t bytes = parts[p].info.bytes();
      if (hashes[p].size() != (bytes + Xxh3Chunks::chunk_bytes - 1) / Xxh3Chunks::chunk_bytes) return false;
      for (std::size_t c = 0; c < hashes[p].size(); ++c) {
        check_cancelled();
        const std::uint64_t offset = c * Xxh3Chunks::chunk_bytes;
        const std::span<std::byte> read = std::span(chunk).first(std::min(Xxh3Chunks::chunk_bytes, bytes - offset));
        if (!out_.read(first_part + p, offset, read) || xxh3(read) != hashes[p][c]) return false;
      }
    }
    return true;
  }

  void encode_shard(std::size_t shard) {
    const std::size_t begin = shard_begin(shard);
    const std::size_t end = plan().shard_ends[shard];
    shard_ = shard;
    bool is_there = false;
    {
      ShardParts parts = parts_of(shard);
      is_there = is_resuming_ && out_.reopen(shard, parts);
      if (!is_there) out_.begin(shard, parts);
      first_part_ = parts.take_first_parts();
    }
    std::size_t next = begin;
    if (is_there) next = take_over_finished(begin, end);

    // A tensor that is read twice is a pipeline of its own; all between two such tensors are one, unless they need
    // another factor. It is made when no tensor is in progress, on all threads.
    while (next < end) {
      make_factor(next);
      if (chunking(plan().tensors[next]).scan) {
        Work* const work = add_work(next++, begin);
        for (const bool scan : {true, false})
          convert_tensors([&, given = false]() mutable { return std::exchange(given, true) ? nullptr : work; }, scan);
      } else {
        convert_tensors([&] { return next_work(next, begin, end); }, false);
      }
    }
  }

  // A compensated chunk takes seconds, so there are enough of them for all threads.
  Chunking chunking(const PlannedTensor& tensor) const {
    const std::uint64_t bytes = memory_.chunk_bytes * (tensor.transposed ? memory_.transposed_chunk : 1);
    const std::uint64_t limit = bytes * 8 / traits(tensor.info.dtype).bits;
    if (!weighing_.factor_of(tensor)) return quantizer(tensor.codec).chunking(tensor.info, limit);
    const std::uint64_t share = tensor.info.elements() / memory_.threads;
    return codings_.compensated(tensor.codec, nullptr)->chunking(tensor.info, std::min(limit, share));
  }

  // The factor of a tensor, if it is compensated and has another than the tensors before it.
  void make_factor(std::size_t index) {
    const PlannedTensor tensor = plan().tensors[index];
    const auto needed = weighing_.factor_of(tensor);
    if (!needed) return;
    const auto bytes = second_moments_.find(index);
    const std::uint64_t all = bytes == second_moments_.end() ? 0 : bytes->second;
    if (!factor_ || factor_->of != *needed) {
      factor_ = {};  // one at a time
      std::uint64_t made = 0;
      factor_ = weighing_.make_factor(*needed, [&](double share) {
        check_cancelled();
        made = std::max(made, static_cast<std::uint64_t>(share * static_cast<double>(all)));  // of the first damping
        progress_.advance(tensor.info.name, done_ + made, total_);
      });
    }
    done_ += all;
  }

  Work* add_work(std::size_t index, std::size_t begin) {
    const PlannedTensor tensor = plan().tensors[index];
    const Coding& coding = codings_[tensor.codec];
    auto work = std::make_unique<Work>(open_source(stored_, tensor, buffers_), tensor);
    work->index = index;
    work->first_part = first_part_[index - begin];
    work->parts = stored_parts(*coding.codec, tensor.info);
    work->elements = tensor.info.elements();
    std::unique_ptr<const Quantizer> compensated;
    if (weighing_.factor_of(tensor)) {
      compensated = codings_.compensated(tensor.codec, &factor_->factor);
      work->compensated = {factor_->factor.damping(), factor_->second_moment};
    }
    const Quantizer& quantizer = compensated ? *compensated : *coding.quantizer;
    Encoding& encoding =
        work->encoding.emplace(work->source, tensor.info, *coding.codec, quantizer, chunking(tensor),
                               make_scratch(quantizer.scratch_bytes(tensor.info)), weighing_.columns_of(tensor));
    const std::uint64_t chunk = encoding.chunking().weights;
    const std::uint64_t chunk_bytes = std::max<std::uint64_t>(encoding.offset(std::min(chunk, work->elements)), 1);
    work->batch_weights = chunk * (compensated ? 1 : std::max<std::uint64_t>(memory_.batch_bytes / chunk_bytes, 1));
    const std::scoped_lock lock(mutex_);
    return in_work_.emplace_back(std::move(work)).get();
  }

  // While one tensor ends and the next begins, both have scratch. The next one's pages take no memory until it writes
  // to them.
  std::unique_ptr<Scratch> make_scratch(std::uint64_t bytes) {
    if (bytes > memory_.scratch_bytes) return out_.make_scratch();
    const std::scoped_lock lock(mutex_);
    return spare_.make(bytes);
  }

  // The next tensor of a pipeline; nothing at the end, or before one that has to be scanned or needs another factor.
  Work* next_work(std::size_t& next, std::size_t begin, std::size_t end) {
    if (next == end) return nullptr;
    const PlannedTensor tensor = plan().tensors[next];
    const auto needed = weighing_.factor_of(tensor);
    if (chunking(tensor).scan || (needed && (!factor_ || factor_->of != *needed))) return nullptr;
    return add_work(next++, begin);
  }

  void convert_tensors(std::function<Work*()> next_tensor, bool scan) {
    run_pipeline<Batch>(memory_.tokens, {.check = [this] { check_cancelled(); },
                                         .next_tensor = std::move(next_tensor),
                                         .work =
                                             [&](Batch& batch) {
                                               end_finished();
                                               scan ? batch.tensor->encoding->scan(batch.first, batch.weights)
                                                    : encode(batch);
                                             },
                                         .account =
                                             [&](Batch& batch) {
                                               if (!scan) add(batch);
                                               batch.out = {};
                                             }});
    end_finished();  // before files are flushed
  }

  // The codes of a batch go where its weights stand in the tensor.
  void encode(Batch& batch) {
    Work& work = *batch.tensor;
    batch.out_offset = work.encoding->offset(batch.first);
    const std::uint64_t size = work.encoding->offset(batch.first + batch.weights) - batch.out_offset;
    batch.out = memory_.behind > 0 ? out_.lend(work.first_part, batch.out_offset, size)
                                   : buffers_.lend(size, batch.out_offset);  // not of huge pages
    batch.errors.clear();
    batch.hashes = Xxh3Chunks(batch.out_offset);
    const bool sums_errors = report_.plan.recipe.error_report != ErrorReport::none;
    const std::span<std::byte> out = batch.out.bytes();
    try {
      batch.findings = work.encoding->encode(batch.first, batch.weights, out, sums_errors ? &batch.errors : nullptr,
                                             [&](std::span<const std::byte> codes) { batch.hashes.append(codes); });
    } catch (const Error& error) {
      if (error.code() != Errc::bad_input) throw;
      throw about(error, in_.label_of(work.tensor.source));
    }
    if (memory_.behind == 0) out_.write(work.first_part, batch.out_offset, out);
  }

  void add(Batch& batch) {
    Work& work = *batch.tensor;
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

  // While other threads go on encoding: giving memory back takes a while.
  void end_finished() {
    std::unique_ptr<Work> finished;
    const std::scoped_lock lock(mutex_);
    finished.swap(finished_);
    if (finished) spare_.keep(finished->encoding->end());
  }

  void finish(Work& work) {
    refuse(work);
    PartWriter rest(out_, work.first_part, work.parts, memory_.behind > 0 ? memory_.batch_bytes : 0);
    try {
      work.encoding->encoder().finish(rest);
      rest.write_own(codec(work.tensor.codec), work.tensor.info);
    } catch (const Error& error) {
      if (error.code() != Errc::bad_input) throw;
      throw about(error, in_.label_of(work.tensor.source));
    }
    EncodingError error = work.encoding->encoder().late_error();
    error.sums.add(work.error);
    const MeasuredError* const full = measured(work.tensor);
    FinishedTensor finished{work.index,
                            work.findings,
                            full != nullptr ? static_cast<const ErrorSums&>(full->stats) : error.sums,
                            error.sums.sqnr_db(),
                            {}};
    account(work.tensor, work.parts, finished);
    std::vector<Manifest::Part> parts;
    for (std::size_t p = 0; p < work.parts.size(); ++p)
      parts.push_back({std::move(work.parts[p].info), p == 0 ? work.hashes.take() : rest.take_hashes(p)});
    finished.entry = manifest_.add(work.tensor, shard_, work.findings, error.sums.count > 0 ? &error : nullptr, full,
                                   parts, work.compensated);
    if (log_ == nullptr) return;
    for (Manifest::Part& part : parts) finished.hashes.push_back(std::move(part.hashes));
    log_->append(record_of(finished));
    out_.flush_log();
  }

  // What a finished tensor adds to the report.
  void account(const PlannedTensor& tensor, const std::vector<Part>& parts, const FinishedTensor& finished) {
    const Findings& found = finished.findings;
    report_.findings.add(found);
    if (found.nan + found.inf + found.overflow > 0) found_[finished.tensor] = found;
    // Codecs that only copy have one part, of the type that was there.
    const bool same = !tensor.decoded && parts.size() == 1 && parts.front().info.dtype == tensor.info.dtype;
    Totals& totals = report_.totals[outcome_of(tensor.quantized, same)];
    ++totals.tensors;
    totals.weights += tensor.info.elements();
    totals.error.add(finished.error);
    if (finished.sqnr_db < report_.worst.sqnr_db) report_.worst = {tensor.info.name, finished.sqnr_db};
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
      throw Error(Errc::bad_input, in_.label_of(tensor.source),
                  fmt::format("tensor '{}': {}", printable(tensor.info.name), why->text), why->remedy);
  }

  // Marks the shard's tensors that cannot be stored as planned as kept, and returns them.
  std::vector<KeptTensor> keep_nonfinite(std::size_t shard) {
    std::vector<KeptTensor> kept;
    for (auto found = found_.lower_bound(shard_begin(shard)); found != found_.end(); ++found)
      if (const KeptTensor tensor{found->first, found->second}; keep(tensor)) kept.push_back(tensor);
    return kept;
  }

  // False if it can be stored as planned.
  bool keep(const KeptTensor& found) {
    const PlannedTensor tensor = plan().tensors[found.tensor];
    auto instead = planned_instead(plan().recipe, tensor, found.findings, codings_);
    if (!instead) return false;
    kept_[found.tensor] = describe(found.findings, tensor.codec);
    const std::string reason = "kept: " + kept_[found.tensor];
    instead->reason = reason;
    plan().tensors.replace(found.tensor, *instead);
    return true;
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
    for (auto& [i, warning] : warnings) report_.warnings.emplace_back(std::move(warning));
  }

  const StoredWeights& stored_;
  const Reader& in_;
  Writer& out_;
  Progress& progress_;
  Weighing weighing_;
  ConversionMemory memory_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;                              // bytes of the weights and of the second moments, as done_
  std::map<std::size_t, std::uint64_t> second_moments_;  // bytes, by the first tensor of the plan that needs the factor
  const Codings codings_;
  std::string adapter_;  // what the manifest says of it
  Manifest manifest_;
  WorkLog* log_ = nullptr;
  bool is_resuming_ = false;  // the next record of the log may be one of an interrupted run
  Resources resources_;
  std::unordered_map<std::string, MeasuredError> measured_;  // by name, for a full report
  std::size_t shard_ = 0;                                    // in work
  std::map<std::size_t, Findings> found_;                    // the few tensors with NaN, infinities or overflow
  std::map<std::size_t, std::string> kept_;                  // what was found in those of them that are kept
  std::unique_ptr<const MadeFactor> factor_;                 // of the tensors in progress that are compensated
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

Report convert(const StoredWeights& in, Plan plan, Writer& out, const Resources& resources, Progress& progress) {
  return Conversion(in, std::move(plan), out, resources, progress).run();
}

Report convert(const Reader& in, Plan plan, Writer& out, const Resources& resources, Progress& progress) {
  const StoredWeights stored(in, schemes_of(plan.recipe.intake));
  return convert(stored, std::move(plan), out, resources, progress);
}

}  // namespace nibble
