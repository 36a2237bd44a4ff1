// Products by cuBLASLt, whatever the format of their weights: here each test writes the panels itself. All values are
// small whole numbers, so that sums are exact.
#include "kernels/host/library/matmul_by_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kernels/device/stream.hpp"
#include "tests/kernels/matmul/four_bit/four_bit_matmul_support.hpp"
#include "tests/kernels/matmul/library_support.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels {
namespace {

using namespace device;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t m = 3, k = 16;

float weight_at(std::size_t product, std::size_t row, std::size_t i) {
  return static_cast<float>((7 * row + 3 * i + product) % 11) - 5;
}
float x_at(std::size_t row, std::size_t i) { return static_cast<float>((5 * row + 2 * i) % 5) - 2; }
float bias_at(std::size_t row) { return static_cast<float>(row % 9) - 4; }
constexpr float y_before = 1;

struct Weight {
  u64 n = 0, gap = 0;  // elements between rows
  bool has_bias = false, has_fp32_y = false;
};
struct Settings {
  u64 panel_rows = 1000;  // without gaps
  bool has_fp32_x = false, accumulates = false;
  u32 min_m = 1;  // from so many rows on
  std::size_t y_offset = 0;
};
struct Panel {
  std::size_t product;
  u64 first_row, rows;
  bool operator==(const Panel&) const = default;
};
void PrintTo(const Panel& panel, std::ostream* out) {
  *out << "weight " << panel.product << ", rows " << panel.first_row << " + " << panel.rows;
}

struct Arguments : MatmulArguments {
  explicit Arguments(const nibble_matmul& call) : MatmulArguments(call) {}
};

// A call in bf16, or in fp16 where x is fp32, and the panels that it has asked for.
class Call {
 public:
  explicit Call(std::vector<Weight> weights, const Settings& settings = {})
      : weights_(std::move(weights)),
        settings_(settings),
        dtype_(settings.has_fp32_x ? NIBBLE_F16 : NIBBLE_BF16),
        x_(DeviceArray<u8>::input(x_bytes(), {.name = "x"})),
        x_matrix_{sizeof(nibble_matrix), settings.has_fp32_x ? NIBBLE_F32 : dtype_, m, k, k + 1, x_.data()},
        arguments_(matmul()) {
    for (const Weight& weight : weights_) {
      std::vector<float> bias(weight.n);
      for (std::size_t row = 0; row < weight.n; ++row) bias[row] = bias_at(row);
      biases_.push_back(DeviceArray<u8>::input(test::bytes_of(bias, false, dtype_), {.name = "bias"}));
      const std::vector<float> before(m * weight.n, y_before);
      ys_.push_back(DeviceArray<u8>::workspace(test::bytes_of(before, weight.has_fp32_y, dtype_),
                                               {.offset_bytes = settings.y_offset, .name = "y"}));
    }
    for (std::size_t i = 0; i < weights_.size(); ++i) add_product(i);
    arguments_.library_bytes = library_workspace_bytes(arguments_, products_, settings.min_m);
  }

  [[nodiscard]] std::size_t bytes() const { return arguments_.library_bytes; }
  [[nodiscard]] const std::vector<Panel>& panels() const { return panels_; }
  [[nodiscard]] std::vector<float> y(std::size_t i) const {
    return test::values_of(ys_[i].to_host(), weights_[i].has_fp32_y, dtype_);
  }

  bool run() {
    panels_.clear();
    const DeviceArray<u8> workspace(bytes(), {.offset_bytes = 16, .name = "workspace"});
    return multiply_by_library(arguments_, products_, workspace.data(), nullptr);
  }
  void expect_values() const {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const std::vector<float> values = y(i);
      for (std::size_t at = 0; at < values.size(); ++at) {
        const std::size_t row = at / weights_[i].n, column = at % weights_[i].n;
        float sum = settings_.accumulates ? y_before : 0;
        for (std::size_t j = 0; j < k; ++j) sum += x_at(row, j) * weight_at(i, column, j);
        if (weights_[i].has_bias) sum += bias_at(column);
        ASSERT_EQ(values[at], sum) << "weight " << i << ": m " << row << ", n " << column;
      }
    }
  }
  void expect_untouched() const {
    for (std::size_t i = 0; i < weights_.size(); ++i) EXPECT_THAT(y(i), testing::Each(y_before));
  }

 private:
  [[nodiscard]] nibble_matmul matmul() const {
    nibble_matmul call{};
    call.struct_bytes = sizeof call;
    call.x = &x_matrix_;
    call.compute_dtype = dtype_;
    call.accumulate = settings_.accumulates;
    call.max_panel_bytes = 2 * k * settings_.panel_rows;
    return call;
  }
  // Rows that are k + 1 apart; an fp32 x is a little off what it is rounded to.
  [[nodiscard]] std::vector<u8> x_bytes() const {
    std::vector<float> x(m * (k + 1), 100);
    for (std::size_t row = 0; row < m; ++row)
      for (std::size_t i = 0; i < k; ++i)
        x[row * (k + 1) + i] = x_at(row, i) * (settings_.has_fp32_x ? 1 + 0x1p-13f : 1);
    return test::bytes_of(x, settings_.has_fp32_x, dtype_);
  }
  void add_product(std::size_t i) {
    const Weight& weight = weights_[i];
    const auto dequantize = [this, i](u64 first_row, u64 rows, void* panel, StreamRef) {
      panels_.push_back({i, first_row, rows});
      const std::size_t stride = k + weights_[i].gap;
      std::vector<float> values((rows - 1) * stride + k, 100);
      for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t j = 0; j < k; ++j) values[row * stride + j] = weight_at(i, first_row + row, j);
      const std::vector<u8> bytes = test::bytes_of(values, false, dtype_);
      Stream().copy_to_device(panel, bytes.data(), bytes.size());
    };
    products_.push_back(
        {weight.n,
         k,
         k + weight.gap,
         weight.has_bias ? biases_[i].data() : nullptr,
         {sizeof(nibble_matrix), weight.has_fp32_y ? NIBBLE_F32 : dtype_, m, weight.n, weight.n, ys_[i].data()},
         dequantize});
  }

  std::vector<Weight> weights_;
  Settings settings_;
  nibble_dtype dtype_;
  DeviceArray<u8> x_;
  nibble_matrix x_matrix_;
  Arguments arguments_;
  std::vector<DeviceArray<u8>> biases_, ys_;
  std::vector<LibraryProduct> products_;
  std::vector<Panel> panels_;
};

class MatmulByLibrary : public test::LibraryTest {};

// As even as multiples of 128 rows allow, and no larger than the caller wants; one row at least.
TEST_F(MatmulByLibrary, PanelsFollowEachOther) {
  Call call({{.n = 301}, {.n = 0}, {.n = 5}}, {.panel_rows = 300});
  ASSERT_TRUE(call.run());
  EXPECT_THAT(call.panels(), ElementsAre(Panel{0, 0, 256}, Panel{0, 256, 45}, Panel{2, 0, 5}));
  call.expect_values();
  EXPECT_EQ(library().products, 3U);

  Call small({{.n = 7}}, {.panel_rows = 3});
  ASSERT_TRUE(small.run());
  EXPECT_THAT(small.panels(), ElementsAre(Panel{0, 0, 3}, Panel{0, 3, 3}, Panel{0, 6, 1}));
  Call single({{.n = 2, .gap = 5}}, {.panel_rows = 1});
  ASSERT_TRUE(single.run());
  EXPECT_THAT(single.panels(), ElementsAre(Panel{0, 0, 1}, Panel{0, 1, 1}));
  single.expect_values();
}

TEST_F(MatmulByLibrary, TypesBiasesAndSums) {
  for (const bool has_fp32_x : {false, true})
    for (const bool accumulates : {false, true})
      for (const std::size_t y_offset : {0U, 4U}) {
        Call call({{.n = 9, .has_bias = true},
                   {.n = 7, .has_bias = true, .has_fp32_y = true},
                   {.n = 8, .gap = 3, .has_fp32_y = true},
                   {.n = 5, .gap = 7, .has_bias = true}},
                  {.panel_rows = 4, .has_fp32_x = has_fp32_x, .accumulates = accumulates, .y_offset = y_offset});
        ASSERT_TRUE(call.run());
        call.expect_values();
      }
}

TEST_F(MatmulByLibrary, TheWorkspaceIsForTheLargestPanelAndBias) {
  constexpr std::size_t always = 240 + (std::size_t{32} << 20);  // to align, and the library's own
  EXPECT_EQ(Call(std::vector<Weight>{{.n = 8}}).bytes(), always + 256);
  EXPECT_EQ(Call(std::vector<Weight>{{.n = 8}, {.n = 40}, {.n = 16}}).bytes(), always + 40 * 2 * k);
  EXPECT_EQ(Call(std::vector<Weight>{{.n = 11, .gap = 32}}).bytes(), always + 1024);  // no gap after the last row
  EXPECT_EQ(Call({{.n = 8}}, {.has_fp32_x = true}).bytes(), always + 256 + 256);
  EXPECT_EQ(Call(std::vector<Weight>{{.n = 8, .has_bias = true, .has_fp32_y = true}}).bytes(), always + 256 + 256);
  EXPECT_EQ(Call(std::vector<Weight>{{.n = 8, .has_bias = true}}).bytes(), always + 256);
}

// A bias and an old y of 16 bits are added to sums of fp32, of which there is one panel's.
TEST_F(MatmulByLibrary, TheWorkspaceHasTheSumsThatABiasAndYAreAddedTo) {
  constexpr std::size_t always = 240 + (std::size_t{32} << 20), of_40 = 40 * 2 * k;
  const auto bytes = [](const Weight& weight) {
    return Call(std::vector<Weight>{weight}, {.accumulates = true}).bytes();
  };
  EXPECT_EQ(bytes({.n = 40, .has_bias = true}), always + of_40 + 512);  // m * 40 * 4 is 480
  EXPECT_EQ(bytes({.n = 40}), always + of_40);
  EXPECT_EQ(bytes({.n = 40, .has_bias = true, .has_fp32_y = true}), always + of_40 + 256);
}

// With few columns in the weight, sums of many rows of x take more than the panel.
TEST_F(MatmulByLibrary, NeitherPanelNorSumsAreLargerThanTheCallerWants) {
  constexpr u64 many = 1000;
  nibble_matmul matmul{};
  matmul.struct_bytes = sizeof matmul;
  void* const anywhere = reinterpret_cast<void*>(256);  // nothing is read
  const nibble_matrix x{sizeof(nibble_matrix), NIBBLE_BF16, many, k, k, anywhere};
  matmul.x = &x;
  matmul.accumulate = 1;
  const auto bytes = [&](u64 limit) {
    matmul.max_panel_bytes = limit;
    const Arguments arguments(matmul);
    const LibraryProduct product{
        1024, k, k, anywhere, {sizeof(nibble_matrix), NIBBLE_BF16, many, 1024, 1024, anywhere}, nullptr};
    return library_workspace_bytes(arguments, {&product, 1}, 1) - 240 - (std::size_t{32} << 20);
  };
  EXPECT_EQ(bytes(4 * many * 256), 256 * 2 * k + 4 * many * 256);
  EXPECT_EQ(bytes(4 * many * 255), 256 * 2 * k + 4 * many * 255 + 160);  // both are rounded up to 256
  EXPECT_EQ(bytes(1), 256 + 4096);                                       // one row
}

TEST_F(MatmulByLibrary, IsNotForFewRowsOrNoWeights) {
  EXPECT_EQ(Call({{.n = 8}}, {.min_m = m + 1}).bytes(), 0U);
  EXPECT_EQ(Call({{.n = 0}, {.n = 0}}).bytes(), 0U);
  // With what lies between its rows, a weight may have twice the elements, which is dequantized too.
  EXPECT_EQ(Call({{.n = 8}, {.n = 8, .gap = 1}}, {.min_m = 2}).bytes(), 0U);
  EXPECT_GT(Call({{.n = 8}, {.n = 0, .gap = 1}}, {.min_m = 2}).bytes(), 0U);
  EXPECT_GT(Call({{.n = 8}, {.n = 8, .gap = 1}}, {.min_m = 1}).bytes(), 0U);
  Call call({{.n = 8}}, {.min_m = m + 1});
  EXPECT_FALSE(call.run());
  EXPECT_THAT(call.panels(), IsEmpty());
}

TEST_F(MatmulByLibrary, ARefusalLeavesEveryYAsItWas) {
  for (const bool proposes_nothing : {true, false}) {
    library().proposes_nothing = proposes_nothing;
    library().max_products = 0;
    Call call({{.n = 9, .has_bias = true, .has_fp32_y = true}, {.n = 8}}, {.panel_rows = 4, .has_fp32_x = true});
    EXPECT_FALSE(call.run());
    EXPECT_EQ(call.panels().size(), proposes_nothing ? 0U : 1U);
    call.expect_untouched();
  }
}

TEST_F(MatmulByLibrary, ARefusalLeavesNoHandles) {
  for (const u64 layouts : {0, 1, 2}) {
    library().max_layouts = library().layouts + layouts;
    Call call({{.n = 8}}, {.panel_rows = 4});
    EXPECT_FALSE(call.run());
    call.expect_untouched();
    EXPECT_EQ(library().handles, 0) << layouts;
  }
  library().max_layouts = ~u64{0};
  EXPECT_TRUE(Call({{.n = 8}}, {.panel_rows = 4}).run());
  EXPECT_EQ(library().handles, 0);
}

// Part of y is written by then.
TEST_F(MatmulByLibrary, AFailureAfterTheFirstProductIsAnError) {
  library().max_products = 2;
  Call call({{.n = 8}, {.n = 8}}, {.panel_rows = 4});
  try {
    call.run();
    FAIL() << "did not fail";
  } catch (const LaunchError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cublasLtMatmul: cuBLAS status 13"));
  }
  EXPECT_THAT(call.panels(), ElementsAre(Panel{0, 0, 4}, Panel{0, 4, 4}, Panel{1, 0, 4}));
}

}  // namespace
}  // namespace nibble::kernels
