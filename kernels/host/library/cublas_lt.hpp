// cuBLASLt, as far as products and their benchmark call it. Nothing links it: it is loaded when it is first needed, so
// that programs start without it.
#pragma once
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels/device/types.hpp"

namespace nibble::kernels::cublas_lt {

using device::u32;
using device::u64;

// The numbers and structs are those of cublasLt.h, which need not be there: the library's interface keeps them from
// version to version. Where the header is there, cublas_lt_header.cpp compares them.
enum class Type : int { f32 = 0, f16 = 2, s8 = 3, s32 = 10, bf16 = 14, e4m3 = 28 };
struct Algorithm {
  u64 data[8];
};
struct Context;  // what cublasLtHandle_t points to

/// The library refuses what it is asked for, or lacks a function.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// There is no such library.
class Missing : public Failure {
 public:
  using Failure::Failure;
};

struct Functions;

/// Stays loaded to the end of the process, because CUDA may still need its kernels then. Thread-safe.
class Library {
 public:
  /// `path`, or if that is empty what the dynamic linker finds under the usual names. Throws Missing, or Failure.
  explicit Library(const char* path = "");
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  [[nodiscard]] std::size_t version() const;
  [[nodiscard]] const Functions& functions() const { return *functions_; }

  /// A context of the current device, which takes a little of its memory. It is never destroyed. Throws Failure.
  [[nodiscard]] Context* create_context() const;

 private:
  std::unique_ptr<const Functions> functions_;
};

/// A matrix that is stored by columns, which start `stride` elements apart. In memory it is the transposed of a
/// row-major matrix.
struct Matrix {
  Type type;
  u64 rows, columns, stride;
  u32 alignment = 256;  // of its first element, in bytes: a power of 2, 256 at most
};

/// d = op(a) * b + beta * d + bias. The sums are in fp32, or in s32 if d is.
class Product {
 public:
  struct Options {
    bool transposes_a = true;
    bool adds_to_d = false;       // beta is 1
    const void* bias = nullptr;   // a value of d's type for each row of d, in device memory
    bool short_fp8_sums = false;  // as the tensor core makes them, without promotion
    bool only_fp32_sums = false;  // what parts of a sum are added up from is fp32, never d's type
  };
  /// Throws Failure.
  Product(const Library& library, const Matrix& a, const Matrix& b, const Matrix& d, const Options& options);
  Product(Product&&) noexcept;
  ~Product();

  /// What the library's heuristic proposes for this device, best guess first, `count` at most. Throws Failure if that
  /// is nothing.
  [[nodiscard]] std::vector<Algorithm> algorithms(Context* context, int count, std::size_t workspace_bytes) const;

  /// `workspace` is aligned to 256 bytes. Throws Failure.
  void run(Context* context, const Algorithm& algorithm, const void* a, const void* b, void* d, void* workspace,
           std::size_t workspace_bytes, device::StreamRef stream) const;

 private:
  struct Descriptors;
  std::unique_ptr<Descriptors> descriptors_;
};

}  // namespace nibble::kernels::cublas_lt
