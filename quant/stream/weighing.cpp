#include "quant/stream/weighing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/refuse.hpp"
#include "core/xxh3.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/absmax_choice.hpp"
#include "quant/quantizers/compensation/compensated_quantizer.hpp"
#include "quant/quantizers/compensation/compensation.hpp"
#include "quant/stream/layer_inputs.hpp"

namespace nibble {

bool searches_absmax(const CodecSpec& codec) {
  return codec.has(absmax_option.name) && absmax_choice_of(codec) != AbsmaxChoice::max;
}

void weigh_searches(Plan& plan, const std::filesystem::path& calibration) {
  const auto is_searched = [](const PlannedTensor& tensor) { return searches_absmax(tensor.codec); };
  if (std::any_of(plan.tensors.begin(), plan.tensors.end(), is_searched)) plan.recipe.calibration = calibration;
}

namespace {

// Tensors of some kind, for a message.
struct Named {
  std::size_t count = 0;
  std::string first;

  void add(const PlannedTensor& tensor) {
    if (count++ == 0) first = tensor.info.name;
  }
};

// Of a second moment, read at once: a MiB, or one row.
constexpr std::uint64_t rows_read(std::uint64_t k) { return std::max<std::uint64_t>((1 << 18) / k, 1); }

// Row and column of an element below the diagonal that is not that above it, up to rounding in fp32.
std::optional<std::pair<std::size_t, std::size_t>> asymmetry(std::span<const double> matrix, std::size_t k) {
  constexpr double tolerance = 1e-3;
  constexpr std::size_t tile = 32;
  for (std::size_t row = 0; row < k; row += tile)
    for (std::size_t column = 0; column <= row; column += tile)
      for (std::size_t r = row; r < std::min(row + tile, k); ++r)
        for (std::size_t c = column; c < std::min(column + tile, r); ++c) {
          const double difference = matrix[r * k + c] - matrix[c * k + r];
          if (difference * difference > tolerance * tolerance * matrix[r * k + r] * matrix[c * k + c])
            return std::pair(r, c);
        }
  return std::nullopt;
}

}  // namespace

Weighing::Weighing(const Reader& in, const Plan& plan, std::uint64_t max_memory) : in_(&in) {
  const bool compensates = plan.recipe.compensate;
  if (plan.recipe.calibration.empty()) {
    if (!compensates) return;
    throw Error(Errc::usage, "compensation needs statistics of the inputs, with their second moments");
  }
  statistics_ = std::make_unique<Calibration>(plan.recipe.calibration, max_memory);
  const std::string label = escaped((plan.recipe.calibration / Calibration::file_name).native());
  if (compensates && !statistics_->has_second_moments())
    refuse(label, "has no second moments, which compensation needs: nibble.calibrate writes them when told to");
  Named missing, not_blocks, by_rows;
  std::size_t considered = 0, compensated = 0;
  std::set<std::size_t> inputs;
  for (const PlannedTensor& tensor : plan.tensors) {
    const bool can_compensate = compensates && columns_to_compensate(tensor.codec);
    if (!searches_absmax(tensor.codec) && !can_compensate) continue;
    ++considered;
    const auto input = input_of(tensor);
    if (!input) {
      missing.add(tensor);
      continue;
    }
    if (const auto factor = factor_of(tensor)) {
      ++compensated;  // by the second moment: the mean square is not used, and may be damaged
      add_memory_of(*factor);
      continue;
    }
    if (can_compensate) (has_columns_of(tensor, *input) ? not_blocks : by_rows).add(tensor);
    if (!searches_absmax(tensor.codec) || !has_columns_of(tensor, *input)) continue;
    inputs.insert(*input);
    ++memory_.tensors;
    memory_.column_bytes = std::max<std::uint64_t>(memory_.column_bytes, sizeof(float) * tensor.info.shape[1]);
  }
  memory_.bytes = statistics_->memory_bytes();
  if (considered == 0)
    throw Error(Errc::usage, compensates ? "compensation has no effect: no tensor is stored in a codec that has it"
                                         : "statistics of a calibration have no effect: the absmax of no tensor is "
                                           "searched");
  if (missing.count == considered)
    refuse(label, "lists no tensor {}; '{}' is the first: is it of another model?",
           compensates ? "that could be compensated" : "whose absmax is searched", printable(missing.first));
  const auto warn = [&](const Named& tensors, std::string_view fact) {
    if (tensors.count > 0)
      warnings_.push_back(fmt::format("{} of {} tensors {}: '{}'{}", tensors.count, considered, fact,
                                      printable(tensors.first), tensors.count > 1 ? ", ..." : ""));
  };
  warn(missing, compensates ? "are not compensated, because they have no statistics"
                            : "whose absmax is searched have no statistics, so all their columns count alike");
  warn(not_blocks, "are not compensated, because their rows are not whole blocks");
  warn(by_rows, "are not compensated, because all weights of a row have the same input");
  if (compensates && compensated == 0) throw Error(Errc::usage, "compensation has no effect: " + warnings_.back());
  std::string mean_squares;
  if (!inputs.empty()) {
    Xxh3Stream hash;
    for (const std::size_t input : inputs) {
      const std::vector<float> mean_square = statistics_->mean_square(input);
      hash.append(std::as_bytes(std::span(mean_square)));
    }
    mean_squares = fmt::format(R"("mean_squares_xxh3_128":"{}",)", hash.digest().hex());
  }
  identity_ = fmt::format(R"({{"bytes":{},"xxh3_128":"{}",{}"tensors":{}}})", statistics_->manifest_bytes(),
                          statistics_->manifest_hash().hex(), mean_squares, memory_.tensors + compensated);
}

std::optional<std::size_t> Weighing::columns_to_compensate(const CodecSpec& codec) {
  const auto [found, is_new] = compensated_columns_.try_emplace(codec);
  if (is_new) found->second = compensated_columns(*make_codec(codec));
  return found->second;
}

void Weighing::add_memory_of(const FactorOf& of) {
  const std::uint64_t k = statistics_->inputs()[of.input].columns;
  CompensationMemory& memory = memory_.compensation;
  memory.making_bytes = std::max(memory.making_bytes, InputFactor::making_bytes(k) + rows_read(k) * k * sizeof(float));
  memory.factor_bytes = std::max(memory.factor_bytes, InputFactor::memory_bytes(k));
  memory.thread_bytes = std::max(memory.thread_bytes, compensation_bytes(k, of.blocksize));
}

std::optional<std::size_t> Weighing::input_of(const PlannedTensor& tensor) const {
  const auto found = layer_input(*in_, *statistics_, tensor);
  return found ? std::optional(found->input) : std::nullopt;
}

// Where rows are the inputs, all weights of a row are multiplied by the same input, so a search within a row is the
// same without statistics.
bool Weighing::has_columns_of(const PlannedTensor& tensor, std::size_t input) const {
  return statistics_->inputs()[input].columns == tensor.info.shape[1];
}

ColumnWeights Weighing::columns_of(const PlannedTensor& tensor) const {
  if (!statistics_ || !searches_absmax(tensor.codec) || factor_of(tensor)) return {};
  const auto input = input_of(tensor);
  if (!input || !has_columns_of(tensor, *input)) return {};
  return ColumnWeights(statistics_->mean_square(*input));
}

std::optional<FactorOf> Weighing::factor_of(const PlannedTensor& tensor) const {
  const auto found = compensated_columns_.find(tensor.codec);
  if (found == compensated_columns_.end() || !found->second) return std::nullopt;
  const auto input = input_of(tensor);
  if (!input || !has_columns_of(tensor, *input) || tensor.info.shape[1] % *found->second != 0) return std::nullopt;
  return FactorOf{*input, *found->second};
}

std::uint64_t Weighing::second_moment_bytes(const FactorOf& of) const {
  const std::uint64_t k = statistics_->inputs()[of.input].columns;
  return k * k * sizeof(float);
}

std::unique_ptr<const MadeFactor> Weighing::make_factor(const FactorOf& of,
                                                        const std::function<void(double)>& progress) const {
  const std::uint64_t k = statistics_->inputs()[of.input].columns;
  std::vector<double> matrix(k * k);
  Xxh3Stream hash;
  {
    std::vector<float> rows(rows_read(k) * k);
    for (std::uint64_t row = 0; row < k; row += rows_read(k)) {
      const auto read = std::span(rows).first(std::min(rows_read(k), k - row) * k);
      statistics_->read_second_moment(of.input, row, read);
      hash.append(std::as_bytes(read));
      std::ranges::copy(read, matrix.begin() + static_cast<std::ptrdiff_t>(row * k));
      progress(0);
    }
  }
  if (const auto at = asymmetry(matrix, k))
    statistics_->refuse_second_moment(of.input, fmt::format("[{}, {}] is {}, and [{}, {}] is {}: not symmetric",
                                                            at->first, at->second, matrix[at->first * k + at->second],
                                                            at->second, at->first, matrix[at->second * k + at->first]));
  try {
    return std::make_unique<const MadeFactor>(
        MadeFactor{of, hash.digest(), InputFactor(matrix, k, {.blocksize = of.blocksize, .progress = progress})});
  } catch (const Error& error) {
    if (error.code() != Errc::bad_input) throw;
    statistics_->refuse_second_moment(of.input, error.what());
  }
}

}  // namespace nibble
