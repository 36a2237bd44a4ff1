// Codes that are copied to shared memory two steps ahead, for the product's kernels that have no registers for them
// (four_bit_matmul.hpp).
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_run.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_source.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_tile.hpp"
#include "kernels/matmul/matmul_block.hpp"

namespace nibble::kernels {
using namespace device;

/// The codes of two steps in the gaps of the table of pairs (four_bit_pair_table.hpp). Each warp has its own gaps, one
/// for every word that its lanes need in a step, and lane i has word i of each, so it always uses bank i. A lane reads
/// only what it has copied itself: cp_wait is enough, and no barrier.
template <class Table, FourBitMatmulTile Tile, bool = Tile.copies_codes()> class FourBitMatmulCodes {
  using Run = FourBitMatmulRun<Tile.run>;
  static constexpr u32 groups = Tile.groups(), n_tiles = Tile.n_tiles, words = groups * n_tiles * 2 * 2;
  static constexpr u32 warp_bytes = words * Table::pair_bytes, step_bytes = Tile.threads() / 32 * warp_bytes;
  static_assert(2 * step_bytes == 256 * Table::pair_bytes && Table::gap_bytes == 32 * 4);

 public:
  NIBBLE_DEVICE FourBitMatmulCodes(const Table& table, const MatmulLane<Tile>& lane)
      : first_(table.gaps() + (warp_id() * warp_bytes + 4 * lane.id)) {}

  /// Starts copies of the codes of `source`: those of the step that take() returns next (`ahead` is 0), or of the one
  /// after it (1). Past the end of k they are zeros.
  NIBBLE_DEVICE void copy(u32 ahead, const FourBitMatmulSource<Tile>& source, const MatmulLane<Tile>& lane) const {
    const Shared<u8> to = first_ + (ahead == 0 ? next_ : step_bytes - next_);
    NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
      NIBBLE_UNROLL for (u32 word = 0; word < 2; ++word) {
        const bool inside = static_cast<i32>(i * Run::in_group + Run::run_of(word, lane.q)) < source.left;
        NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
          NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
            const Global<const u8> from = source.codes[tile][half] + (32 * i + word * Run::word_bytes);
            cp_async4(to + offset_of(i, tile, half, word), from, inside ? 4 : 0);
          }
        }
      }
    }
  }

  /// Reads the codes of the next step, whose copies this thread has waited for. Their memory is free then.
  NIBBLE_DEVICE void take(u32x2 (&packed)[groups][n_tiles][2]) {
    const Shared<u8> from = first_ + next_;
    const auto word_at = [&](u32 offset) { return lds((from + offset).template as<u32>()); };
    NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
      NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
        NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
          packed[i][tile][half] = {word_at(offset_of(i, tile, half, 0)), word_at(offset_of(i, tile, half, 1))};
        }
      }
    }
    next_ = step_bytes - next_;
  }

 private:
  [[nodiscard]] NIBBLE_DEVICE static u32 offset_of(u32 group, u32 tile, u32 half, u32 word) {
    return (((group * n_tiles + tile) * 2 + half) * 2 + word) * Table::pair_bytes;
  }

  Shared<u8> first_;
  u32 next_ = 0;  // where the step is that take() returns next, after first_
};

/// A kernel that loads codes to registers copies none.
template <class Table, FourBitMatmulTile Tile> class FourBitMatmulCodes<Table, Tile, false> {
 public:
  NIBBLE_DEVICE FourBitMatmulCodes(const Table&, const MatmulLane<Tile>&) {}
};

}  // namespace nibble::kernels
