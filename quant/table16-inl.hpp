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

// A 16-entry table, in one or two registers where vectors are long enough. Indices are in [0, 16).
template <class D> class Table16 {
  using V = hn::Vec<D>;

 public:
  Table16(D d, const float* HWY_RESTRICT table)
      : table_(table), lower_(hn::Load(d, table)), upper_(hn::Load(d, table + hn::Lanes(d) % 16)) {}

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

 private:
  const float* table_;
  V lower_, upper_;
};

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
