#include "quant/merge/tensor_merge.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <oneapi/tbb/task_arena.h>

#include <cmath>
#include <limits>

#include "tests/quant/merge/reference.hpp"
#include "tests/support/adapter.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::tensor_merge_test {
namespace {

using reference::Matrix;
using test::AdapterMaker;
using test::error_of;
using testing::EndsWith;
using testing::HasSubstr;

std::vector<float> values_of(const Adapter& adapter, std::size_t tensor) {
  const TensorInfo info = adapter.weights().tensors()[tensor];
  std::vector<std::byte> bytes(info.bytes());
  adapter.weights().read(tensor, 0, bytes);
  std::vector<float> values;
  for (const double number : test::numbers_of(info.dtype, bytes)) values.push_back(static_cast<float>(number));
  return values;
}

// A tensor of the base and its update.
struct Merge {
  Adapter adapter;
  Shape shape;
  TensorUpdate update;
  std::vector<float> base;

  Merge(AdapterMaker& maker, Shape of_base) : adapter(maker.make()), shape(std::move(of_base)) {
    base = test::normal_weights(element_count(shape), 99);
    update.low_rank.emplace();
    update.low_rank->scale = 0.75;
  }
  Merge(AdapterMaker&& maker, Shape of_base) : Merge(maker, std::move(of_base)) {}

  // With the tensors of a module, which has to be the only one.
  void find_factors(std::uint64_t rank, bool transposed = false, std::uint64_t experts = 1) {
    const Adapter::LowRank& factors = adapter.modules().begin()->second.low_rank.begin()->second;
    update.low_rank->a = *factors.a;
    update.low_rank->b = *factors.b;
    update.low_rank->magnitude = factors.magnitude;
    update.low_rank->rank = rank;
    update.low_rank->transposed = transposed;
    update.low_rank->experts = experts;
  }
  [[nodiscard]] std::vector<float> a() const { return values_of(adapter, update.low_rank->a); }
  [[nodiscard]] std::vector<float> b() const { return values_of(adapter, update.low_rank->b); }

  [[nodiscard]] std::vector<float> merged(std::size_t range = SIZE_MAX, int threads = 1) const {
    ExpertFactors expert_factors;
    TensorMerge merge(adapter, update, shape, expert_factors);
    tbb::task_arena(threads).execute([&] {
      merge.measure_norms([&](std::uint64_t first, std::span<float> out) {
        std::copy_n(base.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
      });
    });
    std::vector<float> result(base.size());
    for (std::size_t at = 0; at < base.size(); at += std::min(range, base.size() - at)) {
      const std::size_t n = std::min(range, base.size() - at);
      merge.merge(at, std::span(base).subspan(at, n), std::span(result).subspan(at, n));
    }
    return result;
  }
};

// Within the roundings of fp32: `rank` products, their sum, the scale, the sum with W, and for DoRA the norm, its
// inverse and two products.
void expect_near(const std::vector<float>& found, const Matrix& expected, std::uint64_t rank) {
  constexpr double epsilon = std::numeric_limits<float>::epsilon() / 2;
  const std::size_t columns = expected.front().size();
  ASSERT_EQ(found.size(), expected.size() * columns);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double value = expected[i / columns][i % columns];
    // All factors are below 1 and W is below 8.
    EXPECT_NEAR(static_cast<double>(found[i]), value, epsilon * static_cast<double>(rank + 8) * 8) << i;
  }
}

TEST(TensorMerge, ALinearLayer) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    Merge merge(AdapterMaker().add_low_rank("q", 37, 75, 5, dtype), {37, 75});
    merge.find_factors(5);
    const Matrix expected = reference::lora(reference::matrix(37, 75, merge.base), reference::matrix(5, 75, merge.a()),
                                            reference::matrix(37, 5, merge.b()), 0.75);
    expect_near(merge.merged(), expected, 5);
  }
}

TEST(TensorMerge, ATransposedLayer) {
  Merge merge(AdapterMaker().add_low_rank("q", 37, 75, 5), {75, 37});
  merge.find_factors(5, true);
  const Matrix w = reference::transposed(reference::matrix(75, 37, merge.base));
  const Matrix expected =
      reference::lora(w, reference::matrix(5, 75, merge.a()), reference::matrix(37, 5, merge.b()), 0.75);
  expect_near(merge.merged(), reference::transposed(expected), 5);
}

TEST(TensorMerge, AConvolutionIsAMatrix) {
  AdapterMaker maker;
  maker.add("c.lora_A.weight", {2, 3, 5, 5}).add("c.lora_B.weight", {8, 2, 1, 1});
  Merge merge(maker, {8, 3, 5, 5});
  merge.find_factors(2);
  const Matrix expected = reference::lora(reference::matrix(8, 75, merge.base), reference::matrix(2, 75, merge.a()),
                                          reference::matrix(8, 2, merge.b()), 0.75);
  expect_near(merge.merged(), expected, 2);
}

TEST(TensorMerge, DoraScalesWhatBelongsToAnOutput) {
  for (const bool transposed : {false, true}) {
    AdapterMaker maker(R"("use_dora":true)");
    maker.add_low_rank("q", 300, 70, 4).add("q.lora_magnitude_vector", {300});
    Merge merge(maker, transposed ? Shape{70, 300} : Shape{300, 70});
    merge.find_factors(4, transposed);
    Matrix w = transposed ? reference::transposed(reference::matrix(70, 300, merge.base))
                          : reference::matrix(300, 70, merge.base);
    w = reference::lora(w, reference::matrix(4, 70, merge.a()), reference::matrix(300, 4, merge.b()), 0.75);
    const std::vector<float> magnitude = values_of(merge.adapter, *merge.update.low_rank->magnitude);
    const Matrix expected = reference::dora(w, {magnitude.begin(), magnitude.end()});
    expect_near(merge.merged(), transposed ? reference::transposed(expected) : expected, 4);
  }
}

// A [experts * rank, in], B [out, rank * experts]: peft numbers the columns of B by rank first.
TEST(TensorMerge, FusedExperts) {
  constexpr std::size_t rank = 2, in = 10, out = 6;
  for (const std::size_t experts : {1, 3})
    for (const bool transposed : {false, true}) {
      Merge merge(AdapterMaker().add_low_rank("e", out, in, experts * rank),
                  transposed ? Shape{experts, in, out} : Shape{experts, out, in});
      merge.find_factors(rank, transposed, experts);
      const std::vector<float> a = merge.a(), b = merge.b(), merged = merge.merged();
      for (std::size_t e = 0; e < experts; ++e)
        for (std::size_t o = 0; o < out; ++o)
          for (std::size_t i = 0; i < in; ++i) {
            const std::size_t at = e * in * out + (transposed ? i * out + o : o * in + i);
            double expected = static_cast<double>(merge.base[at]);
            for (std::size_t k = 0; k < rank; ++k)
              expected += 0.75 * static_cast<double>(b[o * rank * experts + k * experts + e]) *
                          static_cast<double>(a[(e * rank + k) * in + i]);
            EXPECT_NEAR(static_cast<double>(merged[at]), expected, 1e-6);
          }
    }
}

TEST(TensorMerge, OneOfTheExpertsIsThatPartOfAll) {
  constexpr std::size_t experts = 3, rank = 2, in = 10, out = 6;
  Merge all(AdapterMaker().add_low_rank("e", out, in, experts * rank), {experts, out, in});
  all.find_factors(rank, false, experts);
  const std::vector<float> merged = all.merged();
  for (std::size_t e = 0; e < experts; ++e)
    for (const std::size_t first : {std::size_t{0}, std::size_t{4}}) {
      const std::size_t rows = first == 0 ? 4 : 2, at = (e * out + first) * in;
      Merge one(AdapterMaker().add_low_rank("e", out, in, experts * rank), {rows, in});
      one.find_factors(rank, false, experts);
      one.update.low_rank->expert = e;
      one.update.low_rank->first_out = first;
      one.base.assign(all.base.begin() + static_cast<std::ptrdiff_t>(at),
                      all.base.begin() + static_cast<std::ptrdiff_t>(at + rows * in));
      const auto begin = merged.begin() + static_cast<std::ptrdiff_t>(at);
      EXPECT_EQ(one.merged(), std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(rows * in)));
    }
}

TEST(TensorMerge, ReplacementBiasAndRows) {
  AdapterMaker maker(R"("trainable_token_indices":[5,0])");
  maker.add("w.weight", {7, 3}).add("w.token_adapter.trainable_tokens_delta", {2, 3}).add("b.bias", {7});
  Merge merge(maker, {7, 3});
  merge.update.low_rank.reset();
  merge.update.tokens = 1;
  const std::vector<std::uint64_t> rows{5, 0};
  merge.update.token_rows = rows;
  const std::vector<float> tokens = values_of(merge.adapter, 1);
  std::vector<float> expected = merge.base;
  std::copy_n(tokens.begin(), 3, expected.begin() + 15);
  std::copy_n(tokens.begin() + 3, 3, expected.begin());
  for (const std::size_t range : {std::size_t{1}, std::size_t{2}, std::size_t{4}, SIZE_MAX})
    EXPECT_EQ(merge.merged(range), expected) << range;

  merge.update.tokens.reset();
  merge.update.token_rows = {};
  merge.update.replacement = 0;
  EXPECT_EQ(merge.merged(4), values_of(merge.adapter, 0));

  Merge bias(AdapterMaker().add("b.weight", {7}), {7});
  bias.update.low_rank.reset();
  bias.update.bias = 0;
  bias.update.bias_scale = 2;
  const std::vector<float> added = values_of(bias.adapter, 0), merged = bias.merged(2);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(merged[i], bias.base[i] + 2 * added[i]);
}

// The factors are added to what replaces the tensor, and DoRA measures the same.
TEST(TensorMerge, AReplacedTensorIsUpdated) {
  for (const bool transposed : {false, true}) {
    AdapterMaker maker(R"("use_dora":true)");
    maker.add("q.weight", {8, 8}).add_low_rank("q", 8, 8, 2).add("q.lora_magnitude_vector", {8});
    Merge merge(maker, {8, 8});
    merge.find_factors(2, transposed);
    Merge other(AdapterMaker(R"("use_dora":true)")
                    .add("q.weight", {8, 8})
                    .add_low_rank("q", 8, 8, 2)
                    .add("q.lora_magnitude_vector", {8}),
                {8, 8});
    other.find_factors(2, transposed);
    other.base = values_of(merge.adapter, 0);
    merge.update.replacement = 0;
    EXPECT_EQ(merge.merged(5), other.merged());
  }
}

TEST(TensorMerge, BytesDependOnNothingElse) {
  for (const bool transposed : {false, true}) {
    AdapterMaker maker(R"("use_dora":true)");
    maker.add_low_rank("q", 1000, 600, 8).add("q.lora_magnitude_vector", {1000});
    Merge merge(maker, transposed ? Shape{600, 1000} : Shape{1000, 600});
    merge.find_factors(8, transposed);
    const std::vector<float> once = merge.merged();
    for (const std::size_t range : {std::size_t{4096}, std::size_t{999}, std::size_t{64 * 600}})
      EXPECT_EQ(merge.merged(range), once) << range;
    EXPECT_EQ(merge.merged(SIZE_MAX, 4), once);
    test::for_each_target([&](const std::string& target) { EXPECT_EQ(merge.merged(), once) << target; });
  }
}

// A NaN of the base stays where it is, and does not enter the norm of its row or column.
TEST(TensorMerge, NonfiniteWeightsDoNotSpread) {
  for (const bool transposed : {false, true}) {
    AdapterMaker maker(R"("use_dora":true)");
    maker.add_low_rank("q", 8, 8, 2).add("q.lora_magnitude_vector", {8});
    Merge merge(maker, {8, 8});
    merge.find_factors(2, transposed);
    merge.base[10] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> merged = merge.merged();
    for (std::size_t i = 0; i < merged.size(); ++i) EXPECT_EQ(std::isnan(merged[i]), i == 10) << i;
  }
}

// peft would divide by these norms.
TEST(TensorMerge, DoraNeedsNorms) {
  for (const bool transposed : {false, true}) {
    AdapterMaker maker(R"("use_dora":true)");
    std::vector<float> b = test::normal_weights(8 * 2, 5);
    b[6] = b[7] = 0;  // of output 3
    maker.add("q.lora_A.weight", {2, 8})
        .add("q.lora_B.weight", {8, 2}, b)
        .add("q.lora_magnitude_vector", {8}, {1, 1, 1, 2, 1, 1, 1, 1});
    Merge merge(maker, {8, 8});
    merge.find_factors(2, transposed);
    const auto weight = [&](std::size_t i) -> float& { return merge.base[transposed ? i * 8 + 3 : 3 * 8 + i]; };
    for (std::size_t i = 0; i < 8; ++i) weight(i) = 0;
    const std::string side = transposed ? "column" : "row";
    const auto refusal = [&](const std::string& fact) {
      return "tensor 'base_model.model.q.lora_magnitude_vector': element 3 is 2, but " + side + " 3 of W + dW has " +
             fact + ": DoRA cannot scale it";
    };
    EXPECT_THAT(error_of([&] { (void)merge.merged(); }), EndsWith(refusal("the norm 0")));
    weight(2) = NAN;  // enters no norm
    weight(5) = INFINITY;
    EXPECT_THAT(error_of([&] { (void)merge.merged(); }),
                EndsWith(refusal("the norm 0 without the weights that are not finite (2 of 8)")));
    for (std::size_t i = 0; i < 8; ++i) weight(i) = NAN;
    EXPECT_THAT(error_of([&] { (void)merge.merged(); }), EndsWith(refusal("no finite weight")));
    for (std::size_t i = 0; i < 8; ++i) weight(i) = 0;
    weight(2) = 1e-40F;  // 2 divided by this is too much for fp32
    EXPECT_THAT(error_of([&] { (void)merge.merged(); }), HasSubstr("element 3 is 2, but " + side));
    weight(2) = weight(4) = 3e38F;
    EXPECT_THAT(error_of([&] { (void)merge.merged(); }), EndsWith(refusal("the norm inf")));
    weight(4) = 0;
    EXPECT_FLOAT_EQ(merge.merged()[transposed ? 2 * 8 + 3 : 3 * 8 + 2], 2);
  }
}

TEST(TensorMerge, NumbersOfTheAdapterHaveToBeFinite) {
  for (const char* name : {"q.lora_A.weight", "q.lora_B.weight"}) {
    AdapterMaker maker;
    const bool is_a = std::string_view(name) == "q.lora_A.weight";
    maker.add(name, is_a ? Shape{1, 4} : Shape{4, 1}, {1, 2, NAN, 4});
    maker.add(is_a ? "q.lora_B.weight" : "q.lora_A.weight", is_a ? Shape{4, 1} : Shape{1, 4}, {1, 2, 3, 4});
    Merge merge(maker, {4, 4});
    merge.find_factors(1);
    EXPECT_THAT(error_of([&] { (void)merge.merged(); }),
                EndsWith("tensor 'base_model.model." + std::string(name) + "': element 2 is nan in fp32"));
  }
  Merge beyond(AdapterMaker()
                   .add("q.lora_A.weight", {1, 4}, {1, 2, 3, INFINITY})
                   .add("q.lora_B.weight", {4, 1}, {1, 2, 3, 4}, DType::f64),
               {4, 4});
  beyond.find_factors(1);
  EXPECT_THAT(error_of([&] { (void)beyond.merged(); }), EndsWith("element 3 is inf in fp32"));
}

TEST(TensorMerge, MemoryIsThatOfItsNumbers) {
  AdapterMaker maker(R"("use_dora":true)");
  maker.add_low_rank("q", 8, 64, 2).add("q.lora_magnitude_vector", {8});
  Merge merge(maker, {8, 64});
  merge.find_factors(2);
  EXPECT_EQ(TensorMerge::memory_bytes(merge.adapter, merge.update, merge.shape), (8 * 2 + 2 * 64 + 8) * sizeof(float));
}

}  // namespace
}  // namespace nibble::tensor_merge_test
