#include "quant/simd/avx512.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd/avx512.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {

bool is_avx512() { return HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3; }

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {

HWY_EXPORT(is_avx512);

bool target_has_avx512() { return HWY_DYNAMIC_DISPATCH(is_avx512)(); }

}  // namespace nibble
#endif
