// Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_BYTE_TABLE16_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_BYTE_TABLE16_INL
#undef NIBBLE_QUANT_BYTE_TABLE16_INL
#else
#define NIBBLE_QUANT_BYTE_TABLE16_INL
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Looks up 32 codes at a time, for vectors of less than 16 numbers. The four bytes of a number are looked up apart and
// then put together: in a table of bytes, one instruction looks up 16 or 32 codes.
template <class D> class ByteTable16 {
#if HWY_TARGET == HWY_SCALAR

 public:
  explicit ByteTable16(const float* HWY_RESTRICT table) : table_(table) {}

  template <class F> HWY_INLINE void look_up_32(const std::uint8_t* HWY_RESTRICT packed, const F& f) const {
    for (std::size_t i = 0; i < 32; ++i) f(i, hn::Set(D(), table_[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15]));
  }

 private:
  const float* table_;

#else
  using D8 = hn::Repartition<std::uint8_t, D>;
  using Bytes = hn::Vec<D8>;
  static constexpr std::size_t lanes = hn::MaxLanes(D());

 public:
  explicit ByteTable16(const float* HWY_RESTRICT table) {
    alignas(16) std::uint8_t bytes[4][16];
    for (std::size_t byte = 0; byte < 4; ++byte)
      for (std::size_t i = 0; i < 16; ++i)
        bytes[byte][i] = reinterpret_cast<const std::uint8_t*>(table)[sizeof(float) * i + byte];
    const D8 d8;
    byte0_ = hn::LoadDup128(d8, bytes[0]);
    byte1_ = hn::LoadDup128(d8, bytes[1]);
    byte2_ = hn::LoadDup128(d8, bytes[2]);
    byte3_ = hn::LoadDup128(d8, bytes[3]);
  }

  /// f(i, numbers i to i + lanes - 1) for the codes of 16 bytes. Of every eight codes, the four even ones come first.
  template <class F> HWY_INLINE void look_up_32(const std::uint8_t* HWY_RESTRICT packed, const F& f) const {
    const hn::Repartition<std::uint32_t, D> d32;
    const auto bytes = hn::BitCast(d32, hn::LoadDup128(D8(), packed));
    if constexpr (lanes == 8) {
      // The even codes in the lower half of the vector, the odd ones in the upper half.
      HWY_ALIGN static constexpr std::uint32_t shifts[8] = {4, 4, 4, 4, 0, 0, 0, 0};
      look_up(bytes >> hn::Load(d32, shifts), f, 0, lanes);
    } else {
      look_up(hn::ShiftRight<4>(bytes), f, 0, 2 * lanes);
      look_up(bytes, f, lanes, 2 * lanes);
    }
  }

 private:
  // Calls f for codes 4 i to 4 i + 3 of every 128 bits, with first + i * step. A code is the lower half of a byte.
  template <class V, class F> HWY_INLINE void look_up(V bytes, const F& f, std::size_t first, std::size_t step) const {
    const D d;
    const D8 d8;
    const hn::Repartition<std::uint16_t, D> d16;
    const Bytes codes = hn::And(hn::BitCast(d8, bytes), hn::Set(d8, 15));
    const Bytes byte0 = hn::TableLookupBytes(byte0_, codes), byte1 = hn::TableLookupBytes(byte1_, codes);
    const Bytes byte2 = hn::TableLookupBytes(byte2_, codes), byte3 = hn::TableLookupBytes(byte3_, codes);
    const auto low0 = hn::BitCast(d16, hn::InterleaveLower(d8, byte0, byte1));
    const auto low1 = hn::BitCast(d16, hn::InterleaveUpper(d8, byte0, byte1));
    const auto high0 = hn::BitCast(d16, hn::InterleaveLower(d8, byte2, byte3));
    const auto high1 = hn::BitCast(d16, hn::InterleaveUpper(d8, byte2, byte3));
    f(first, hn::BitCast(d, hn::InterleaveLower(d16, low0, high0)));
    f(first + step, hn::BitCast(d, hn::InterleaveUpper(d16, low0, high0)));
    f(first + 2 * step, hn::BitCast(d, hn::InterleaveLower(d16, low1, high1)));
    f(first + 3 * step, hn::BitCast(d, hn::InterleaveUpper(d16, low1, high1)));
  }

  Bytes byte0_, byte1_, byte2_, byte3_;
#endif
};

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
