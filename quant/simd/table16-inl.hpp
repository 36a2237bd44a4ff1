// Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_TABLE16_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_TABLE16_INL
#undef NIBBLE_QUANT_TABLE16_INL
#else
#define NIBBLE_QUANT_TABLE16_INL
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A 16-entry table, in one or two registers where vectors are long enough.
template <class D> class Table16 {
  using V = hn::Vec<D>;

 public:
  Table16(D d, const float* HWY_RESTRICT table)
      : table_(table), lower_(hn::Load(d, table)), upper_(hn::Load(d, table + hn::Lanes(d) % 16)) {}

  /// Every value of another table times `factor`. A target without such registers keeps the products in `room`, which
  /// is aligned.
  HWY_INLINE Table16(D d, const Table16& other, float factor, float* HWY_RESTRICT room)
      : table_(room),
        lower_(hn::Mul(other.lower_, hn::Set(d, factor))),
        upper_(hn::Mul(other.upper_, hn::Set(d, factor))) {
    if constexpr (hn::MaxLanes(D()) < 8)
      for (std::size_t i = 0; i < 16; i += hn::Lanes(d))
        hn::Store(hn::Mul(hn::Load(d, other.table_ + i), hn::Set(d, factor)), d, room + i);
  }

  // Indices are in [0, 16).
  template <class VI> HWY_INLINE V operator[](VI index) const {
    const D d;
#if HWY_TARGET != HWY_SCALAR
    if constexpr (hn::MaxLanes(d) == 16) return hn::TableLookupLanes(lower_, hn::IndicesFromVec(d, index));
    if constexpr (hn::MaxLanes(d) == 8) {
      const auto half = hn::IndicesFromVec(d, hn::And(index, hn::Set(hn::RebindToSigned<D>(), 7)));
      const auto is_upper = hn::BitCast(d, hn::ShiftLeft<28>(index));  // bit 3 becomes the sign
      return hn::IfNegativeThenElse(is_upper, hn::TableLookupLanes(upper_, half), hn::TableLookupLanes(lower_, half));
    }
#endif
    return hn::GatherIndex(d, table_, index);
  }

  // Only the lower 4 bits of indices count, because a lookup in registers uses no others.
  template <class VI> HWY_INLINE V at_lower_bits(VI index) const {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    return V{_mm512_permutexvar_ps(index.raw, lower_.raw)};
#else
    if constexpr (hn::MaxLanes(D()) == 8) return (*this)[index];
    return (*this)[hn::And(index, hn::Set(hn::RebindToSigned<D>(), 15))];
#endif
  }

 private:
  const float* table_;
  V lower_, upper_;
};

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
