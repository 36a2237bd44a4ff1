#include "nibble/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/ranges.hpp"
#include "nibble/error.hpp"
#include "quant/simd/widen.hpp"
#include "quant/stream/memory_model.hpp"
#include "quant/stream/source.hpp"

namespace nibble {
namespace {

static_assert(unit_weights % tile_weights == 0);

[[noreturn]] void fail(const Reader& reader, const TensorInfo& tensor, const std::string& fact) {
  throw Error(Errc::usage, printable(reader.path().string()),
              fmt::format("tensor '{}': {}", printable(tensor.name), fact));
}

// All of a tensor, on the threads of the arena that calls.
void decode(const WeightSource& source, std::span<float> out) {
  for_each_range(out.size(), unit_weights, [&](std::uint64_t first, std::uint64_t n) {
    Buffers::Loan loan;
    const std::span<const std::byte> raw = source.raw(first, n, loan);
    alignas(64) std::array<float, tile_weights> tile;
    for (std::uint64_t at = first; at < first + n; at += tile_weights) {
      const std::size_t count = std::min<std::uint64_t>(tile_weights, first + n - at);
      std::ranges::copy(source.decode(first, raw, at, count, tile), out.begin() + static_cast<std::ptrdiff_t>(at));
    }
  });
}

}  // namespace

struct WeightReader::State {
  explicit State(const Reader& reader) : stored(about(reader, [&] { return StoredWeights(reader); })) {}

  // A plain tensor is weights if its type is; what a scheme stored always is.
  [[nodiscard]] WeightSource open(const StoredWeights::Tensor& tensor, Buffers& buffers) const {
    const TensorInfo& info = tensor.stored.info;
    if (!is_weight_type(info.dtype))
      fail(stored.reader(), info, fmt::format("type {} is not a weight type", traits(info.dtype).name));
    return about(stored.reader(), [&] { return open_source(stored, tensor, buffers); });
  }

  StoredWeights stored;
};

WeightReader::WeightReader(const Reader& reader) : state_(std::make_unique<State>(reader)) {}
WeightReader::WeightReader(WeightReader&&) noexcept = default;
WeightReader& WeightReader::operator=(WeightReader&&) noexcept = default;
WeightReader::~WeightReader() = default;

std::size_t WeightReader::size() const noexcept { return state_->stored.size(); }

TensorInfo WeightReader::operator[](std::size_t tensor) const { return state_->stored[tensor].stored.info; }

std::optional<std::size_t> WeightReader::find(std::string_view name) const { return state_->stored.find(name); }

void WeightReader::read(std::size_t tensor, std::span<float> out) const {
  const StoredWeights::Tensor stored = state_->stored[tensor];
  Buffers buffers;
  const WeightSource source = state_->open(stored, buffers);
  if (out.size() != stored.stored.info.elements())
    fail(state_->stored.reader(), stored.stored.info,
         fmt::format("has {} weights, not {}", stored.stored.info.elements(), out.size()));
  decode(source, out);
}

Weights weights(const Reader& reader, std::string_view name) {
  const WeightReader::State state(reader);
  const auto tensor = state.stored.find(name);
  if (!tensor)
    throw Error(Errc::usage, printable(reader.path().string()),
                fmt::format("has no tensor '{}'", printable(std::string(name))));
  const StoredWeights::Tensor stored = state.stored[*tensor];
  Buffers buffers;
  const WeightSource source = state.open(stored, buffers);  // first: it throws if these are not weights
  Weights result{stored.stored.info.shape, std::vector<float>(stored.stored.info.elements())};
  decode(source, result.values);
  return result;
}

}  // namespace nibble
