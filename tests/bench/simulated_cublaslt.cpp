// The functions of cuBLASLt that the benchmarks call, by the plainest loops on the host, from what cuBLAS documents:
// matrices are stored by columns, d = alpha * op(a) * op(b) + beta * c. It proposes two algorithms for everything but
// fp8 with fewer than 16 columns, which it does not support. If the environment has NIBBLE_SIMULATED_WRONG, the first
// value of every product is wrong.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N;
};
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t stride;
};

const Layout& layout(cublasLtMatrixLayout_t matrix) { return *reinterpret_cast<const Layout*>(matrix); }

double bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, 4);
  return double{value};
}

std::uint16_t bf16_bits(double value) {
  const float narrow = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &narrow, 4);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::array<double, 256> e4m3_values() {
  std::array<double, 256> values{};
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const double magnitude = exponent > 0 ? std::pow(2.0, exponent - 7) * (1 + fraction / 8.0) : fraction / 512.0;
    values[static_cast<std::size_t>(bits)] = bits < 128 ? magnitude : -magnitude;
  }
  return values;
}

const std::array<double, 256> e4m3 = e4m3_values();

double element(const Layout& matrix, const void* data, std::uint64_t row, std::uint64_t column) {
  const std::uint64_t i = column * static_cast<std::uint64_t>(matrix.stride) + row;
  switch (matrix.type) {
    case CUDA_R_16BF:
      return bf16_value(static_cast<const std::uint16_t*>(data)[i]);
    case CUDA_R_8F_E4M3:
      return e4m3[static_cast<const std::uint8_t*>(data)[i]];
    default:
      return static_cast<const std::int8_t*>(data)[i];
  }
}

// Whether types go together as cuBLASLt's tables say.
bool is_supported(const Operation& operation, const Layout& a, const Layout& b, const Layout& d) {
  if (a.type != b.type) return false;
  if (a.type == CUDA_R_8I)
    return operation.compute == CUBLAS_COMPUTE_32I && operation.scale == CUDA_R_32I && d.type == CUDA_R_32I &&
           operation.a == CUBLAS_OP_T;
  if (operation.compute != CUBLAS_COMPUTE_32F || operation.scale != CUDA_R_32F || d.type != CUDA_R_16BF) return false;
  return a.type != CUDA_R_8F_E4M3 || (operation.a == CUBLAS_OP_T && b.columns >= 16);
}

bool fits(const Operation& operation, const Layout& a, const Layout& b, const Layout& d) {
  const bool transposed = operation.a == CUBLAS_OP_T;
  return (transposed ? a.columns : a.rows) == d.rows && (transposed ? a.rows : a.columns) == b.rows &&
         b.columns == d.columns && a.stride >= static_cast<std::int64_t>(a.rows) &&
         b.stride >= static_cast<std::int64_t>(b.rows) && d.stride >= static_cast<std::int64_t>(d.rows);
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 1; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*handle*/) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *operation = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA && bytes == sizeof(cublasOperation_t)) {
    std::memcpy(&reinterpret_cast<Operation*>(operation)->a, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return attribute == CUBLASLT_MATMUL_DESC_FAST_ACCUM && bytes == 1 ? CUBLAS_STATUS_SUCCESS
                                                                    : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete reinterpret_cast<Operation*>(operation);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matrix, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  *matrix = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matrix) {
  delete reinterpret_cast<Layout*>(matrix);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t /*preference*/,
                                                    cublasLtMatmulPreferenceAttributes_t /*attribute*/,
                                                    const void* /*value*/, size_t /*bytes*/) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t /*preference*/) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t /*preference*/, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  const Operation& what = *reinterpret_cast<const Operation*>(operation);
  if (!fits(what, layout(a), layout(b), layout(d))) return CUBLAS_STATUS_INVALID_VALUE;
  if (!is_supported(what, layout(a), layout(b), layout(d))) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (; *found < wanted && *found < 2; ++*found) {
    results[*found] = {};
    results[*found].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* /*c*/,
                              cublasLtMatrixLayout_t /*c_layout*/, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* /*algorithm*/, void* /*workspace*/, size_t /*bytes*/,
                              cudaStream_t /*stream*/) {
  const Operation& what = *reinterpret_cast<const Operation*>(operation);
  const Layout &in = layout(a_layout), &other = layout(b_layout), &out = layout(d_layout);
  if (!fits(what, in, other, out) || !is_supported(what, in, other, out)) return CUBLAS_STATUS_INVALID_VALUE;
  const bool integers = out.type == CUDA_R_32I;
  const std::uint32_t one = integers ? 1 : 0x3f800000, zero = 0;
  if (std::memcmp(alpha, &one, 4) != 0 || std::memcmp(beta, &zero, 4) != 0) return CUBLAS_STATUS_INVALID_VALUE;
  const bool wrong = std::getenv("NIBBLE_SIMULATED_WRONG") != nullptr;
  for (std::uint64_t column = 0; column < out.columns; ++column)
    for (std::uint64_t row = 0; row < out.rows; ++row) {
      double sum = wrong && row + column == 0 ? 1e4 : 0;
      for (std::uint64_t i = 0; i < other.rows; ++i)
        sum += (what.a == CUBLAS_OP_T ? element(in, a, i, row) : element(in, a, row, i)) * element(other, b, i, column);
      const std::uint64_t at = column * static_cast<std::uint64_t>(out.stride) + row;
      if (integers)
        static_cast<std::int32_t*>(d)[at] = static_cast<std::int32_t>(sum);
      else
        static_cast<std::uint16_t*>(d)[at] = bf16_bits(sum);
    }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
