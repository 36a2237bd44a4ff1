// Other people's libraries that the kernels are measured against. They are loaded when the program runs, so that it
// starts without them.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/gpu/gpu.hpp"
#include "kernels/host/library/cublas_lt.hpp"

namespace nibble::bench {

/// cuBLASLt's products of row-major matrices: x with a weight w[n][k].
class Cublas {
 public:
  /// Null if there is no such library: `path`, or what the dynamic linker finds under the usual names.
  static std::unique_ptr<Cublas> open(const std::string& path);

  [[nodiscard]] std::size_t version() const;

  enum class Type {
    bf16,  // sums in fp32, y in bf16
    fp8,   // e4m3, sums as the tensor core makes them without promotion, y in bf16
    s8     // sums and y in int32
  };
  struct Product {
    std::uint64_t m, n, k;
    Type type = Type::bf16;
    /// False: y[m][n] = x[m][k] * transposed(w), the forward product (NT). True: y[m][k] = x[m][n] * w, that of the
    /// gradient (NN).
    bool backward = false;
  };

  /// Plans for a product: what cuBLASLt's heuristic proposes, best guess first, eight at most.
  struct Plan;
  [[nodiscard]] std::vector<std::shared_ptr<const Plan>> plans(const Product& product) const;
  void run(const Plan& plan, const void* w, const void* x, void* y, cudaStream_t stream) const;

 private:
  explicit Cublas(const std::string& path);
  kernels::cublas_lt::Library library_;
  kernels::cublas_lt::Context* context_;
  Buffer workspace_;
};

/// The plan that is the fastest on these copies of a weight.
std::shared_ptr<const Cublas::Plan> fastest_plan(const Cublas& cublas, const Cublas::Product& product,
                                                 const std::vector<Buffer>& weights, const Buffer& x, const Buffer& y,
                                                 const Effort& effort);

/// bitsandbytes' CUDA library, by the functions that its Python package calls (version 0.50.2, backends/cuda/ops.py).
/// NF4 in blocks of 64, bf16.
class Bitsandbytes {
 public:
  /// Throws std::runtime_error if the library, or a function in it, is not there.
  explicit Bitsandbytes(const std::string& path);
  ~Bitsandbytes();

  struct Nested {
    const std::uint8_t *packed, *absmax_codes;
    const float *nested_absmax, *nested_codebook, *nested_offset;
  };

  /// The three launches of dequantize_4bit(): absmax from its codes, the offset (which torch adds; here add_offset()
  /// does), the weights. `absmax` has room for a value per block.
  void dequantize(const Nested& weight, std::uint64_t size, float* absmax, void* out, cudaStream_t stream) const;
  /// Codes and absmax, without the second level. Goes to the default stream.
  void quantize(const void* weights, std::uint64_t size, std::uint8_t* packed, float* absmax) const;
  /// The fused product, which its Python package takes for some shapes, and dequantizes for others.
  void matmul(const Nested& weight, std::uint64_t m, std::uint64_t n, std::uint64_t k, const void* x, void* y,
              cudaStream_t stream) const;

 private:
  struct Api;
  std::unique_ptr<Api> api_;
};

}  // namespace nibble::bench
