// Where the lanes of the product's kernel find k: it depends on how many contiguous weights of a row are sure to share
// one absmax, a run (four_bit_matmul.hpp).
//
// mma.sync adds up 16 of k from the four lanes of a quad, four from each, and one absmax multiplies its sum. So these
// 16 have to be of one run. Of a group of 64 weights lane q has these in its four fragments f:
//
//   run  f = 0             1             2             3             codes of the lane
//    64  16q ... 16q + 3   16q + 4 ...   16q + 8 ...   16q + 12 ...  8 contiguous bytes
//    32  8q ... 8q + 3     8q + 4 ...    32 + 8q ...   36 + 8q ...   4 contiguous bytes of each run
//    16  4q ... 4q + 3     16 + 4q ...   32 + 4q ...   48 + 4q ...   2 contiguous bytes of each run
//     8  2q, 2q + 1, and   16 + 2q ...   32 + 2q ...   48 + 2q ...   1 byte of each run
//        8 + 2q, 9 + 2q
//
// A fragment takes one mma, but with runs of 8 it is of two runs and takes two: x is zeros in the place of the other
// run.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/matmul/four_bit/quad_transpose.hpp"

namespace nibble::kernels {
using namespace device;

/// `run` is 64, 32, 16 or 8.
template <u32 run> struct FourBitMatmulRun {
  static_assert(run == 64 || run == 32 || run == 16 || run == 8);
  static constexpr u32 in_group = 64 / run, mmas = run == 8 ? 1 : run / 16;  // runs of a group; mma of a run

  /// The fragment of weights that mma `f` of a group takes.
  NIBBLE_DEVICE_AND_HOST static constexpr u32 fragment_of(u32 f) { return run == 8 ? f / 2 : f; }

  // -- The codes: 8 bytes of each group, in two words. A row of codes is aligned to 8 bytes if a run is 64, else to 4.

  /// The byte of a group at which a lane loads its first word, and how far its second is from that.
  [[nodiscard]] NIBBLE_DEVICE static u32 first_byte(u32 q) {
    return run == 64 ? 8 * q : run == 32 || run == 8 ? 4 * q : 8 * (q % 2) + 4 * (q / 2);
  }
  static constexpr u32 word_bytes = run == 64 ? 4 : 16;

  /// The run of a group that a lane's word is from.
  [[nodiscard]] NIBBLE_DEVICE static u32 run_of(u32 word, u32 q) {
    return run == 64 ? 0 : run == 32 ? word : run == 16 ? 2 * word + q % 2 : 4 * word + q;
  }

  /// From the words that a lane has loaded to those that it multiplies: fragment f takes bytes 2 * f and 2 * f + 1. All
  /// lanes of a warp call it.
  ///
  /// With runs of 16, two neighbours load twice the bytes that they need, each of every other run: 4 bytes are the
  /// least that fill a register. They swap halves of words. With runs of 8, a lane loads two whole runs, of which the
  /// quad then has a byte each.
  [[nodiscard]] NIBBLE_DEVICE static u32x2 multiplied(u32x2 loaded, u32 q) {
    if constexpr (run == 8) return QuadTranspose::of_lane(q)(loaded);
    if constexpr (run != 16) return loaded;
    const bool odd = q % 2 != 0;
    const u32 got = shfl_xor(~0u, prmt(loaded.x, loaded.y, odd ? 0x5410 : 0x7632), 1);
    return {prmt(loaded.x, got, odd ? 0x3254 : 0x5410), prmt(loaded.y, got, odd ? 0x3276 : 0x7610)};
  }

  // -- x in shared memory: 128 bytes of each group in a row, copied in pieces of 16

  /// Beyond what a row of x needs, so that lanes that read at the same time are in different banks: 8 rows of a quarter
  /// of a 16-byte load, or 4 rows of half an 8-byte load.
  static constexpr u32 x_gap_bytes = run == 16 ? 32 : 16;

  /// Where piece `piece` of a row is: a lane has its two pieces of a group side by side.
  [[nodiscard]] NIBBLE_DEVICE static u32 slot_of(u32 piece) {
    return run == 32 ? piece / 8 * 8 + piece % 4 * 2 + piece / 4 % 2 : piece;
  }
  [[nodiscard]] NIBBLE_DEVICE static u32 first_x_byte(u32 q) { return run == 8 ? 4 * q : run == 16 ? 8 * q : 32 * q; }

  /// What a lane has of a row of x in a group.
  struct X {
    u32 mma[in_group * mmas][2];  // for mma f
  };

  /// `at` is the lane's first byte of it.
  [[nodiscard]] NIBBLE_DEVICE static X load_x(Shared<u8> at) {
    if constexpr (run == 8) {
      X x{};
      NIBBLE_UNROLL for (u32 r = 0; r < 8; ++r) x.mma[r][r % 2] = lds((at + 16 * r).template as<u32>());
      return x;
    } else if constexpr (run == 16) {
      const u32x2 x0 = lds(at.template as<u32x2>()), x1 = lds((at + 32).template as<u32x2>());
      const u32x2 x2 = lds((at + 64).template as<u32x2>()), x3 = lds((at + 96).template as<u32x2>());
      return {{{x0.x, x0.y}, {x1.x, x1.y}, {x2.x, x2.y}, {x3.x, x3.y}}};
    } else {
      const u32x4 x0 = lds(at.template as<u32x4>()), x1 = lds((at + 16).template as<u32x4>());
      return {{{x0.x, x0.y}, {x0.z, x0.w}, {x1.x, x1.y}, {x1.z, x1.w}}};
    }
  }
};

}  // namespace nibble::kernels
