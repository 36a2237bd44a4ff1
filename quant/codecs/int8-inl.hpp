// int8 codes to fp32 in registers. Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_INT8_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_INT8_INL
#undef NIBBLE_QUANT_INT8_INL
#else
#define NIBBLE_QUANT_INT8_INL
#endif

#include <hwy/highway.h>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace nibble::int8::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// As the formula has it: two products, each rounded.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V decode(D d, const std::int8_t* HWY_RESTRICT codes, V scale, V unit) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::int8_t, D> d8;
  return hn::Mul(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes))), scale), unit);
}

}  // namespace nibble::int8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
