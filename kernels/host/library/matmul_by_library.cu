#include "kernels/host/library/matmul_by_library.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/device/stream.hpp"
#include "kernels/host/library/cublas_lt.hpp"
#include "kernels/host/library/store_sums.hpp"
#include "kernels/host/library/widen.hpp"
#include "kernels/host/matmul/round_rows.hpp"

namespace nibble::kernels {
namespace {

using device::bf16;
using device::ceil_div;
using device::f16;
using device::StreamRef;

constexpr std::size_t alignment = 256;  // that cuBLASLt asks for; workspaces of callers are aligned to 16
constexpr std::size_t caller_alignment = 16;
constexpr std::size_t library_bytes = std::size_t{32} << 20;  // what NVIDIA recommends for cuBLAS on Hopper
// A panel of 28672 x 8192 has 7168 rows then: 112 tiles of 128 x 256 for x of 512 rows, nearly one for each of 132
// multiprocessors. An estimate, not measured.
constexpr u64 default_panel_bytes = u64{128} << 20;
constexpr u64 row_step = 128;  // panels end at multiples of it, as tiles of the library's kernels do

constexpr std::size_t aligned(u64 bytes) { return ceil_div<u64>(bytes, alignment) * alignment; }

// The library, or null if it cannot be loaded: the same throughout the process, so that a workspace that was asked for
// fits the call.
const cublas_lt::Library* library() {
  static const cublas_lt::Library* const loaded = []() -> const cublas_lt::Library* {
    try {
      return std::make_unique<const cublas_lt::Library>().release();
    } catch (const cublas_lt::Failure&) {
      return nullptr;
    }
  }();
  return loaded;
}

// The library's context of the current device, made once; null if the library makes none, which is also kept, so that
// equal calls stay equal.
cublas_lt::Context* current_context() {
  struct OfDevice {
    std::once_flag once;
    cublas_lt::Context* context = nullptr;
  };
  static std::array<OfDevice, 64> contexts;
  const auto device = static_cast<std::size_t>(device::current_device());
  if (device >= contexts.size()) return nullptr;
  OfDevice& own = contexts[device];
  std::call_once(own.once, [&own] {
    try {
      own.context = library()->create_context();
    } catch (const cublas_lt::Failure&) {
    }
  });
  return own.context;
}

bool has_fp32_bias(const LibraryProduct& product) { return product.bias != nullptr && product.y.dtype == NIBBLE_F32; }

// cuBLASLt rounds the sum of the product and of y to y's type before it adds a bias. So that y is rounded once, the
// product goes to the workspace, in fp32, and StoreSums adds the rest.
bool has_fp32_sums(const MatmulArguments& arguments, const LibraryProduct& product) {
  return product.bias != nullptr && arguments.matmul.accumulate != 0 && product.y.dtype != NIBBLE_F32;
}

// Neither the panel nor the sums of its rows take more than the limit, but one row at least.
u64 panel_rows(const MatmulArguments& arguments, const LibraryProduct& product) {
  const u64 limit = arguments.matmul.max_panel_bytes > 0 ? arguments.matmul.max_panel_bytes : default_panel_bytes;
  u64 most = std::max<u64>(1, limit / (2 * product.stride));
  if (has_fp32_sums(arguments, product)) most = std::clamp<u64>(limit / (4 * arguments.x.rows), 1, most);
  const u64 even = ceil_div(product.n, ceil_div(product.n, most));
  return std::min({most, ceil_div(even, row_step) * row_step, product.n});
}

// Elements of a panel: after its last row there is no gap.
u64 panel_size(const LibraryProduct& product, u64 rows) { return (rows - 1) * product.stride + product.k; }

// What the workspace has, from its first address that is a multiple of `alignment` on.
struct Parts {
  std::size_t x = 0, panel = 0, bias = 0, sums = 0;

  Parts(const MatmulArguments& arguments, std::span<const LibraryProduct> products) {
    x = arguments.x.dtype == NIBBLE_F32 ? aligned(arguments.x.rows * arguments.x.columns * 2) : 0;
    for (const LibraryProduct& product : products) {
      if (product.n == 0) continue;
      const u64 rows = panel_rows(arguments, product);
      panel = std::max(panel, aligned(2 * panel_size(product, rows)));
      if (has_fp32_bias(product)) bias = std::max(bias, aligned(4 * product.n));
      if (has_fp32_sums(arguments, product)) sums = std::max(sums, aligned(4 * arguments.x.rows * rows));
    }
  }
  [[nodiscard]] std::size_t total() const {
    return alignment - caller_alignment + x + panel + bias + sums + library_bytes;
  }
};

u32 alignment_of(const void* pointer) {
  return u32{1} << std::min(std::countr_zero(reinterpret_cast<std::uintptr_t>(pointer) | alignment), 8);
}

cublas_lt::Type type_of(nibble_dtype dtype) {
  return dtype == NIBBLE_F32   ? cublas_lt::Type::f32
         : dtype == NIBBLE_F16 ? cublas_lt::Type::f16
                               : cublas_lt::Type::bf16;
}

// One panel: transposed(y) = panel * transposed(x), of which cuBLASLt, whose matrices are stored by columns, sees the
// panel as the transposed of a.
struct Step {
  const LibraryProduct* product;
  u64 first_row, rows;
  void* d;  // y, or the sums
  cublas_lt::Product matmul;
  cublas_lt::Algorithm algorithm;
};

class Multiplication {
 public:
  Multiplication(const MatmulArguments& arguments, std::span<const LibraryProduct> products, void* workspace,
                 cublas_lt::Context* context)
      : arguments_(arguments), context_(context), parts_(arguments, products) {
    char* const start = static_cast<char*>(workspace);
    rounded_x_ = start + (alignment - reinterpret_cast<std::uintptr_t>(start) % alignment) % alignment;
    panel_ = rounded_x_ + parts_.x;
    bias_ = panel_ + parts_.panel;
    sums_ = bias_ + parts_.bias;
    own_ = sums_ + parts_.sums;
    for (const LibraryProduct& product : products) add_steps(product);
  }

  /// False if the library refuses the first product.
  bool run(StreamRef stream) {
    if (arguments_.x.dtype == NIBBLE_F32) round_x(stream);
    bool is_begun = false;
    for (const Step& step : steps_) {
      const LibraryProduct& product = *step.product;
      if (step.first_row == 0 && has_fp32_bias(product)) widen_bias(product, stream);
      product.dequantize(step.first_row, step.rows, panel_, stream);
      try {
        step.matmul.run(context_, step.algorithm, panel_, x(), step.d, own_, library_bytes, stream);
      } catch (const cublas_lt::Failure& failure) {
        if (!is_begun) return false;
        throw device::LaunchError(0, failure.what());
      }
      is_begun = true;
      if (has_fp32_sums(arguments_, product)) add_to_y(step, stream);
    }
    return true;
  }

 private:
  void add_steps(const LibraryProduct& product) {
    if (product.n == 0) return;
    const u64 rows = panel_rows(arguments_, product);
    for (u64 first = 0; first < product.n; first += rows) add_step(product, first, std::min(rows, product.n - first));
  }

  // The heuristic is asked in each call: cuBLASLt itself caches what it answered.
  void add_step(const LibraryProduct& product, u64 first_row, u64 rows) {
    const nibble_matrix& given_x = arguments_.x;
    const u64 x_stride = given_x.dtype == NIBBLE_F32 ? given_x.columns : given_x.stride;
    const cublas_lt::Type type = type_of(arguments_.compute_dtype);
    const bool stores_sums = has_fp32_sums(arguments_, product);
    void* const d = stores_sums ? sums_ : part_of(product.y, first_row);
    const void* bias = nullptr;
    if (product.bias != nullptr && !stores_sums)
      bias = has_fp32_bias(product) ? bias_ + first_row * sizeof(float) : bias_of(product, first_row);
    const u32 d_alignment = bias == nullptr ? alignment_of(d) : std::min(alignment_of(d), alignment_of(bias));
    cublas_lt::Product matmul(*library(), {type, product.k, rows, product.stride},
                              {type, product.k, given_x.rows, x_stride, alignment_of(x())},
                              {type_of(stores_sums ? NIBBLE_F32 : product.y.dtype), rows, given_x.rows,
                               stores_sums ? rows : product.y.stride, d_alignment},
                              {.transposes_a = true,
                               .adds_to_d = arguments_.matmul.accumulate != 0 && !stores_sums,
                               .bias = bias,
                               .short_fp8_sums = false,
                               .only_fp32_sums = true});
    const cublas_lt::Algorithm algorithm = matmul.algorithms(context_, 1, library_bytes)[0];
    steps_.push_back({&product, first_row, rows, d, std::move(matmul), algorithm});
  }

  // Of y and of the bias, what rows of the weight from the first one on make.
  [[nodiscard]] static char* part_of(const nibble_matrix& y, u64 first_row) {
    return static_cast<char*>(y.data) + first_row * element_bytes(y.dtype);
  }
  [[nodiscard]] static const char* bias_of(const LibraryProduct& product, u64 first_row) {
    return static_cast<const char*>(product.bias) + first_row * 2;
  }
  void add_to_y(const Step& step, StreamRef stream) const {
    nibble_matrix y = step.product->y;
    y.data = part_of(y, step.first_row);
    y.columns = step.rows;
    store_sums(reinterpret_cast<const float*>(sums_), bias_of(*step.product, step.first_row), y, stream);
  }

  [[nodiscard]] const void* x() const {
    return arguments_.x.dtype == NIBBLE_F32 ? rounded_x_ : static_cast<const char*>(arguments_.x.data);
  }
  void round_x(StreamRef stream) const {
    if (arguments_.compute_dtype == NIBBLE_BF16)
      round_rows(arguments_.x, reinterpret_cast<bf16*>(rounded_x_), stream);
    else
      round_rows(arguments_.x, reinterpret_cast<f16*>(rounded_x_), stream);
  }
  // cuBLASLt adds a bias of y's type.
  void widen_bias(const LibraryProduct& product, StreamRef stream) const {
    float* const wide = reinterpret_cast<float*>(bias_);
    if (arguments_.compute_dtype == NIBBLE_BF16)
      widen(static_cast<const bf16*>(product.bias), product.n, wide, stream);
    else
      widen(static_cast<const f16*>(product.bias), product.n, wide, stream);
  }

  const MatmulArguments& arguments_;
  cublas_lt::Context* context_;
  Parts parts_;
  char *rounded_x_, *panel_, *bias_, *sums_, *own_;
  std::vector<Step> steps_;
};

}  // namespace

std::size_t library_workspace_bytes(const MatmulArguments& arguments, std::span<const LibraryProduct> products,
                                    u64 default_min_m) {
  const u64 min_m = arguments.matmul.min_library_m > 0 ? arguments.matmul.min_library_m : default_min_m;
  // What lies between the rows of a slice is dequantized, too, which takes that many more rows of x to pay off.
  const auto has_enough_rows = [&](const LibraryProduct& product) {
    return product.n == 0 || arguments.x.rows / min_m >= ceil_div(product.stride, product.k);
  };
  if (arguments.x.rows < min_m || arguments.x.columns == 0) return 0;
  const auto has_no_rows = [](const LibraryProduct& product) { return product.n == 0; };
  if (std::all_of(products.begin(), products.end(), has_no_rows)) return 0;
  if (!std::all_of(products.begin(), products.end(), has_enough_rows) || library() == nullptr) return 0;
  try {
    current_context();  // not in the call, which may be captured into a graph
  } catch (const device::LaunchError&) {
  }
  return Parts(arguments, products).total();
}

bool multiply_by_library(const MatmulArguments& arguments, std::span<const LibraryProduct> products, void* workspace,
                         StreamRef stream) {
  if (arguments.library_bytes == 0) return false;
  cublas_lt::Context* const context = current_context();
  if (context == nullptr) return false;
  try {
    return Multiplication(arguments, products, workspace, context).run(stream);
  } catch (const cublas_lt::Failure&) {
    return false;  // nothing has been launched yet
  }
}

}  // namespace nibble::kernels
