// The functions of cuBLASLt that nibble and its benchmarks call, by the plainest loops on the host, from what cuBLAS
// documents: matrices are stored by columns, d = alpha * op(a) * op(b) + beta * c + bias. As measured on an H100 with
// cuBLASLt 13.1.0, the sum of the product and of c is rounded to d's type before a bias is added. It proposes two
// algorithms for everything but fp8 with fewer than 16 columns, which it does not support. A product that is not the
// one whose algorithm it proposed, by sizes, alignment or workspace, fails, and a context that is null ends the
// process. If the environment has NIBBLE_SIMULATED_WRONG, the first value of every product is wrong.
#include "tests/kernels/host/library/simulated_cublaslt.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/host/library/cublas_lt_functions.hpp"
#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"

namespace nibble::kernels::cublas_lt {

struct Context {
  SimulatedCublasLt control;
};
struct Operation {
  Compute compute;
  Type scale;
  int a = 0;
  u32 epilogue = 1;
  const void* bias = nullptr;
};
struct Layout {
  Type type;
  u64 rows, columns;
  std::int64_t stride;
};
struct Preference {
  u64 workspace_bytes = 0;
  u32 reductions = 7, alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

namespace {

constexpr int invalid = 7, not_supported = 15, failed = 13;

Context the_context;

// What an algorithm is for.
struct Proposal {
  u64 m, n, k;
  u32 alignment_a, alignment_b, alignment_d, reductions;
  u64 workspace_bytes;
};
static_assert(sizeof(Proposal) <= sizeof(Algorithm));

std::size_t bytes_of(Type type) {
  return type == Type::f32 || type == Type::s32 ? 4 : type == Type::f16 || type == Type::bf16 ? 2 : 1;
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

double value_at(Type type, const void* data, u64 i) {
  std::uint16_t bits = 0;
  float wide = 0;
  std::int32_t whole = 0;
  const char* const at = static_cast<const char*>(data) + i * bytes_of(type);
  switch (type) {
    case Type::bf16:
      std::memcpy(&bits, at, 2);
      return double{bf16::to_float(bits)};
    case Type::f16:
      std::memcpy(&bits, at, 2);
      return double{fp16::to_float(bits)};
    case Type::f32:
      std::memcpy(&wide, at, 4);
      return double{wide};
    case Type::s32:
      std::memcpy(&whole, at, 4);
      return whole;
    case Type::e4m3:
      return e4m3[static_cast<std::uint8_t>(*at)];
    case Type::s8:
      break;
  }
  return static_cast<std::int8_t>(*at);
}

void store(Type type, void* data, u64 i, double value) {
  const auto narrow = static_cast<float>(value);
  const auto whole = static_cast<std::int32_t>(value);
  const std::uint16_t bits = type == Type::bf16 ? bf16::from_float(narrow) : fp16::from_float(narrow);
  const void* const from = type == Type::s32   ? static_cast<const void*>(&whole)
                           : type == Type::f32 ? static_cast<const void*>(&narrow)
                                               : &bits;
  std::memcpy(static_cast<char*>(data) + i * bytes_of(type), from, bytes_of(type));
}

double rounded_to(Type type, double value) {
  float rounded = 0;
  store(type, &rounded, 0, value);
  return value_at(type, &rounded, 0);
}

bool is_half(Type type) { return type == Type::bf16 || type == Type::f16; }

// Whether types go together as cuBLASLt's tables say.
bool is_supported(const Operation& operation, const Layout& a, const Layout& b, const Layout& d) {
  if (a.type != b.type) return false;
  if (a.type == Type::s8)
    return operation.compute == Compute::s32 && operation.scale == Type::s32 && d.type == Type::s32 &&
           operation.a == 1 && operation.epilogue == 1;
  if (operation.compute != Compute::f32 || operation.scale != Type::f32) return false;
  if (a.type == Type::e4m3) return d.type == Type::bf16 && operation.a == 1 && b.columns >= 16;
  return is_half(a.type) && (d.type == a.type || d.type == Type::f32);
}

bool fits(const Operation& operation, const Layout& a, const Layout& b, const Layout& d) {
  const bool transposed = operation.a == 1;
  return (transposed ? a.columns : a.rows) == d.rows && (transposed ? a.rows : a.columns) == b.rows &&
         b.columns == d.columns && a.stride >= static_cast<std::int64_t>(a.rows) &&
         b.stride >= static_cast<std::int64_t>(b.rows) && d.stride >= static_cast<std::int64_t>(d.rows) && d.rows > 0 &&
         d.columns > 0 && b.rows > 0 && (operation.epilogue == 1 || operation.bias != nullptr);
}

template <class Member> int set_attribute(Member& member, const void* value, std::size_t bytes) {
  if (bytes != sizeof member) return invalid;
  std::memcpy(&member, value, bytes);
  return success;
}

bool is_aligned(const void* pointer, u64 bytes) { return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0; }

void touch(const Layout& matrix, const void* data, bool writes) {
  if (the_context.control.touch == nullptr) return;
  const std::size_t each = bytes_of(matrix.type);
  for (u64 column = 0; column < matrix.columns; ++column)
    the_context.control.touch(static_cast<const char*>(data) + column * static_cast<u64>(matrix.stride) * each,
                              matrix.rows * each, writes);
}

}  // namespace
}  // namespace nibble::kernels::cublas_lt

using namespace nibble::kernels::cublas_lt;

extern "C" {

SimulatedCublasLt* simulated_cublaslt() { return &the_context.control; }

std::size_t cublasLtGetVersion() { return 1; }
int cublasLtCreate(Context** context) {
  if (the_context.control.makes_no_context) return failed;
  *context = &the_context;
  ++the_context.control.contexts;
  return success;
}

int cublasLtMatmulDescCreate(Operation** operation, Compute compute, Type scale) {
  *operation = new Operation{compute, scale};
  ++the_context.control.handles;
  return success;
}
int cublasLtMatmulDescSetAttribute(Operation* operation, OperationAttribute attribute, const void* value,
                                   std::size_t bytes) {
  const auto set = [&](auto& member) { return set_attribute(member, value, bytes); };
  switch (attribute) {
    case OperationAttribute::transpose_a:
      return set(operation->a);
    case OperationAttribute::epilogue:
      return set(operation->epilogue);
    case OperationAttribute::bias:
      return set(operation->bias);
    case OperationAttribute::fast_sums:
      return bytes == 1 ? success : invalid;
  }
  return invalid;
}
int cublasLtMatmulDescDestroy(Operation* operation) {
  delete operation;
  --the_context.control.handles;
  return success;
}

int cublasLtMatrixLayoutCreate(Layout** matrix, Type type, u64 rows, u64 columns, std::int64_t stride) {
  if (the_context.control.layouts++ >= the_context.control.max_layouts) return failed;
  *matrix = new Layout{type, rows, columns, stride};
  ++the_context.control.handles;
  return success;
}
int cublasLtMatrixLayoutDestroy(Layout* matrix) {
  delete matrix;
  --the_context.control.handles;
  return success;
}

int cublasLtMatmulPreferenceCreate(Preference** preference) {
  *preference = new Preference;
  ++the_context.control.handles;
  return success;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, PreferenceAttribute attribute, const void* value,
                                         std::size_t bytes) {
  const auto set = [&](auto& member) { return set_attribute(member, value, bytes); };
  switch (attribute) {
    case PreferenceAttribute::max_workspace_bytes:
      return set(preference->workspace_bytes);
    case PreferenceAttribute::reductions:
      return set(preference->reductions);
    case PreferenceAttribute::alignment_a:
      return set(preference->alignment_a);
    case PreferenceAttribute::alignment_b:
      return set(preference->alignment_b);
    case PreferenceAttribute::alignment_c:
      return set(preference->alignment_c);
    case PreferenceAttribute::alignment_d:
      return set(preference->alignment_d);
  }
  return invalid;
}
int cublasLtMatmulPreferenceDestroy(Preference* preference) {
  delete preference;
  --the_context.control.handles;
  return success;
}

int cublasLtMatmulAlgoGetHeuristic(Context* context, Operation* operation, Layout* a, Layout* b, Layout* c, Layout* d,
                                   Preference* preference, int wanted, HeuristicResult* results, int* found) {
  *found = 0;
  if (context == nullptr) std::abort();
  if (context != &the_context || c != d || preference->alignment_c != preference->alignment_d) return invalid;
  if (!fits(*operation, *a, *b, *d)) return invalid;
  if (!is_supported(*operation, *a, *b, *d)) return not_supported;
  const Proposal proposal{d->rows,
                          d->columns,
                          b->rows,
                          preference->alignment_a,
                          preference->alignment_b,
                          preference->alignment_d,
                          preference->reductions,
                          preference->workspace_bytes};
  for (; *found < wanted && *found < 2 && !the_context.control.proposes_nothing; ++*found) {
    results[*found] = {};
    results[*found].state = success;
    std::memcpy(&results[*found].algorithm, &proposal, sizeof proposal);
  }
  return success;
}

int cublasLtMatmul(Context* context, Operation* operation, const void* alpha, const void* a, Layout* a_layout,
                   const void* b, Layout* b_layout, const void* beta, const void* c, Layout* c_layout, void* d,
                   Layout* d_layout, const Algorithm* algorithm, void* workspace, std::size_t workspace_bytes,
                   void* /*stream*/) {
  SimulatedCublasLt& control = the_context.control;
  const Layout &in = *a_layout, &other = *b_layout, &out = *d_layout;
  if (context != &the_context || !fits(*operation, in, other, out) || !is_supported(*operation, in, other, out))
    return invalid;
  Proposal proposal{};
  std::memcpy(&proposal, algorithm, sizeof proposal);
  if (proposal.m != out.rows || proposal.n != out.columns || proposal.k != other.rows) return invalid;
  if (!is_aligned(a, proposal.alignment_a) || !is_aligned(b, proposal.alignment_b)) return invalid;
  if (!is_aligned(d, proposal.alignment_d) || c != d || c_layout != d_layout) return invalid;
  if (!is_aligned(workspace, 256) || workspace_bytes < proposal.workspace_bytes) return invalid;
  const Type scale = operation->scale;
  const double old = value_at(scale, beta, 0);
  if (value_at(scale, alpha, 0) != 1 || (old != 0 && old != 1)) return invalid;
  const bool has_bias = operation->epilogue == epilogue_bias;
  if (has_bias && !is_aligned(operation->bias, std::min<u64>(proposal.alignment_d, 16))) return invalid;
  if (control.products == control.max_products) return failed;
  ++control.products;

  touch(in, a, false);
  touch(other, b, false);
  if (old != 0) touch(out, d, false);
  if (has_bias) touch({out.type, out.rows, 1, static_cast<std::int64_t>(out.rows)}, operation->bias, false);
  if (control.touch != nullptr) control.touch(workspace, workspace_bytes, true);
  const bool wrong = std::getenv("NIBBLE_SIMULATED_WRONG") != nullptr;
  const bool rounds_parts = control.rounds_parts && (proposal.reductions & ~reduction_in_compute_type) != 0;
  const auto a_stride = static_cast<u64>(in.stride), b_stride = static_cast<u64>(other.stride);
  for (u64 column = 0; column < out.columns; ++column)
    for (u64 row = 0; row < out.rows; ++row) {
      double sum = wrong && row + column == 0 ? 1e4 : 0;
      for (u64 i = 0; i < other.rows; ++i) {
        sum += value_at(in.type, a, operation->a == 1 ? row * a_stride + i : i * a_stride + row) *
               value_at(other.type, b, column * b_stride + i);
        if (rounds_parts && i == other.rows / 2) sum = rounded_to(out.type, sum);
      }
      const u64 at = column * static_cast<u64>(out.stride) + row;
      if (old != 0) sum += value_at(out.type, d, at);
      if (has_bias) sum = (old != 0 ? rounded_to(out.type, sum) : sum) + value_at(out.type, operation->bias, row);
      store(out.type, d, at, sum);
    }
  touch(out, d, true);
  return success;
}

}  // extern "C"
