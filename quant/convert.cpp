// The pipeline. Every size follows from the headers, so a shard is laid out before its first weight is read; after
// that chunks go straight from pread through a codec to their final place, on as many threads as there are, with
// a fixed number of chunks in memory:
//
//   cut (serial) -> read, encode, write (parallel) -> hash, count, finish the tensor (serial, in order)
//
// The serial stages touch only the encoded bytes of a chunk, which are still in cache: hashing them takes a few
// hundredths of what encoding them took.

#include "nibble/convert.hpp"

#include <fmt/format.h>
#include <oneapi/tbb/parallel_pipeline.h>
#include <oneapi/tbb/task_arena.h>
#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "nibble/error.hpp"
#include "quant/buffers.hpp"

namespace nibble {
namespace {

class Xxh3 {
 public:
  Xxh3() : state_(XXH3_createState()) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }
  void update(std::span<const std::byte> bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }
  [[nodiscard]] std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

std::string hash_of(std::span<const std::byte> bytes) {
  Xxh3 hash;
  hash.update(bytes);
  return hash.hex();
}

// A tensor while it is converted.
struct Work {
  std::size_t index = 0;       // in the plan
  std::size_t first_part = 0;  // in the shard
  std::vector<TensorInfo> parts;
  Chunking chunking;
  std::uint64_t elements = 0;
  std::unique_ptr<Encoder> encoder;
  Xxh3 hash;
  Findings findings;

  // Where a chunk that starts at `weight` begins in the first part. Chunks take whole bytes; only at the very end
  // an odd 4-bit code shares its byte with nothing, which is what the division rounds away.
  [[nodiscard]] std::uint64_t stored_offset(std::uint64_t weight) const {
    const std::uint64_t bytes = parts.front().bytes();
    if (weight == elements) return bytes;
    const std::uint64_t bits = 8 * bytes / elements;
    return weight / 8 * bits + weight % 8 * bits / 8;
  }
};

struct Chunk {
  Work* work = nullptr;
  std::uint64_t first = 0;
  std::uint64_t weights = 0;
  std::uint64_t out_offset = 0;
  Findings findings;
  Buffers::Loan in;
  Buffers::Loan out;
};

class Conversion {
 public:
  Conversion(const Reader& in, const Plan& plan, Writer& out, const Resources& resources, Progress& progress)
      : in_(in), out_(out), progress_(progress), memory_(plan_memory(plan, resources)) {
    report_.plan = plan;
    report_.tensors.resize(plan.tensors.size());
    total_ = plan.source_bytes();
  }

  Report run() && {
    tbb::task_arena arena(static_cast<int>(memory_.threads));
    arena.execute([this] {
      for (std::size_t shard = 0; shard < report_.plan.shard_ends.size(); ++shard) convert_shard(shard);
    });
    in_.check_unchanged();
    add_warnings();
    out_.commit({quantization_config(report_.plan), std::string(traits(report_.plan.dtype).torch_name),
                 manifest(report_, out_)});
    return std::move(report_);
  }

 private:
  Plan& plan() { return report_.plan; }

  const Codec& codec(const std::string& name) {
    auto& made = codecs_[name];
    if (!made) made = make_codec(name, plan().recipe.options);
    return *made;
  }

  // A tensor that turns out non-finite after its place was fixed restarts its shard with that tensor kept.
  void convert_shard(std::size_t shard) {
    const std::uint64_t done_before = done_;
    while (true) {
      encode_shard(shard);
      if (!keep_nonfinite(shard)) break;
      done_ = done_before;
    }
    out_.end();
  }

  void encode_shard(std::size_t shard) {
    const std::size_t begin = shard == 0 ? 0 : plan().shard_ends[shard - 1];
    const std::size_t end = plan().shard_ends[shard];
    std::vector<TensorInfo> parts;
    first_part_.clear();
    for (std::size_t i = begin; i < end; ++i) {
      const PlannedTensor& tensor = plan().tensors[i];
      first_part_.push_back(parts.size());
      for (TensorInfo& part : codec(tensor.codec).parts(tensor.info)) parts.push_back(std::move(part));
      report_.tensors[i] = ConvertedTensor{};
      report_.tensors[i].shard = shard;
    }
    out_.begin(shard, parts);
    parts = {};

    // A tensor that is read twice is a pipeline of its own; all between two such tensors are one.
    for (std::size_t next = begin; next < end;) {
      if (std::unique_ptr<Work> work = make_work(next, begin); work->chunking.scan) {
        in_work_.push_back(std::move(work));
        run_pipeline(
            [&, given = false]() mutable { return std::exchange(given, true) ? nullptr : in_work_.back().get(); },
            true);
        run_pipeline(
            [&, given = false]() mutable { return std::exchange(given, true) ? nullptr : in_work_.back().get(); },
            false);
        ++next;
      } else {
        run_pipeline([&] { return next_work(next, begin, end); }, false);
      }
    }
  }

  std::unique_ptr<Work> make_work(std::size_t index, std::size_t begin) {
    const PlannedTensor& tensor = plan().tensors[index];
    auto work = std::make_unique<Work>();
    work->index = index;
    work->first_part = first_part_[index - begin];
    work->parts = codec(tensor.codec).parts(tensor.info);
    work->elements = tensor.info.elements();
    const std::uint64_t limit = memory_.chunk_bytes * (tensor.transposed ? transposed_chunk : 1);
    work->chunking = codec(tensor.codec).chunking(tensor.info, limit * 8 / traits(tensor.info.dtype).bits);
    work->encoder = codec(tensor.codec).encoder(tensor.info, work->chunking);
    return work;
  }

  // The next tensor of a pipeline; nothing at the end, or before one that has to be scanned.
  Work* next_work(std::size_t& next, std::size_t begin, std::size_t end) {
    if (next == end) return nullptr;
    std::unique_ptr<Work> work = make_work(next, begin);
    if (work->chunking.scan) return nullptr;
    ++next;
    const std::scoped_lock lock(mutex_);
    return in_work_.emplace_back(std::move(work)).get();
  }

  // `source` yields the tensors in turn. Chunks live in a ring: those in flight are the latest ones, since the last
  // stage is in order, so a place is free again when its turn comes.
  template <class Source> void run_pipeline(Source source, bool scan) {
    std::vector<Chunk> ring(memory_.tokens);
    std::size_t turn = 0;
    std::uint64_t first = 0;
    Work* work = source();
    const auto cut = [&](tbb::flow_control& control) -> Chunk* {
      if (progress_.cancelled()) throw Error(Errc::interrupted, "interrupted: no output was written");
      if (work == nullptr) {
        control.stop();
        return nullptr;
      }
      Chunk& chunk = ring[turn++ % ring.size()];
      chunk.work = work;
      chunk.first = first;
      chunk.weights = std::min(work->chunking.weights, work->elements - first);
      first += chunk.weights;
      if (first == work->elements) {
        work = source();
        first = 0;
      }
      return &chunk;
    };
    const auto encode = [&](Chunk* chunk) {
      read(*chunk);
      if (scan) {
        chunk->work->encoder->scan(chunk->first, chunk->in.bytes());
      } else {
        write(*chunk);
      }
      return chunk;
    };
    const auto account = [&](Chunk* chunk) {
      if (!scan) add(*chunk);
      chunk->in = {};
      chunk->out = {};
    };
    tbb::parallel_pipeline(memory_.tokens,
                           tbb::make_filter<void, Chunk*>(tbb::filter_mode::serial_in_order, cut) &
                               tbb::make_filter<Chunk*, Chunk*>(tbb::filter_mode::parallel, encode) &
                               tbb::make_filter<Chunk*, void>(tbb::filter_mode::serial_in_order, account));
  }

  const PlannedTensor& planned(const Work& work) const { return report_.plan.tensors[work.index]; }

  void read(Chunk& chunk) {
    const PlannedTensor& tensor = planned(*chunk.work);
    chunk.in = buffers_.lend(byte_count(tensor.info.dtype, chunk.weights));
    if (tensor.transposed) {
      read_transposed(tensor, chunk);
    } else {
      in_.read(tensor.source, tensor.source_offset + byte_count(tensor.info.dtype, chunk.first), chunk.in.bytes());
    }
  }

  // Weights [first, first + n) of the transposed [out, in] matrix, out of [in, out] on disk: for each row on disk,
  // the piece that covers the chunk's columns.
  void read_transposed(const PlannedTensor& tensor, Chunk& chunk) {
    const std::uint64_t width = traits(tensor.info.dtype).bits / 8;
    const std::uint64_t out = tensor.info.shape[0];
    const std::uint64_t in = tensor.info.shape[1];
    if (chunk.weights == 0) return;
    const std::uint64_t row = chunk.first / in;
    const std::uint64_t rows = (chunk.first + chunk.weights - 1) / in - row + 1;
    Buffers::Loan piece = buffers_.lend(rows * width);
    std::byte* const to = chunk.in.bytes().data();
    for (std::uint64_t k = 0; k < in; ++k) {
      in_.read(tensor.source, (k * out + row) * width, piece.bytes());
      for (std::uint64_t r = 0; r < rows; ++r) {
        const std::uint64_t weight = (row + r) * in + k;
        if (weight < chunk.first || weight >= chunk.first + chunk.weights) continue;
        std::copy_n(piece.bytes().data() + r * width, width, to + (weight - chunk.first) * width);
      }
    }
  }

  // Encoded bytes lie at the place in the first part that corresponds to the chunk's place in the tensor.
  void write(Chunk& chunk) {
    const Work& work = *chunk.work;
    const std::uint64_t end = chunk.first + chunk.weights;
    chunk.out_offset = work.stored_offset(chunk.first);
    chunk.out = buffers_.lend(work.stored_offset(end) - chunk.out_offset);
    chunk.findings = work.encoder->encode(chunk.first, chunk.in.bytes(), chunk.out.bytes());
    chunk.in = {};
    out_.write(work.first_part, chunk.out_offset, chunk.out.bytes());
  }

  void add(Chunk& chunk) {
    Work& work = *chunk.work;
    work.hash.update(chunk.out.bytes());
    work.findings.add(chunk.findings);
    done_ += byte_count(planned(work).info.dtype, chunk.weights);
    const bool last = chunk.first + chunk.weights == work.elements;
    const std::string& name = planned(work).info.name;
    if (last) finish(work);
    progress_.advance(name, done_, total_);
  }

  void finish(Work& work) {
    ConvertedTensor& converted = report_.tensors[work.index];
    converted.findings = work.findings;
    refuse(work);
    converted.parts.push_back({work.parts.front(), work.hash.hex()});
    const std::vector<std::vector<std::byte>> rest = work.encoder->finish();
    for (std::size_t p = 0; p < rest.size(); ++p) {
      out_.write(work.first_part + 1 + p, 0, rest[p]);
      converted.parts.push_back({work.parts[p + 1], hash_of(rest[p])});
    }
    const std::scoped_lock lock(mutex_);
    in_work_.pop_front();
  }

  // The findings that the recipe does not allow.
  void refuse(const Work& work) {
    const PlannedTensor& tensor = planned(work);
    const Recipe& recipe = report_.plan.recipe;
    const Findings& found = work.findings;
    if (found.nan + found.inf > 0 && recipe.nonfinite == Nonfinite::error)
      throw Error(
          Errc::bad_input,
          fmt::format("{}: tensor '{}': {} NaN and {} infinite of {} weights, the first at {}; --nonfinite error "
                      "allows none",
                      source_file(tensor), printable(tensor.info.name), found.nan, found.inf, work.elements,
                      found.first_nonfinite));
    if (found.overflow == 0) return;
    if (tensor.quantized
            ? recipe.nonfinite == Nonfinite::error
            : codec(tensor.codec).cast_type() == DType::f16 && recipe.options.on_overflow == OnOverflow::error)
      throw Error(Errc::bad_input,
                  fmt::format("{}: tensor '{}': {} of {} weights exceed 65504, the largest fp16{}; see {}",
                              source_file(tensor), printable(tensor.info.name), found.overflow, work.elements,
                              found.nan + found.inf == 0 ? fmt::format(", the first at {}", found.first_nonfinite) : "",
                              tensor.quantized ? "--nonfinite" : "--on-overflow"));
  }

  std::string source_file(const PlannedTensor& tensor) const {
    return printable(in_.files()[in_.file_of(tensor.source)]);
  }

  // Marks the shard's quantized tensors with non-finite values as kept; whether there was any.
  bool keep_nonfinite(std::size_t shard) {
    if (plan().recipe.nonfinite != Nonfinite::keep) return false;
    bool any = false;
    const std::size_t begin = shard == 0 ? 0 : plan().shard_ends[shard - 1];
    for (std::size_t i = begin; i < plan().shard_ends[shard]; ++i) {
      PlannedTensor& tensor = plan().tensors[i];
      const Findings& found = report_.tensors[i].findings;
      if (!tensor.quantized || found.nan + found.inf + found.overflow == 0) continue;
      kept_[i] = found;
      keep(tensor, found);
      any = true;
    }
    return any;
  }

  void keep(PlannedTensor& tensor, const Findings& found) {
    tensor.codec = tensor.info.dtype == DType::f64 ? "fp32" : "keep";  // F64 has no place in a quantized model
    tensor.quantized = false;
    tensor.reason = fmt::format("kept: {} NaN, {} infinite, {} beyond fp16", found.nan, found.inf, found.overflow);
    if (tensor.transposed) {
      tensor.transposed = false;
      std::swap(tensor.info.shape[0], tensor.info.shape[1]);
    }
    tensor.stored_bytes = codec(tensor.codec).parts(tensor.info).front().bytes();
  }

  void add_warnings() {
    report_.warnings = plan().warnings;
    for (std::size_t i = 0; i < report_.tensors.size(); ++i) {
      const PlannedTensor& tensor = plan().tensors[i];
      const Findings& found = report_.tensors[i].findings;
      if (const auto kept = kept_.find(i); kept != kept_.end()) {
        const Findings& why = kept->second;
        report_.warnings.push_back(fmt::format("tensor '{}' is kept as {}: {} NaN, {} infinite, {} beyond fp16",
                                               printable(tensor.info.name), traits(tensor.info.dtype).name, why.nan,
                                               why.inf, why.overflow));
      } else if (found.nan + found.inf + found.overflow > 0) {
        report_.warnings.push_back(fmt::format("tensor '{}': {} NaN, {} infinite, {} beyond the range of {}",
                                               printable(tensor.info.name), found.nan, found.inf, found.overflow,
                                               tensor.codec));
      }
    }
  }

  const Reader& in_;
  Writer& out_;
  Progress& progress_;
  MemoryPlan memory_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  std::map<std::string, std::unique_ptr<const Codec>, std::less<>> codecs_;
  std::map<std::size_t, Findings> kept_;
  Buffers buffers_;
  std::vector<std::size_t> first_part_;  // of the shard's tensors
  std::mutex mutex_;                     // of the next: tensors are begun and finished on different threads
  std::deque<std::unique_ptr<Work>> in_work_;
  Report report_;
};

}  // namespace

void Progress::advance(std::string_view /*tensor*/, std::uint64_t /*done*/, std::uint64_t /*total*/) {}
bool Progress::cancelled() const { return false; }

Report convert(const Reader& in, const Plan& plan, Writer& out, const Resources& resources, Progress& progress) {
  return Conversion(in, plan, out, resources, progress).run();
}

}  // namespace nibble
