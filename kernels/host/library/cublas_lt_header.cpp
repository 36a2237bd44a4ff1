// Compares the numbers and structs of cublas_lt.hpp with cuBLASLt's own header, where that is there.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <cstddef>

#include "kernels/host/library/cublas_lt.hpp"
#include "kernels/host/library/cublas_lt_functions.hpp"

namespace nibble::kernels::cublas_lt {

template <class Own> constexpr bool is(Own own, int number) { return static_cast<int>(own) == number; }

static_assert(is(Type::f32, CUDA_R_32F) && is(Type::f16, CUDA_R_16F) && is(Type::bf16, CUDA_R_16BF));
static_assert(is(Type::s8, CUDA_R_8I) && is(Type::s32, CUDA_R_32I) && is(Type::e4m3, CUDA_R_8F_E4M3));
static_assert(is(Compute::f32, CUBLAS_COMPUTE_32F) && is(Compute::s32, CUBLAS_COMPUTE_32I));
static_assert(is(success, CUBLAS_STATUS_SUCCESS) && CUBLAS_OP_N == 0 && CUBLAS_OP_T == 1);
static_assert(is(OperationAttribute::transpose_a, CUBLASLT_MATMUL_DESC_TRANSA));
static_assert(is(OperationAttribute::epilogue, CUBLASLT_MATMUL_DESC_EPILOGUE));
static_assert(is(OperationAttribute::bias, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
static_assert(is(OperationAttribute::fast_sums, CUBLASLT_MATMUL_DESC_FAST_ACCUM));
static_assert(is(PreferenceAttribute::max_workspace_bytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES));
static_assert(is(PreferenceAttribute::reductions, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK));
static_assert(is(PreferenceAttribute::alignment_a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES));
static_assert(is(PreferenceAttribute::alignment_b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES));
static_assert(is(PreferenceAttribute::alignment_c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES));
static_assert(is(PreferenceAttribute::alignment_d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES));
static_assert(is(epilogue_bias, CUBLASLT_EPILOGUE_BIAS));
static_assert(is(reduction_in_compute_type, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t) && alignof(Algorithm) == alignof(cublasLtMatmulAlgo_t));
static_assert(sizeof(HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(HeuristicResult, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(HeuristicResult, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(sizeof(cublasStatus_t) == sizeof(int) && sizeof(cudaDataType_t) == sizeof(int));
static_assert(sizeof(cublasComputeType_t) == sizeof(int) && sizeof(cublasLtMatmulDescAttributes_t) == sizeof(int));

}  // namespace nibble::kernels::cublas_lt
#endif
