// Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_REGISTERS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_REGISTERS_INL
#undef NIBBLE_QUANT_REGISTERS_INL
#else
#define NIBBLE_QUANT_REGISTERS_INL
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {

// Vector registers: 32, or 16 on other targets.
constexpr bool has_32_registers = (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64;

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
