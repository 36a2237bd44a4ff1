#include "quant/simd/amx.hpp"

#include "quant/simd/avx512.hpp"

#ifdef __x86_64__

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace nibble::amx {
namespace {

bool processor_has_amx_bf16() {
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;  // of edx; compilers have different names for them
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & amx_tile) != 0 && (d & amx_bf16) != 0;
}

// Linux keeps tiles from a process that does not ask for them.
bool system_permits_tiles() {
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

struct alignas(64) Configuration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_of_row[16] = {};
  std::uint8_t rows_of_tile[16] = {};
};
constexpr Configuration all_tiles = [] {
  Configuration all;
  for (std::size_t tile = 0; tile < 8; ++tile) {
    all.bytes_of_row[tile] = row_bytes;
    all.rows_of_tile[tile] = rows;
  }
  return all;
}();

}  // namespace

bool has_bf16() {
  if (!has_avx512_bf16()) return false;
  static const bool supported = processor_has_amx_bf16() && system_permits_tiles();
  return supported;
}

void configure() { __asm__ volatile("ldtilecfg %0" ::"m"(all_tiles)); }

}  // namespace nibble::amx

#else

namespace nibble::amx {

bool has_bf16() { return false; }

}  // namespace nibble::amx

#endif
