// The end of a product: where its sums go, and how several blocks that divide k between them add theirs.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/weights.hpp"

namespace nibble::kernels {
using namespace device;

/// y [m, n] of 16 bits or of fp32, and what is added to the sums: first the bias, then what y has already.
template <class Half> struct MatmulOutput {
  Global<const Half> bias;  // or null
  Global<Half> y;           // null if y is fp32
  Global<float> y_f32;
  i64 y_stride;
  bool accumulate;

  /// Whether y is just the sums, rounded to 16 bits: then store_sum() does what store() does.
  [[nodiscard]] NIBBLE_DEVICE bool is_sum() const { return bias.is_null() && !y.is_null() && !accumulate; }
  NIBBLE_DEVICE void store_sum(i64 at_m, i64 at_n, float sum) const {
    st(y + (at_m * y_stride + at_n), rounded<Half>(sum));
  }

  NIBBLE_DEVICE void store(i64 at_m, i64 at_n, float sum) const {
    const i64 at = at_m * y_stride + at_n;
    if (!bias.is_null()) sum = add_rn(sum, to_float(ld(bias + at_n)));
    if (y.is_null()) {
      st(y_f32 + at, accumulate ? add_rn(sum, ld(y_f32 + at)) : sum);
    } else {
      st(y + at, rounded<Half>(accumulate ? add_rn(sum, to_float(ld(y + at))) : sum));
    }
  }
};

/// Sums of blocks that divide k between them. Each stores its own in `partial`; the last of them to do so, which a
/// counter tells it, adds them in order of k: no order of additions depends on time.
struct SplitSums {
  Global<float> partial;  // [splits][size], null without splits
  Global<u32> arrived;    // one counter for each group of blocks: 0 before the launch, and again after it
  u32 splits;
  i64 size;

  /// Items are tiles times splits. The splits of a tile follow each other.
  [[nodiscard]] NIBBLE_DEVICE u32 tile_of(u32 item) const { return splits == 1 ? item : item / splits; }
  [[nodiscard]] NIBBLE_DEVICE u32 split_of(u32 item) const { return splits == 1 ? 0 : item % splits; }
  /// The first of a split's steps. Each split gets whole ones of all steps, of which there are at most 2^24; splits are
  /// at most 16.
  [[nodiscard]] NIBBLE_DEVICE u32 first_step(u32 steps, u32 split) const { return steps * split / splits; }

  NIBBLE_DEVICE void put(u32 split, i64 at, float sum) const { st(partial + (i64{split} * size + at), sum); }

  /// Called by all threads of a block after put(): whether this block is the group's last, and has to add. Afterwards
  /// the sums of all of its blocks are there to be read.
  [[nodiscard]] NIBBLE_DEVICE bool is_last(u32 group) const {
    NIBBLE_SHARED(u32, before, 1);
    sync_threads();  // the block's sums are written
    if (thread_id() == 0) {
      threadfence();
      const u32 others = atomic_add(arrived + group, 1);
      if (others == splits - 1) st(arrived + group, u32{0});
      sts(before, others);
      threadfence();
    }
    sync_threads();
    return lds(before) == splits - 1;
  }

  /// The sum of all splits of one value, which is at that place in the y of `partial`.
  [[nodiscard]] NIBBLE_DEVICE float total(i64 at) const {
    constexpr u32 at_once = 8;  // loads, before the first is waited for
    float total = 0;
    for (u32 split = 0; split < splits; split += at_once) {
      float part[at_once] = {};  // adding 0 changes nothing: a total is never -0
      NIBBLE_UNROLL for (u32 s = 0; s < at_once; ++s) {
        if (split + s < splits) part[s] = ld(partial + (i64{split + s} * size + at));
      }
      NIBBLE_UNROLL for (u32 s = 0; s < at_once; ++s) total = add_rn(total, part[s]);
    }
    return total;
  }

  /// The same for many values of a thread. What the last block adds: for value i of `count`, at(i) is its place in the
  /// y of `partial`, or negative if there is no such value, and store(i, total) takes the sum of all splits. The
  /// block's `Threads` take the values in turn. A thread asks for all that it adds in a round before it adds: the
  /// memory's latency is much longer than all else here.
  template <u32 Threads, class At, class Store>
  NIBBLE_DEVICE void for_each_total(u32 count, At&& at, Store&& store) const {
    constexpr u32 values = 4, splits_at_once = 4;  // of a round
    for (u32 first = thread_id(); first < count; first += Threads * values) {
      i64 place[values];
      float total[values] = {};
      NIBBLE_UNROLL for (u32 v = 0; v < values; ++v) {
        const u32 i = first + v * Threads;
        place[v] = i < count ? at(i) : -1;
      }
      for (u32 split = 0; split < splits; split += splits_at_once) {
        float part[splits_at_once][values] = {};
        NIBBLE_UNROLL for (u32 s = 0; s < splits_at_once; ++s) {
          NIBBLE_UNROLL for (u32 v = 0; v < values; ++v) {
            if (split + s < splits && place[v] >= 0) part[s][v] = ld(partial + (i64{split + s} * size + place[v]));
          }
        }
        NIBBLE_UNROLL for (u32 s = 0; s < splits_at_once; ++s) {
          NIBBLE_UNROLL for (u32 v = 0; v < values; ++v) total[v] = add_rn(total[v], part[s][v]);
        }
      }
      NIBBLE_UNROLL for (u32 v = 0; v < values; ++v) {
        if (place[v] >= 0) store(first + v * Threads, total[v]);
      }
    }
  }
};

}  // namespace nibble::kernels
