#include "quant/quantizers/search/scale_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include <hwy/aligned_allocator.h>

#include "quant/errors/squares.hpp"
#include "quant/quantizers/search/block_group.hpp"
#include "quant/simd/magnitude.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

constexpr std::size_t segment = 128;  // weights of a block that are held at a time: those of 16 blocks fit in L1
constexpr float min_magnitude = 1e-30f, max_magnitude = 1e30f;
constexpr float root_unit = 32767;  // the integer of the largest root of a block

}  // namespace

// The blocks in groups of as many as a vector has lanes. Those that are not searched, and those after the last, count
// as zeros. Weights are read `step` of each block at a time; blocks of more than that are read again for each sum.
class SearchedBlocks::Groups {
 public:
  Groups(DType source, std::span<const std::byte> weights, std::size_t blocksize, const ColumnsFrom& columns,
         bool keeps)
      : source_(source),
        size_(traits(source).bits / 8),
        weights_(weights),
        blocksize_(blocksize),
        columns_(columns),
        step_(std::min(segment, blocksize)),
        largest_(ceil_div(weights.size(), blocksize * size_)) {
    find_largest();
    const std::size_t lanes = block_group::lanes(), groups = ceil_div(largest_.size(), lanes);
    factors_.resize(groups * lanes);
    root_factors_.resize(weighs() ? groups * lanes : 0);
    for (std::size_t b = 0; b < largest_.size(); ++b)
      if (is_searched(b)) {
        factors_[b] = SearchValues::unit / largest_[b];
        if (weighs()) root_factors_[b] = root_unit / largest_root_of(b);
      }
    loaded_.resize(keeps && step_ == blocksize ? groups : 1, std::numeric_limits<std::size_t>::max());
    room_ = hwy::AllocateAligned<std::int16_t>(loaded_.size() * arrays() * step_ * lanes);
    if (room_ == nullptr) throw std::bad_alloc();
  }

  [[nodiscard]] std::size_t count() const { return largest_.size(); }
  [[nodiscard]] std::span<const float> largest() const { return largest_; }
  [[nodiscard]] bool is_searched(std::size_t block) const {
    return largest_[block] >= min_magnitude && largest_[block] <= max_magnitude;
  }

  // Adds up the sums of scales that are each given for every lane. The group's first block is `first`.
  void sum(std::size_t first, const FourBitTables& tables, const SearchValues& values,
           std::span<const block_group::Inverses> inverse, std::span<block_group::Sums> sums) {
    for (std::size_t at = 0; at < blocksize_; at += step_)
      block_group::add_sums(tables, values, load(first, at), step_, inverse, sums);
  }

 private:
  [[nodiscard]] bool weighs() const { return columns_.columns != nullptr; }
  [[nodiscard]] std::size_t arrays() const { return weighs() ? 3 : 1; }

  [[nodiscard]] std::span<const std::byte> bytes_of(std::size_t first, std::size_t n) const {
    const std::size_t begin = std::min(first * size_, weights_.size());
    return weights_.subspan(begin, std::min(n * size_, weights_.size() - begin));
  }

  // NaN or infinity if a block has one.
  void find_largest() {
    if (source_ != DType::f64) return largest_magnitudes(source_, weights_, blocksize_, largest_);
    std::array<float, segment> room;
    for (std::size_t b = 0; b < count(); ++b)
      for (std::size_t at = 0; at < blocksize_ && std::isfinite(largest_[b]); at += segment) {
        const auto part = weights_from(b * blocksize_ + at, std::min(segment, blocksize_ - at), room);
        const float next = largest_magnitude(DType::f32, std::as_bytes(part));
        largest_[b] = next <= largest_[b] ? largest_[b] : next;
      }
  }

  [[nodiscard]] float largest_root_of(std::size_t block) const {
    float largest = 0;
    std::array<float, segment> room;
    for (std::size_t at = 0; at < blocksize_; at += segment) {
      const auto roots = roots_from(block * blocksize_ + at, std::min(segment, blocksize_ - at), room);
      largest = std::max(largest, largest_magnitude(DType::f32, std::as_bytes(roots)));
    }
    return largest;
  }

  // n weights from weight `first` on, followed by zeros if there are fewer, or their roots. At most tile_weights.
  [[nodiscard]] std::span<const float> weights_from(std::size_t first, std::size_t n, std::span<float> room) const {
    const auto part = widen(source_, bytes_of(first, n), room);
    if (part.size() == n) return part;
    if (part.data() != room.data()) std::ranges::copy(part, room.begin());
    std::ranges::fill(room.subspan(part.size(), n - part.size()), 0.0f);
    return room.first(n);
  }
  [[nodiscard]] std::span<const float> roots_from(std::size_t first, std::size_t n, std::span<float> room) const {
    return columns_.columns->roots(columns_.first + first, n, room);
  }

  // Weights of the group's blocks from weight `at` of each on.
  block_group::LaidOut load(std::size_t first, std::size_t at) {
    const std::size_t lanes = block_group::lanes(), size = step_ * lanes, begin = first * blocksize_ + at;
    const std::size_t slot = loaded_.size() == 1 ? 0 : first / lanes;
    std::int16_t* const room = room_.get() + slot * arrays() * size;
    const block_group::LaidOut group = weighs() ? block_group::LaidOut{room, room + size, room + 2 * size}
                                                : block_group::LaidOut{room, nullptr, nullptr};
    if (std::exchange(loaded_[slot], begin) == begin) return group;
    const auto weights = [&](std::size_t from, std::size_t n, std::span<float> to) {
      return weights_from(from, n, to);
    };
    interleave_parts(begin, factors_.data() + first, weights, group.weights);
    if (weighs()) {
      const auto roots = [&](std::size_t from, std::size_t n, std::span<float> to) { return roots_from(from, n, to); };
      interleave_parts(begin, root_factors_.data() + first, roots, group.roots);
      block_group::weigh(group, step_);
    }
    return group;
  }

  template <class Part>
  void interleave_parts(std::size_t begin, const float* factors, const Part& part, std::int16_t* interleaved) const {
    static constexpr std::array<float, segment> zeros{};
    alignas(64) std::array<float, segment * block_group::max_lanes> room;
    std::array<const float*, block_group::max_lanes> rows;
    const std::size_t lanes = block_group::lanes();
    if (step_ == blocksize_) {
      const auto all = part(begin, lanes * step_, room);
      for (std::size_t lane = 0; lane < lanes; ++lane) rows[lane] = all.data() + lane * step_;
    } else {
      for (std::size_t lane = 0; lane < lanes; ++lane)
        rows[lane] = part(begin + lane * blocksize_, step_, std::span(room).subspan(lane * step_, step_)).data();
    }
    // The integer of a NaN could be too large for the sums.
    for (std::size_t lane = 0; lane < lanes; ++lane)
      if (factors[lane] == 0) rows[lane] = zeros.data();
    block_group::interleave(rows.data(), step_, factors, interleaved);
  }

  DType source_;
  std::size_t size_;
  std::span<const std::byte> weights_;
  std::size_t blocksize_;
  ColumnsFrom columns_;
  std::size_t step_;
  std::vector<float> largest_, factors_, root_factors_;  // by block
  std::vector<std::size_t> loaded_;                      // the first weight of what is laid out, by group or of one
  hwy::AlignedFreeUniquePtr<std::int16_t[]> room_;
};

ScaleSearch::ScaleSearch(const FourBitTables& tables, std::size_t blocksize, AbsmaxChoice choice)
    : tables_(tables),
      values_(tables),
      blocksize_(blocksize),
      ratios_(search_ratios(blocksize, choice)),
      weighted_ratios_(blocksize, choice) {}

SearchedBlocks::SearchedBlocks(const ScaleSearch& search, DType source, std::span<const std::byte> weights,
                               const ColumnsFrom& columns, bool keeps)
    : search_(search),
      source_(source),
      weights_(weights),
      columns_(columns),
      groups_(std::make_unique<Groups>(source, weights, search.blocksize_, columns, keeps)) {}

SearchedBlocks::~SearchedBlocks() = default;

void SearchedBlocks::find(std::span<float> absmax) {
  const auto ratios = columns_.columns != nullptr ? search_.weighted_ratios_.get() : search_.ratios_;
  std::array<block_group::Inverses, max_search_ratios> tried;
  for (std::size_t i = 0; i < ratios.size(); ++i) tried[i] = block_group::inverse_of(ratios[i]);
  const auto largest = groups_->largest();
  const std::size_t lanes = block_group::lanes();
  for (std::size_t first = 0; first < absmax.size(); first += lanes) {
    const auto some = absmax.subspan(first, std::min(lanes, absmax.size() - first));
    block_group::OfLanes best{}, scale;
    scale.fill(1.0f);
    std::array<block_group::Sums, max_search_ratios> room;
    const auto sums = std::span(room).first(ratios.size());
    std::ranges::fill(sums, block_group::Sums());
    const auto consider = [&](std::span<const block_group::Inverses> inverse, std::span<block_group::Sums> of) {
      groups_->sum(first, search_.tables_, search_.values_, inverse, of);
      block_group::choose(of, best, scale);
    };
    consider(std::span(tried).first(ratios.size()), sums);
    const std::array<block_group::Inverses, 1> refined{block_group::inverse_of(scale)};
    std::array<block_group::Sums, 1> last{};
    consider(refined, last);

    for (std::size_t b = 0; b < some.size(); ++b)
      some[b] = groups_->is_searched(first + b) ? largest[first + b] * scale[b] : 0.0f;
  }
  refit(absmax);
  for (std::size_t b = 0; b < absmax.size(); ++b) {
    if (absmax[b] == 0) absmax[b] = largest[b];
    if (!std::isfinite(absmax[b])) absmax[b] = std::numeric_limits<float>::quiet_NaN();
  }
}

void SearchedBlocks::refit(std::span<float> absmax) const {
  std::array<std::uint8_t, tile_weights / 2> codes;
  alignas(64) std::array<float, tile_weights> tile, room;
  const std::size_t size = traits(source_).bits / 8, n = weights_.size() / size;
  const std::size_t blocksize = search_.blocksize_, step = tile_weights / blocksize;
  for (std::size_t b = 0; b < absmax.size(); b += step) {
    const std::size_t first = b * blocksize, count = std::min(tile_weights, n - first);
    const auto part = weights_.subspan(first * size, count * size);
    const auto some = absmax.subspan(b, std::min(step, absmax.size() - b));
    const auto packed = std::span(codes).first(ceil_div(count, 2));
    const auto decoded = std::span(tile).first(count);
    encode_four_bit_for(search_.tables_, source_, part, blocksize, some, packed);
    decode_four_bit(search_.tables_, packed, some, blocksize, decoded);
    auto wide = widen(source_, part, room);
    if (columns_.columns != nullptr) {
      if (wide.data() != room.data()) std::ranges::copy(wide, room.begin());
      wide = std::span(room).first(count);
      columns_.columns->apply(columns_.first + first, std::span(room).first(count));
      columns_.columns->apply(columns_.first + first, decoded);
    }
    for (std::size_t i = 0; i < some.size(); ++i) {
      const std::size_t begin = i * blocksize, length = std::min(blocksize, count - begin);
      const ErrorSums sums = compare_squares(wide.subspan(begin, length), decoded.subspan(begin, length));
      if (sums.test > 0) some[i] = static_cast<float>(some[i] * (sums.product / sums.test));
    }
  }
}

void SearchedBlocks::take_better(std::span<float> absmax, std::span<const float> other) {
  const std::size_t lanes = block_group::lanes();
  for (std::size_t first = 0; first < absmax.size(); first += lanes) {
    const std::size_t count = std::min(lanes, absmax.size() - first);
    std::array<block_group::OfLanes, 2> scale{};
    for (std::size_t b = 0; b < count; ++b)
      if (groups_->is_searched(first + b)) {
        const float largest = groups_->largest()[first + b];
        scale[0][b] = absmax[first + b] / largest;
        scale[1][b] = other[first + b] / largest;
      }
    const std::array<block_group::Inverses, 2> inverse{block_group::inverse_of(scale[0]),
                                                       block_group::inverse_of(scale[1])};
    std::array<block_group::Sums, 2> sums{};
    groups_->sum(first, search_.tables_, search_.values_, inverse, sums);
    for (std::size_t b = 0; b < count; ++b) {
      const auto gain = [&](std::size_t k) {
        return scale[k][b] * (2 * sums[k].product[b] - scale[k][b] * sums[k].square[b]);
      };
      if (gain(1) > gain(0)) absmax[first + b] = other[first + b];
    }
  }
}

}  // namespace nibble
