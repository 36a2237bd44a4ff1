// A table in shared memory that turns a byte of codes into the two weights it stands for, both rounded to 16 bits: one
// register of an operand of mma.sync. The 256 pairs have 32 copies each, so that lane i reads only bank i, whatever its
// byte is.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/weights.hpp"

namespace nibble::kernels {
using namespace device;

/// With gaps, 128 bytes that the table does not use follow the 32 copies of each pair. Then the byte and the lane's
/// bank are whole bytes of an address, which one prmt puts together; without gaps it takes a shift and a lop3. The
/// codebook of nested absmax is in the gaps, or after the table if there are none or the kernel keeps other things in
/// them.
enum class PairTableGaps : u32 { none, for_nested, for_kernel };

template <class Half, PairTableGaps Gaps> class FourBitPairTable {
  static constexpr bool has_gaps = Gaps != PairTableGaps::none, nested_in_gaps = Gaps == PairTableGaps::for_nested;

 public:
  static constexpr u32 pair_bytes = has_gaps ? 256 : 128, gap_bytes = pair_bytes - 128;
  static constexpr u32 bytes = 256 * pair_bytes + (nested_in_gaps ? 0 : 256 * 4);

  NIBBLE_DEVICE explicit FourBitPairTable(Shared<u8> memory) : table_(memory), bank_(4 * lane_id()) {}

  /// Called by all of 256 threads, who then synchronize. `nested_value` is the calling thread's of the nested codebook.
  template <bool Nested> NIBBLE_DEVICE void fill(const float (&codebook)[16], float nested_value) const {
    NIBBLE_UNROLL for (u32 i = 0; i < 256 * 8; i += 256) {
      const u32 byte = (i + thread_id()) / 8;  // the high nibble is first
      const u32 pair = rounded_pair<Half>(codebook[byte >> 4], codebook[byte & 15]);
      sts((table_ + (pair_bytes * byte + 16 * (thread_id() % 8))).template as<u32x4>(), {pair, pair, pair, pair});
    }
    if constexpr (Nested) sts(nested_at(thread_id()), nested_value);
  }

  /// The two weights of byte number `byte` of `word`.
  [[nodiscard]] NIBBLE_DEVICE u32 pair_of(u32 word, u32 byte) const {
    u32 at;
    if constexpr (has_gaps)
      at = prmt(word, bank_, 0x5504 | byte << 4);
    else
      at = lop3<(0xf0 & 0xcc) | 0xaa>(byte == 0 ? word << 7 : word >> (8 * byte - 7), 0x7f80, bank_);
    return lds((table_ + at).template as<u32>());
  }

  /// The first of all gaps; they are pair_bytes apart.
  [[nodiscard]] NIBBLE_DEVICE Shared<u8> gaps() const {
    static_assert(Gaps == PairTableGaps::for_kernel);
    return table_ + 128;
  }

  /// A value of the nested codebook. 32 neighbours are in different banks, with gaps as without.
  [[nodiscard]] NIBBLE_DEVICE float nested_value_of(u32 code) const { return lds(nested_at(code)); }

 private:
  [[nodiscard]] NIBBLE_DEVICE Shared<float> nested_at(u32 code) const {
    return (table_ + (nested_in_gaps ? pair_bytes * code + 128 + 4 * (code % 32) : 256 * pair_bytes + 4 * code))
        .template as<float>();
  }

  Shared<u8> table_;
  u32 bank_;
};

/// The table with gaps at an address that is a multiple of 64 KiB: a prmt of the byte and the lane's bank is all of an
/// address.
template <class Half> class FourBitAlignedPairTable {
  using Table = FourBitPairTable<Half, PairTableGaps::for_kernel>;

 public:
  static constexpr u32 alignment = 1 << 16, gap_stride = Table::pair_bytes, bytes = 256 * gap_stride;

  NIBBLE_DEVICE explicit FourBitAlignedPairTable(Shared<u8> memory)
      : table_(memory), bank_(opaque(memory.address() + 4 * lane_id())) {}

  /// Called by all of 256 threads, who then synchronize.
  NIBBLE_DEVICE void fill(const float (&codebook)[16]) const { Table(table_).template fill<false>(codebook, 0); }

  /// The two weights of byte number `byte` of `word`.
  [[nodiscard]] NIBBLE_DEVICE u32 pair_of(u32 word, u32 byte) const {
    return selected_pair_of(word, selector_of(byte));
  }

  /// The same for a byte that is not known to the compiler: its selector is calculated once.
  [[nodiscard]] NIBBLE_DEVICE static u32 selector_of(u32 byte) { return 0x7604 | byte << 4; }
  [[nodiscard]] NIBBLE_DEVICE u32 selected_pair_of(u32 word, u32 selector) const {
    return lds(table_.with_address(prmt(word, bank_, selector)).template as<u32>());
  }

  /// 128 bytes behind a pair; there are 256 such gaps.
  [[nodiscard]] NIBBLE_DEVICE Shared<u8> gap(u32 i) const { return table_ + (gap_stride * i + 128); }

 private:
  Shared<u8> table_;
  u32 bank_;
};

}  // namespace nibble::kernels
