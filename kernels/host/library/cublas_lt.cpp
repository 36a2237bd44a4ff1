#include "kernels/host/library/cublas_lt.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <string>
#include <utility>

#include "kernels/host/library/cublas_lt_functions.hpp"

#if !defined(NIBBLE_CUBLASLT_NAMES)
#define NIBBLE_CUBLASLT_NAMES "libcublasLt.so.13", "libcublasLt.so.12"
#endif

namespace nibble::kernels::cublas_lt {
namespace {

void check(int status, const char* what) {
  if (status != success) throw Failure(std::string(what) + ": cuBLAS status " + std::to_string(status));
}

void* loaded(const char* path) {
  const std::vector<const char*> names =
      *path != '\0' ? std::vector<const char*>{path} : std::vector<const char*>{NIBBLE_CUBLASLT_NAMES};
  for (const char* const name : names)
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  throw Missing(dlerror());
}

template <class Function> void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw Failure(std::string("the library has no ") + name);
}

}  // namespace

Library::Library(const char* path) {
  void* const library = loaded(path);
  auto all = std::make_unique<Functions>();
  find(library, "cublasLtGetVersion", all->version);
  find(library, "cublasLtCreate", all->create);
  find(library, "cublasLtMatmul", all->matmul);
  find(library, "cublasLtMatmulAlgoGetHeuristic", all->heuristic);
  find(library, "cublasLtMatmulDescCreate", all->create_operation);
  find(library, "cublasLtMatmulDescSetAttribute", all->set_operation);
  find(library, "cublasLtMatmulDescDestroy", all->destroy_operation);
  find(library, "cublasLtMatrixLayoutCreate", all->create_layout);
  find(library, "cublasLtMatrixLayoutDestroy", all->destroy_layout);
  find(library, "cublasLtMatmulPreferenceCreate", all->create_preference);
  find(library, "cublasLtMatmulPreferenceSetAttribute", all->set_preference);
  find(library, "cublasLtMatmulPreferenceDestroy", all->destroy_preference);
  functions_ = std::move(all);
}
Library::~Library() = default;

std::size_t Library::version() const { return functions_->version(); }

Context* Library::create_context() const {
  Context* context = nullptr;
  check(functions_->create(&context), "cublasLtCreate");
  return context;
}

// -- Products

// A handle that is destroyed also if the next one cannot be made.
template <class T> using Owned = std::unique_ptr<T, int (*)(T*)>;

struct Product::Descriptors {
  const Functions& functions;
  bool integers, adds_to_d, only_fp32_sums;
  u32 alignments[3];  // of a, b, d
  Owned<Operation> operation;
  Owned<Layout> a, b, d;

  Descriptors(const Functions& all, const Matrix& a_matrix, const Matrix& b_matrix, const Matrix& d_matrix,
              const Options& options)
      : functions(all),
        integers(d_matrix.type == Type::s32),
        adds_to_d(options.adds_to_d),
        only_fp32_sums(options.only_fp32_sums),
        alignments{a_matrix.alignment, b_matrix.alignment, d_matrix.alignment},
        operation(operation_of(integers)),
        a(layout_of(a_matrix)),
        b(layout_of(b_matrix)),
        d(layout_of(d_matrix)) {
    set(OperationAttribute::transpose_a, options.transposes_a ? std::int32_t{1} : std::int32_t{0}, "TRANSA");
    if (options.short_fp8_sums) set(OperationAttribute::fast_sums, std::int8_t{1}, "FAST_ACCUM");
    if (options.bias != nullptr) {
      set(OperationAttribute::epilogue, epilogue_bias, "EPILOGUE");
      set(OperationAttribute::bias, options.bias, "BIAS_POINTER");
    }
  }

 private:
  template <class Value> void set(OperationAttribute attribute, Value value, const char* name) {
    check(functions.set_operation(operation.get(), attribute, &value, sizeof value), name);
  }
  [[nodiscard]] Owned<Operation> operation_of(bool of_integers) const {
    Operation* made = nullptr;
    check(functions.create_operation(&made, of_integers ? Compute::s32 : Compute::f32,
                                     of_integers ? Type::s32 : Type::f32),
          "cublasLtMatmulDescCreate");
    return {made, functions.destroy_operation};
  }
  [[nodiscard]] Owned<Layout> layout_of(const Matrix& matrix) const {
    Layout* layout = nullptr;
    check(functions.create_layout(&layout, matrix.type, matrix.rows, matrix.columns,
                                  static_cast<std::int64_t>(matrix.stride)),
          "cublasLtMatrixLayoutCreate");
    return {layout, functions.destroy_layout};
  }
};

namespace {

// The request of a heuristic.
class Wishes {
 public:
  explicit Wishes(const Functions& functions) : functions_(functions) {
    check(functions.create_preference(&preference_), "cublasLtMatmulPreferenceCreate");
  }
  ~Wishes() { functions_.destroy_preference(preference_); }
  Wishes(const Wishes&) = delete;
  Wishes& operator=(const Wishes&) = delete;

  template <class Value> void set(PreferenceAttribute attribute, Value value, const char* name) {
    check(functions_.set_preference(preference_, attribute, &value, sizeof value), name);
  }
  [[nodiscard]] Preference* get() const { return preference_; }

 private:
  const Functions& functions_;
  Preference* preference_ = nullptr;
};

}  // namespace

Product::Product(const Library& library, const Matrix& a, const Matrix& b, const Matrix& d, const Options& options)
    : descriptors_(new Descriptors{library.functions(), a, b, d, options}) {}
Product::Product(Product&&) noexcept = default;
Product::~Product() = default;

std::vector<Algorithm> Product::algorithms(Context* context, int count, std::size_t workspace_bytes) const {
  const Descriptors& own = *descriptors_;
  Wishes wishes(own.functions);
  wishes.set(PreferenceAttribute::max_workspace_bytes, u64{workspace_bytes}, "MAX_WORKSPACE_BYTES");
  if (own.only_fp32_sums) wishes.set(PreferenceAttribute::reductions, reduction_in_compute_type, "REDUCTION_SCHEME");
  wishes.set(PreferenceAttribute::alignment_a, own.alignments[0], "MIN_ALIGNMENT_A");
  wishes.set(PreferenceAttribute::alignment_b, own.alignments[1], "MIN_ALIGNMENT_B");
  wishes.set(PreferenceAttribute::alignment_c, own.alignments[2], "MIN_ALIGNMENT_C");
  wishes.set(PreferenceAttribute::alignment_d, own.alignments[2], "MIN_ALIGNMENT_D");
  std::vector<HeuristicResult> results(static_cast<std::size_t>(count));
  int found = 0;
  check(own.functions.heuristic(context, own.operation.get(), own.a.get(), own.b.get(), own.d.get(), own.d.get(),
                                wishes.get(), count, results.data(), &found),
        "cublasLtMatmulAlgoGetHeuristic");
  std::vector<Algorithm> algorithms;
  for (std::size_t i = 0; i < static_cast<std::size_t>(found); ++i)
    if (results[i].state == success) algorithms.push_back(results[i].algorithm);
  if (algorithms.empty()) throw Failure("cuBLASLt proposes nothing");
  return algorithms;
}

void Product::run(Context* context, const Algorithm& algorithm, const void* a, const void* b, void* d, void* workspace,
                  std::size_t workspace_bytes, device::StreamRef stream) const {
  const Descriptors& own = *descriptors_;
  const float one = 1, beta = own.adds_to_d ? 1.0f : 0.0f;
  const std::int32_t whole_one = 1, whole_beta = own.adds_to_d ? 1 : 0;
  const void* const alpha_at = own.integers ? static_cast<const void*>(&whole_one) : &one;
  const void* const beta_at = own.integers ? static_cast<const void*>(&whole_beta) : &beta;
  check(own.functions.matmul(context, own.operation.get(), alpha_at, a, own.a.get(), b, own.b.get(), beta_at, d,
                             own.d.get(), d, own.d.get(), &algorithm, workspace, workspace_bytes, stream),
        "cublasLtMatmul");
}

}  // namespace nibble::kernels::cublas_lt
