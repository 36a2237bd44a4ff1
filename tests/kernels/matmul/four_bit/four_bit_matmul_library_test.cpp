// Products with 4-bit weights that cuBLASLt does, and those that it could do and does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/host/library/cublas_lt.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"
#include "tests/kernels/matmul/four_bit/four_bit_matmul_support.hpp"
#include "tests/kernels/matmul/library_support.hpp"
#include "tests/kernels/schedules.hpp"

namespace nibble::kernels {
namespace {

using namespace device;
using test::Problem;
using test::Product;
using test::Shape;

constexpr std::size_t library_bytes = std::size_t{32} << 20;

class FourBitMatmulLibrary : public test::LibraryTest {
 protected:
  static void expect_product(Shape shape, u32 seed) {
    shape.by_library = true;
    SCOPED_TRACE(testing::PrintToString(shape));
    const Problem problem(shape, seed);
#if !defined(NIBBLE_ON_GPU)
    const auto before = library().products;
#endif
    test::expect_values(problem, Product(problem).product());
#if !defined(NIBBLE_ON_GPU)
    const u64 stride = shape.k + shape.gap, limit = shape.panel_bytes == 0 ? 128 << 20 : shape.panel_bytes;
    const u64 rows = std::max<u64>(1, limit / (2 * stride));
    EXPECT_EQ(library().products - before, ceil_div<u64>(shape.n, rows));
#endif
  }

  // The product by the fused kernel, and what a call gives that the library might do.
  static std::vector<float> fused(Problem problem) {
    problem.shape.by_library = false;
    return Product(problem).product();
  }
  static std::vector<float> by_library(Problem problem) {
    problem.shape.by_library = true;
    return Product(problem).product();
  }
};

// The types of x and y, bias, and sums into y, with and without gaps between rows.
TEST_F(FourBitMatmulLibrary, Values) {
  u32 seed = 1;
  for (const bool y_f32 : {false, true})
    for (const bool accumulate : {false, true})
      for (const bool bias : {false, true}) {
        Shape shape{.m = 5, .n = 20, .k = 128, .bias = bias};
        shape.y_f32 = y_f32;
        shape.accumulate = accumulate;
        if (accumulate != bias) {
          shape.dtype = NIBBLE_F16;
          shape.x_f32 = true;
        }
        if (bias) {
          shape.x_stride = 3;
          shape.y_stride = 5;
        }
        expect_product(shape, seed++);
      }
}

TEST_F(FourBitMatmulLibrary, FormsOfWeights) {
  expect_product({.m = 1, .n = 1, .k = 1}, 41);
  expect_product({.m = 3, .n = 9, .k = 70, .blocksize = 32}, 42);
  expect_product({.m = 3, .n = 9, .k = 192, .nested = false, .codebook = NIBBLE_FP4}, 43);
  expect_product({.m = 70, .n = 9, .k = 64, .packed_offset = 1}, 44);
}

TEST_F(FourBitMatmulLibrary, NoRowsOfTheWeight) {
  const Problem problem({.m = 3, .n = 0, .k = 64, .nested = false, .bias = true, .y_f32 = true, .by_library = true},
                        45);
  EXPECT_EQ(Product(problem).product(), std::vector<float>{});
}

// A panel begins where a row of y has no alignment to speak of, and the last one is shorter.
TEST_F(FourBitMatmulLibrary, Panels) {
  expect_product({.m = 4, .n = 20, .k = 64, .panel_bytes = 3 * 128}, 51);
  expect_product({.m = 4, .n = 20, .k = 64, .bias = true, .accumulate = true, .panel_bytes = 3 * 128 + 127}, 52);
  expect_product({.m = 4, .n = 7, .k = 64, .bias = true, .y_f32 = true, .panel_bytes = 3 * 128}, 53);
  expect_product({.m = 2, .n = 3, .k = 70, .panel_bytes = 1}, 54);  // one row at least
}

TEST_F(FourBitMatmulLibrary, Slices) {
  expect_product({.m = 4, .n = 20, .k = 128, .first = 128 * 7}, 61);
  expect_product({.m = 4, .n = 20, .k = 128, .first = 128, .gap = 128}, 62);
  expect_product({.m = 4, .n = 20, .k = 64, .first = 33, .gap = 7, .panel_bytes = 6 * 142}, 63);
  expect_product({.m = 4, .n = 9, .k = 50, .blocksize = 32, .nested = false, .first = 13, .gap = 1}, 64);
}

// Two of them in two panels; all of them in the same scratch, one after the other.
TEST_F(FourBitMatmulLibrary, WeightsThatShareX) {
  const Problem q({.m = 5, .n = 40, .k = 128, .bias = true, .y_f32 = true, .by_library = true}, 71),
      key({.m = 5, .n = 12, .k = 128, .by_library = true}, 72),
      value({.m = 5, .n = 33, .k = 128, .bias = true, .y_f32 = true, .by_library = true}, 73);
  test::expect_shared_x({&q, &key, &value}, [](nibble_matmul& call) { call.max_panel_bytes = 30 * 256; });
#if !defined(NIBBLE_ON_GPU)
  EXPECT_EQ(library().products, 5U);
#endif
}

// -- Who does it

// Bytes of workspace for x [m, k] of which `change` can make anything.
template <class Change> std::size_t bytes_for(const Shape& shape, Change&& change) {
  const Problem problem(shape, 81);
  const Product run(problem);
  const nibble_four_bit weight = run.weight();
  const nibble_matrix x = run.x();
  const DeviceArray<u8> y_array = run.y();
  const nibble_matrix y = run.y_of(y_array);
  const nibble_four_bit_product product{sizeof(nibble_four_bit_product), &weight, run.bias(), &y};
  nibble_matmul call = run.call();
  call.x = &x;
  call.products = &product;
  call.min_library_m = 0;
  change(call);
  const std::size_t bytes = cuda::workspace_bytes(call);
  const bool is_missing = bytes > 0 && nibble_matmul_four_bit(&call, nullptr, bytes - 1, nullptr) == NIBBLE_USAGE &&
                          std::string(nibble_last_error()) == "workspace_bytes is " + std::to_string(bytes - 1) +
                                                                  ", at least " + std::to_string(bytes) + " are needed";
  EXPECT_TRUE(bytes == 0 || is_missing);
  return bytes;
}
constexpr auto as_it_is = [](nibble_matmul&) {};

TEST_F(FourBitMatmulLibrary, FromSoManyRowsOn) {
  constexpr u64 least = four_bit_matmul::min_library_m;
  EXPECT_LT(bytes_for({.m = least - 1, .n = 4, .k = 64}, as_it_is), library_bytes);
  EXPECT_GT(bytes_for({.m = least, .n = 4, .k = 64}, as_it_is), library_bytes);
  EXPECT_LT(bytes_for({.m = least, .n = 0, .k = 64}, as_it_is), library_bytes);
  EXPECT_LT(bytes_for({.m = least, .n = 4, .k = 64}, [](nibble_matmul& call) { call.min_library_m = least + 1; }),
            library_bytes);
  EXPECT_LT(bytes_for({.m = least, .n = 4, .k = 64}, [](nibble_matmul& c) { c.min_library_m = NIBBLE_NO_LIBRARY; }),
            library_bytes);
  // Of a slice of columns, what is between them is dequantized, too.
  EXPECT_LT(bytes_for({.m = 2 * least - 1, .n = 4, .k = 64, .gap = 1}, as_it_is), library_bytes);
  EXPECT_GT(bytes_for({.m = 2 * least, .n = 4, .k = 64, .gap = 64}, as_it_is), library_bytes);
  // Experts have few rows each; a product over no k is no product.
  EXPECT_LT(bytes_for({.m = least, .n = 4, .k = 64, .ends = {least}}, as_it_is), library_bytes);
  EXPECT_LT(bytes_for({.m = least, .n = 4, .k = 0, .nested = false}, as_it_is), library_bytes);
}

// What callers know who were compiled before the library had these members.
TEST_F(FourBitMatmulLibrary, MembersThatTheCallerDoesNotKnow) {
  const Shape shape{.m = four_bit_matmul::min_library_m, .n = 4, .k = 64};
  EXPECT_EQ(bytes_for(shape,
                      [](nibble_matmul& call) {
                        call.struct_bytes = offsetof(nibble_matmul, min_library_m);
                        call.min_library_m = NIBBLE_NO_LIBRARY;
                      }),
            bytes_for(shape, as_it_is));
}

// Room to align, x, a panel, a bias, and the library's own.
TEST_F(FourBitMatmulLibrary, TheWorkspaceIsBounded) {
  constexpr auto one = [](nibble_matmul& call) { call.min_library_m = 1; };
  constexpr auto small = [](nibble_matmul& call) {
    call.min_library_m = 1;
    call.max_panel_bytes = 300 * 2 * 64;
  };
  EXPECT_EQ(bytes_for({.m = 3, .n = 40, .k = 64}, one), 240 + 40 * 128 + library_bytes);
  EXPECT_EQ(bytes_for({.m = 3, .n = 40, .k = 64, .bias = true}, one), 240 + 40 * 128 + library_bytes);
  EXPECT_EQ(bytes_for({.m = 3, .n = 40, .k = 64, .bias = true, .x_f32 = true, .y_f32 = true}, one),
            240 + 512 + 40 * 128 + 256 + library_bytes);
  EXPECT_EQ(bytes_for({.m = 4, .n = 40, .k = 64, .first = 0, .gap = 192}, one),
            240 + 39 * 512 + 256 + library_bytes);  // no gap after the last row
  EXPECT_EQ(bytes_for({.m = 3, .n = 300, .k = 64}, small), 240 + 300 * 128 + library_bytes);
  // Two panels of 151 rows would do; they end at multiples of 128.
  EXPECT_EQ(bytes_for({.m = 3, .n = 301, .k = 64}, small), 240 + 256 * 128 + library_bytes);
}

NIBBLE_SIMULATED_TEST(FourBitMatmulLibraryBytes, AWeightOfAnySizeHasABoundedPanel) {
  const nibble_four_bit weight{.struct_bytes = sizeof weight,
                               .codebook = NIBBLE_NF4,
                               .blocksize = 64,
                               .rows = 28672,
                               .columns = 8192,
                               .packed = reinterpret_cast<const u8*>(256),
                               .absmax = reinterpret_cast<const float*>(256),
                               .absmax_codes = nullptr,
                               .nested_absmax = nullptr,
                               .nested_codebook = nullptr,
                               .nested_offset = nullptr,
                               .first = 0,
                               .stride = 0};
  void* const anywhere = reinterpret_cast<void*>(256);
  const nibble_matrix x{sizeof(nibble_matrix), NIBBLE_BF16, 2048, 8192, 8192, anywhere},
      y{sizeof(nibble_matrix), NIBBLE_BF16, 2048, 28672, 28672, anywhere};
  const nibble_four_bit_product product{sizeof(nibble_four_bit_product), &weight, nullptr, &y};
  nibble_matmul call{};
  call.struct_bytes = sizeof call;
  call.x = &x;
  call.products = &product;
  call.product_count = 1;
  EXPECT_EQ(cuda::workspace_bytes(call), 240 + 7168 * 8192 * 2 + library_bytes);
}

NIBBLE_SIMULATED_TEST(FourBitMatmulLibraryBytes, RowsThatAreFarApartTakeMoreRowsThan64BitsHold) {
  constexpr u64 m = u64{1} << 30;
  nibble_four_bit weight{};
  weight.struct_bytes = sizeof weight;
  weight.blocksize = 64;
  weight.rows = weight.columns = 1;
  weight.stride = u64{1} << 34;
  weight.packed = reinterpret_cast<const u8*>(256);
  weight.absmax = reinterpret_cast<const float*>(256);
  void* const anywhere = reinterpret_cast<void*>(256);
  const nibble_matrix x{sizeof(nibble_matrix), NIBBLE_BF16, m, 1, 1, anywhere},
      y{sizeof(nibble_matrix), NIBBLE_BF16, m, 1, 1, anywhere};
  const nibble_four_bit_product product{sizeof(nibble_four_bit_product), &weight, nullptr, &y};
  nibble_matmul call{};
  call.struct_bytes = sizeof call;
  call.x = &x;
  call.products = &product;
  call.product_count = 1;
  call.min_library_m = m;
  EXPECT_EQ(cuda::workspace_bytes(call), 0U);
}

// -- Where the library does not do it

#if !defined(NIBBLE_ON_GPU)
const std::vector<Shape>& undone() {
  static const std::vector<Shape> shapes{{.m = 66, .n = 20, .k = 128, .bias = true},
                                         {.m = 5, .n = 33, .k = 64 * 40, .accumulate = true},
                                         {.m = 10, .n = 12, .k = 70, .x_f32 = true, .y_f32 = true}};
  return shapes;
}

TEST_F(FourBitMatmulLibrary, ItProposesNothing) {
  library().proposes_nothing = true;
  for (const Shape& shape : undone()) {
    const Problem problem(shape, 91);
    EXPECT_EQ(by_library(problem), fused(problem));
  }
  EXPECT_EQ(library().products, 0U);
}

TEST_F(FourBitMatmulLibrary, ItRefusesTheFirstProduct) {
  library().max_products = 0;
  for (const Shape& shape : undone()) {
    const Problem problem(shape, 92);
    EXPECT_EQ(by_library(problem), fused(problem));
  }
}

TEST_F(FourBitMatmulLibrary, ItFailsBetweenProducts) {
  library().max_products = 1;
  const Problem problem({.m = 4, .n = 20, .k = 64, .by_library = true, .panel_bytes = 10 * 128}, 93);
  try {
    static_cast<void>(Product(problem).product());
    FAIL() << "did not fail";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::internal);
    EXPECT_STREQ(error.what(), "cublasLtMatmul: cuBLAS status 13");
  }
}

// y is rounded once: a sum's parts never have y's type, whatever the library could do.
TEST_F(FourBitMatmulLibrary, PartsOfASumAreInFp32) {
  library().rounds_parts = true;
  expect_product({.m = 5, .n = 20, .k = 256}, 94);
}

// Processes of their own: whether there is a library is found out once.
using FourBitMatmulLibraryDeathTest = FourBitMatmulLibrary;

[[noreturn]] void leave_if_fused() {
  for (const Shape& shape : undone()) {
    Problem problem(shape, 95);
    const std::vector<float> expected = Product(problem).product();
    problem.shape.by_library = true;
    if (Product(problem).product() != expected) std::_Exit(1);
  }
  std::_Exit(0);
}

// Without the fixture, which loads it.
TEST(FourBitMatmulNoLibraryDeathTest, ItCannotBeLoaded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the program anew, with this path
  const char* const given = std::getenv("LD_LIBRARY_PATH");
  const std::string before = given == nullptr ? "" : given;
  setenv("LD_LIBRARY_PATH", NIBBLE_NO_CUBLASLT, 1);
  EXPECT_EXIT(
      {
        try {
          const cublas_lt::Library none;
          std::_Exit(2);
        } catch (const cublas_lt::Missing&) {
        }
        if (bytes_for({.m = 512, .n = 4, .k = 64}, as_it_is) > library_bytes) std::_Exit(3);
        leave_if_fused();
      },
      testing::ExitedWithCode(0), "");
  given == nullptr ? unsetenv("LD_LIBRARY_PATH") : setenv("LD_LIBRARY_PATH", before.c_str(), 1);
}

TEST_F(FourBitMatmulLibraryDeathTest, ItMakesNoContext) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        library().makes_no_context = true;
        const Problem problem({.m = 5, .n = 20, .k = 64}, 96);
        if (by_library(problem) != fused(problem)) std::_Exit(1);
        library().makes_no_context = false;  // it is not asked again
        if (by_library(problem) != fused(problem)) std::_Exit(2);
        std::_Exit(static_cast<int>(library().contexts));
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(FourBitMatmulLibraryDeathTest, TheQueryMakesTheContext) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static_cast<void>(bytes_for({.m = 511, .n = 4, .k = 64}, as_it_is));
        if (library().contexts != 0) std::_Exit(1);
        static_cast<void>(bytes_for({.m = 512, .n = 4, .k = 64}, as_it_is));
        std::_Exit(library().contexts == 1 ? 0 : 2);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(FourBitMatmulLibrary, OtherLibrariesAreRefused) {
  EXPECT_THROW(cublas_lt::Library("/nonexistent.so"), cublas_lt::Missing);
  try {
    const cublas_lt::Library math("libm.so.6");
    FAIL() << "was taken";
  } catch (const cublas_lt::Missing&) {
    FAIL() << "is there";
  } catch (const cublas_lt::Failure& failure) {
    EXPECT_STREQ(failure.what(), "the library has no cublasLtGetVersion");
  }
}
#endif

}  // namespace
}  // namespace nibble::kernels
