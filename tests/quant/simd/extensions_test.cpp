#include "quant/simd/extensions.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "quant/matmul/amx/amx_kernel.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble {
namespace {

// They are those whose kernels exist.
TEST(Extensions, AreInUse) {
  test::for_each_target([](const std::string& target) {
    const auto extensions = cpu_extensions();
    const auto has = [&](std::string_view name) { return std::ranges::count(extensions, name) == 1; };
    EXPECT_EQ(has("AVX512_VNNI"), matmul::code_kernel_vnni().has_value()) << target;
    EXPECT_EQ(has("AVX512_VBMI"), matmul::code_kernel_vbmi().has_value()) << target;
    EXPECT_EQ(has("AVX512_BF16"), matmul::code_kernel_bf16().has_value()) << target;
    EXPECT_EQ(has("AMX_BF16"), matmul::amx_kernel().has_value()) << target;
  });
}

}  // namespace
}  // namespace nibble
