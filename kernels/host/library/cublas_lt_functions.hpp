// The functions of cuBLASLt that are called, with the numbers and structs that they take. cublas_lt.hpp has them in
// use.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/host/library/cublas_lt.hpp"

namespace nibble::kernels::cublas_lt {

inline constexpr int success = 0;
enum class Compute : int { f32 = 68, s32 = 72 };
enum class OperationAttribute : int { transpose_a = 3, epilogue = 7, bias = 8, fast_sums = 25 };
enum class PreferenceAttribute : int {
  max_workspace_bytes = 1,
  reductions = 3,
  alignment_a = 5,
  alignment_b = 6,
  alignment_c = 7,
  alignment_d = 8
};
inline constexpr u32 epilogue_bias = 4, reduction_in_compute_type = 2;

// What the library's handles point to.
struct Operation;
struct Layout;
struct Preference;

struct HeuristicResult {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

struct Functions {
  std::size_t (*version)();
  int (*create)(Context** context);
  int (*create_operation)(Operation** operation, Compute compute, Type scale);
  int (*set_operation)(Operation* operation, OperationAttribute attribute, const void* value, std::size_t bytes);
  int (*destroy_operation)(Operation* operation);
  int (*create_layout)(Layout** layout, Type type, u64 rows, u64 columns, std::int64_t stride);
  int (*destroy_layout)(Layout* layout);
  int (*create_preference)(Preference** preference);
  int (*set_preference)(Preference* preference, PreferenceAttribute attribute, const void* value, std::size_t bytes);
  int (*destroy_preference)(Preference* preference);
  int (*heuristic)(Context* context, Operation* operation, Layout* a, Layout* b, Layout* c, Layout* d,
                   Preference* preference, int count, HeuristicResult* results, int* found);
  int (*matmul)(Context* context, Operation* operation, const void* alpha, const void* a, Layout* a_layout,
                const void* b, Layout* b_layout, const void* beta, const void* c, Layout* c_layout, void* d,
                Layout* d_layout, const Algorithm* algorithm, void* workspace, std::size_t workspace_bytes,
                void* stream);
};

}  // namespace nibble::kernels::cublas_lt
