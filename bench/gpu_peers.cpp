#include "bench/gpu_peers.hpp"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>

#include "bench/bandwidth.hpp"

namespace nibble::bench {
namespace {

// Libraries stay loaded: CUDA may still need their kernels at exit.
template <class Function> void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("the library has no ") + name);
}

void check_cublas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(what) + ": cuBLAS status " + std::to_string(static_cast<int>(status)));
}

int as_int(std::uint64_t size) {
  if (size > 0x7fffffff) throw std::runtime_error(std::to_string(size) + " is too large for bitsandbytes");
  return static_cast<int>(size);
}

constexpr std::size_t workspace_bytes = std::size_t{64} << 20;
constexpr int blocksize = 64, nested_blocksize = 256;

}  // namespace

// --- cuBLASLt

struct Cublas::Api {
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescCreate) create_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  cublasLtHandle_t handle = nullptr;

  explicit Api(void* library) {
    find(library, "cublasLtGetVersion", version);
    find(library, "cublasLtCreate", create);
    find(library, "cublasLtDestroy", destroy);
    find(library, "cublasLtMatmul", matmul);
    find(library, "cublasLtMatmulAlgoGetHeuristic", heuristic);
    find(library, "cublasLtMatmulDescCreate", create_operation);
    find(library, "cublasLtMatmulDescSetAttribute", set_operation);
    find(library, "cublasLtMatmulDescDestroy", destroy_operation);
    find(library, "cublasLtMatrixLayoutCreate", create_layout);
    find(library, "cublasLtMatrixLayoutDestroy", destroy_layout);
    find(library, "cublasLtMatmulPreferenceCreate", create_preference);
    find(library, "cublasLtMatmulPreferenceSetAttribute", set_preference);
    find(library, "cublasLtMatmulPreferenceDestroy", destroy_preference);
    check_cublas(create(&handle), "cublasLtCreate");
  }
  ~Api() { destroy(handle); }
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;
};

// cuBLAS counts by columns, and a row-major matrix is the transpose of one that is stored so: w is one of k x n. The
// forward product is transposed(y) = transposed(that) * transposed(x), the backward one without the first
// transposition.
class Cublas::Plan {
 public:
  struct Layouts {
    const Api& api;
    bool integers;
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;

    Layouts(const Api& library, const Product& product) : api(library), integers(product.type == Type::s8) {
      const cudaDataType_t sums = integers ? CUDA_R_32I : CUDA_R_32F;
      check_cublas(api.create_operation(&operation, integers ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F, sums),
                   "cublasLtMatmulDescCreate");
      const cublasOperation_t transposed = product.backward ? CUBLAS_OP_N : CUBLAS_OP_T;
      check_cublas(api.set_operation(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "TRANSA");
      if (product.type == Type::fp8) {
        const std::int8_t fast = 1;
        check_cublas(api.set_operation(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast), "FAST_ACCUM");
      }
      const auto layout = [this](cublasLtMatrixLayout_t& matrix, cudaDataType_t type, std::uint64_t rows,
                                 std::uint64_t columns) {
        check_cublas(api.create_layout(&matrix, type, rows, columns, static_cast<std::int64_t>(rows)), "layout");
      };
      const std::uint64_t m = product.m, n = product.n, k = product.k;
      const cudaDataType_t in = integers ? CUDA_R_8I : product.type == Type::fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
      layout(w, in, k, n);
      layout(x, in, product.backward ? n : k, m);
      layout(y, integers ? CUDA_R_32I : CUDA_R_16BF, product.backward ? k : n, m);
    }
    ~Layouts() {
      for (const cublasLtMatrixLayout_t matrix : {w, x, y})
        if (matrix != nullptr) api.destroy_layout(matrix);
      if (operation != nullptr) api.destroy_operation(operation);
    }
    Layouts(const Layouts&) = delete;
    Layouts& operator=(const Layouts&) = delete;
  };
  std::shared_ptr<const Layouts> layouts;
  cublasLtMatmulAlgo_t algorithm;
};

Cublas::Cublas(std::unique_ptr<Api> api) : api_(std::move(api)), workspace_(workspace_bytes) {}
Cublas::~Cublas() = default;

std::unique_ptr<Cublas> Cublas::open(const std::string& path) {
  std::vector<std::string> names{path};
  if (path.empty()) names = {"libcublasLt.so.13", "libcublasLt.so.12"};
  for (const std::string& name : names)
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL))
      return std::unique_ptr<Cublas>(new Cublas(std::make_unique<Api>(library)));
  if (!path.empty()) throw std::runtime_error(dlerror());
  return nullptr;
}

std::size_t Cublas::version() const { return api_->version(); }

std::vector<std::shared_ptr<const Cublas::Plan>> Cublas::plans(const Product& product) const {
  const auto layouts = std::make_shared<const Plan::Layouts>(*api_, product);
  cublasLtMatmulPreference_t preference = nullptr;
  check_cublas(api_->create_preference(&preference), "cublasLtMatmulPreferenceCreate");
  check_cublas(api_->set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                    sizeof workspace_bytes),
               "MAX_WORKSPACE_BYTES");
  cublasLtMatmulHeuristicResult_t results[8];
  int found = 0;
  const cublasStatus_t status = api_->heuristic(api_->handle, layouts->operation, layouts->w, layouts->x, layouts->y,
                                                layouts->y, preference, 8, results, &found);
  api_->destroy_preference(preference);
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<std::shared_ptr<const Plan>> plans;
  for (int i = 0; i < found; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    auto plan = std::make_shared<Plan>();
    plan->layouts = layouts;
    plan->algorithm = results[i].algo;
    plans.push_back(std::move(plan));
  }
  if (plans.empty()) throw std::runtime_error("cuBLASLt proposes nothing");
  return plans;
}

void Cublas::run(const Plan& plan, const void* w, const void* x, void* y, cudaStream_t stream) const {
  const float one = 1, zero = 0;
  const std::int32_t whole_one = 1, whole_zero = 0;
  const Plan::Layouts& layouts = *plan.layouts;
  const void* const alpha = layouts.integers ? static_cast<const void*>(&whole_one) : &one;
  const void* const beta = layouts.integers ? static_cast<const void*>(&whole_zero) : &zero;
  check_cublas(api_->matmul(api_->handle, layouts.operation, alpha, w, layouts.w, x, layouts.x, beta, y, layouts.y, y,
                            layouts.y, &plan.algorithm, workspace_.as<void>(), workspace_bytes, stream),
               "cublasLtMatmul");
}

std::shared_ptr<const Cublas::Plan> fastest_plan(const Cublas& cublas, const Cublas::Product& product,
                                                 const std::vector<Buffer>& weights, const Buffer& x, const Buffer& y,
                                                 const Effort& effort) {
  const auto plans = cublas.plans(product);
  std::vector<Contender> proposals;
  proposals.reserve(plans.size());
  for (const auto& plan : plans)
    proposals.push_back({"cublaslt", weights.size(), [&, plan](std::size_t copy, cudaStream_t stream) {
                           cublas.run(*plan, weights[copy].as<void>(), x.as<void>(), y.as<void>(), stream);
                         }});
  const std::vector<Times> times = measure(proposals, effort);
  const auto best =
      std::min_element(times.begin(), times.end(), [](const Times& a, const Times& b) { return a.median < b.median; });
  return plans[static_cast<std::size_t>(best - times.begin())];
}

// --- bitsandbytes

struct Bitsandbytes::Api {
  using DequantizeBytes = void(const float* codebook, const std::uint8_t* codes, const float* absmax, float* out,
                               int blocksize, int n, cudaStream_t);
  using Dequantize = void(const float* unused, const std::uint8_t* packed, const float* absmax, void* out,
                          int blocksize, int n, cudaStream_t);
  using Quantize = void(const float* unused, const void* weights, float* absmax, std::uint8_t* packed, int blocksize,
                        int n);
  using Matmul = void(const void* x, const std::uint8_t* packed, const float* nested_absmax,
                      const std::uint8_t* absmax_codes, const float* nested_codebook, const float* nested_offset,
                      void* y, const void* bias, int m, int n, int k, int blocksize, int type, cudaStream_t);
  DequantizeBytes* dequantize_bytes;
  Dequantize* dequantize;
  Quantize* quantize;
  Matmul* matmul;
};

Bitsandbytes::Bitsandbytes(const std::string& path) : api_(std::make_unique<Api>()) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  find(library, "cdequantize_blockwise_fp32", api_->dequantize_bytes);
  find(library, "cdequantize_blockwise_bf16_nf4", api_->dequantize);
  find(library, "cquantize_blockwise_bf16_nf4", api_->quantize);
  find(library, "cgemm_4bit_bf16", api_->matmul);
}
Bitsandbytes::~Bitsandbytes() = default;

void Bitsandbytes::dequantize(const Nested& weight, std::uint64_t size, float* absmax, void* out,
                              cudaStream_t stream) const {
  const std::uint64_t blocks = (size + blocksize - 1) / blocksize;
  api_->dequantize_bytes(weight.nested_codebook, weight.absmax_codes, weight.nested_absmax, absmax, nested_blocksize,
                         as_int(blocks), stream);
  add_offset(absmax, weight.nested_offset, blocks, stream);
  api_->dequantize(nullptr, weight.packed, absmax, out, blocksize, as_int(size), stream);
}

void Bitsandbytes::quantize(const void* weights, std::uint64_t size, std::uint8_t* packed, float* absmax) const {
  api_->quantize(nullptr, weights, absmax, packed, blocksize, as_int(size));
}

void Bitsandbytes::matmul(const Nested& weight, std::uint64_t m, std::uint64_t n, std::uint64_t k, const void* x,
                          void* y, cudaStream_t stream) const {
  constexpr int nf4 = 2;
  api_->matmul(x, weight.packed, weight.nested_absmax, weight.absmax_codes, weight.nested_codebook,
               weight.nested_offset, y, nullptr, as_int(m), as_int(n), as_int(k), blocksize, nf4, stream);
}

}  // namespace nibble::bench
