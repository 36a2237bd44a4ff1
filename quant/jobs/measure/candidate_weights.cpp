#include "quant/jobs/measure/candidate_weights.hpp"

#include <filesystem>
#include <limits>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/ranges.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/jobs/measure/counts.hpp"
#include "quant/stream/encode.hpp"
#include "quant/stream/memory_model.hpp"
#include "quant/stream/nonfinite.hpp"

namespace nibble {
namespace {

// The planes of a tensor that follow the codes, in memory.
class KeptPlanes final : public PlaneSink {
 public:
  explicit KeptPlanes(std::span<const Plane> planes) : planes_(planes.size() - 1) {
    for (std::size_t i = 0; i < planes_.size(); ++i) planes_[i].reserve(planes[i + 1].bytes());
  }
  void write(std::size_t plane, std::span<const std::byte> bytes) override {
    planes_[plane - 1].insert(planes_[plane - 1].end(), bytes.begin(), bytes.end());
  }
  [[nodiscard]] std::vector<std::span<const std::byte>> spans() const { return {planes_.begin(), planes_.end()}; }

 private:
  std::vector<std::vector<std::byte>> planes_;
};

// The expected SQNR of the codec that stored the tensor; for plain weights, of the codec that casts to their type.
double normal_sqnr_of(const StoredWeights::Tensor& stored) {
  const auto codec = stored.quantized() ? stored.stored.codec : find_cast_codec(stored.stored.info.dtype);
  return codec ? make_codec(*codec)->normal_sqnr_db(stored.stored.info) : std::numeric_limits<double>::quiet_NaN();
}

std::unique_ptr<Scratch> make_temporary() {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::temp_directory_path(error);
  if (error) throw Error(Errc::io, "$TMPDIR: " + error.message());
  return make_file_scratch(directory);
}

std::unique_ptr<Scratch> make_scratch(std::uint64_t bytes, bool fits) {
  if (fits) return std::make_unique<MemoryScratch>(bytes);
  return make_temporary();
}

// Whether a codec would store the weights in the form that they already have.
bool is_same(const Codec& codec, const WeightSource& weights) {
  return !weights.is_decoded() && !codec.quantizes() &&
         codec.planes(weights.info()).front().dtype == weights.info().dtype;
}

}  // namespace

StoredForm form_of(const StoredWeights::Tensor& stored) {
  if (stored.quantized()) return stored.stored.codec;
  return stored.stored.info.dtype;
}

void check_cancelled(const Progress& progress) {
  if (progress.cancelled()) throw Error(Errc::interrupted, "interrupted");
}

CandidateTensor CandidateWeights::stored(std::size_t c, std::size_t tensor) {
  const StoredWeights::Tensor found = pairing_.stored(c)[tensor];
  CandidateTensor test{.form = form_of(found),
                       .bytes = found.bytes,
                       .normal_sqnr_db = normal_sqnr_of(found),
                       .has_codes = has_four_bit_codes(*make_codec(found.stored.codec))};
  test.weights.emplace(
      about(pairing_.stored(c).reader(), [&] { return open_source(pairing_.stored(c), found, buffers_); }));
  return test;
}

CandidateTensor CandidateWeights::encoded(std::size_t c, const PlannedTensor& planned, const WeightSource& reference,
                                          bool fits) {
  const auto& [codec, quantizer] = codings_[c][planned.codec];
  CandidateTensor test{.form = planned.codec,
                       .bytes = planned.stored_bytes,
                       .normal_sqnr_db = codec->normal_sqnr_db(planned.info),
                       .has_codes = has_four_bit_codes(*codec)};
  if (!codec->quantizes()) test.form = codec->planes(planned.info).front().dtype;
  if (is_same(*codec, reference)) {
    test.is_reference = true;
    return test;
  }

  const InputFactor* const factor = factor_of(c, planned);
  const auto compensated = factor == nullptr ? nullptr : codings_[c].compensated(planned.codec, factor);
  const Quantizer& by = compensated ? *compensated : *quantizer;
  const std::uint64_t elements = planned.info.elements();
  if (fits)
    test.memory = buffers_.lend(codec->code_bytes(planned.info, elements), 0);
  else
    test.file = make_temporary();
  Encoding encoding(reference, planned.info, *codec, by, by.chunking(planned.info, unit_weights),
                    make_scratch(by.scratch_bytes(planned.info), fits), weighings_[c].columns_of(planned));
  Findings findings;
  std::mutex mutex;  // of the findings
  const auto encode_range = [&](std::uint64_t first, std::uint64_t n) {
    check_cancelled(progress_);
    Buffers::Loan loan;
    const std::uint64_t begin = encoding.offset(first), size = encoding.offset(first + n) - begin;
    if (!fits) loan = buffers_.lend(size, 0);
    const std::span<std::byte> out = fits ? test.memory.bytes().subspan(begin, size) : loan.bytes();
    const Findings found =
        about(pairing_.reference().reader(), [&] { return encoding.encode(first, n, out, nullptr); });
    if (!fits) test.file->write(begin, out);
    if (found == Findings{}) return;
    const std::scoped_lock lock(mutex);
    findings.add(found);
  };
  const std::uint64_t chunk = encoding.chunking().weights;
  if (encoding.chunking().scan)
    for_each_range(elements, chunk, [&](std::uint64_t first, std::uint64_t n) {
      check_cancelled(progress_);
      encoding.scan(first, n);
    });
  for_each_range(elements, chunk, encode_range);
  if (const auto instead = planned_instead(candidates_[c].plan->recipe, planned, findings, codings_[c])) {
    return encoded(c, *instead, reference, false);  // `fits` was true of the codes, which are smaller
  }
  KeptPlanes rest(codec->planes(planned.info));
  encoding.encoder().finish(rest);
  test.weights.emplace(
      planned.info, make_codec(planned.codec), rest.spans(),
      [from = test.file.get()](std::uint64_t offset, std::span<std::byte> out) { from->read(offset, out); }, buffers_);
  if (fits) test.weights->set_memory(test.memory.bytes());
  return test;
}

const InputFactor* CandidateWeights::factor_of(std::size_t c, const PlannedTensor& planned) {
  const auto needed = weighings_[c].factor_of(planned);
  if (!needed) return nullptr;
  if (!factor_ || factor_->of != *needed || factor_candidate_ != c) {
    factor_ = {};  // one at a time
    factor_ = weighings_[c].make_factor(*needed, [this](double) { check_cancelled(progress_); });
    factor_candidate_ = c;
  }
  return &factor_->factor;
}

std::optional<std::uint64_t> CandidateWeights::memory_bytes(std::size_t c, const PlannedTensor& planned,
                                                            const WeightSource& reference) {
  const auto& [codec, quantizer] = codings_[c][planned.codec];
  if (is_same(*codec, reference)) return std::nullopt;
  const auto compensated = weighings_[c].factor_of(planned) ? codings_[c].compensated(planned.codec, nullptr) : nullptr;
  return codec->code_bytes(planned.info, planned.info.elements()) +
         (compensated ? *compensated : *quantizer).scratch_bytes(planned.info);
}

}  // namespace nibble
