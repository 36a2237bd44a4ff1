#include "bench/kernels/gpu/peers.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>

#include "bench/kernels/gpu/bandwidth.hpp"

namespace nibble::bench {
namespace {

// Libraries stay loaded: CUDA may still need their kernels at exit.
template <class Function> void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("the library has no ") + name);
}

int as_int(std::uint64_t size) {
  if (size > 0x7fffffff) throw std::runtime_error(std::to_string(size) + " is too large for bitsandbytes");
  return static_cast<int>(size);
}

constexpr std::size_t workspace_bytes = std::size_t{64} << 20;
constexpr int blocksize = 64, nested_blocksize = 256;

}  // namespace

// --- cuBLASLt

// A row-major matrix is the transposed of one that is stored by columns, as cuBLAS counts: w is one of k x n. The
// forward product is transposed(y) = transposed(that) * transposed(x), the backward one without the first
// transposition.
struct Cublas::Plan {
  std::shared_ptr<const kernels::cublas_lt::Product> product;
  kernels::cublas_lt::Algorithm algorithm;
};

Cublas::Cublas(const std::string& path)
    : library_(path.c_str()), context_(library_.create_context()), workspace_(workspace_bytes) {}

std::unique_ptr<Cublas> Cublas::open(const std::string& path) {
  try {
    return std::unique_ptr<Cublas>(new Cublas(path));
  } catch (const kernels::cublas_lt::Missing&) {
    if (!path.empty()) throw;
    return nullptr;
  }
}

std::size_t Cublas::version() const { return library_.version(); }

std::vector<std::shared_ptr<const Cublas::Plan>> Cublas::plans(const Product& product) const {
  using namespace kernels::cublas_lt;
  const bool integers = product.type == Type::s8;
  const auto in = integers                    ? kernels::cublas_lt::Type::s8
                  : product.type == Type::fp8 ? kernels::cublas_lt::Type::e4m3
                                              : kernels::cublas_lt::Type::bf16;
  const auto out = integers ? kernels::cublas_lt::Type::s32 : kernels::cublas_lt::Type::bf16;
  const u64 m = product.m, n = product.n, k = product.k;
  const u64 inner = product.backward ? n : k, columns = product.backward ? k : n;
  const auto matmul = std::make_shared<const kernels::cublas_lt::Product>(
      library_, Matrix{in, k, n, k}, Matrix{in, inner, m, inner}, Matrix{out, columns, m, columns},
      kernels::cublas_lt::Product::Options{.transposes_a = !product.backward,
                                           .short_fp8_sums = product.type == Type::fp8});
  std::vector<std::shared_ptr<const Plan>> plans;
  for (const Algorithm& algorithm : matmul->algorithms(context_, 8, workspace_bytes))
    plans.push_back(std::make_shared<const Plan>(Plan{matmul, algorithm}));
  return plans;
}

void Cublas::run(const Plan& plan, const void* w, const void* x, void* y, cudaStream_t stream) const {
  plan.product->run(context_, plan.algorithm, w, x, y, workspace_.as<void>(), workspace_bytes, stream);
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
