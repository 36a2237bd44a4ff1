// The operations of nibble/kernels.hpp on a GPU, beside what its memory can do, cuBLASLt and bitsandbytes.
//
//   bench_kernels [--shape NxK] [--cublaslt LIBRARY] [--bitsandbytes LIBRARY]     the speed table
//   bench_kernels --several                           of the speed table, products of several weights in one launch
//   bench_kernels --find [--bitsandbytes LIBRARY]     whether there is a GPU, and whether that library works with it
//   bench_kernels --profile OPERATION,NxK[,M]         one cold launch (profile.hpp)
//
// 0: all was right; 1: a result was wrong, or CUDA failed; 77: there is no GPU. docs/kernels-benchmark.md says what the
// lines have.
#include <CLI/CLI.hpp>
#include <optional>

#include "bench/kernels/gpu/report.hpp"
#include "bench/kernels/table/profile.hpp"
#include "bench/kernels/table/table.hpp"

namespace nibble::bench {
namespace {

// Throws unless the library's functions do their work on this device.
void try_bitsandbytes(const std::string& path) {
  const Shape shape = shapes[0];
  const Bitsandbytes library(path);
  const Buffer codebook = nested_codebook(), weights = Buffer::of(random_bf16(shape.size(), 0.02f, 1));
  const Buffer x = Buffer::of(random_bf16(shape.k, 1, 2)), y(2 * shape.n), out(2 * shape.size());
  const Buffer absmax(4 * shape.size() / blocksize);
  FourBit weight = FourBit::random(shape, 1);
  library.dequantize(weight.peer_argument(codebook), shape.size(), absmax.as<float>(), out.as<void>(), nullptr);
  check_dequantized(weight, shape.size(), out, "bitsandbytes, dequantize");
  library.matmul(weight.peer_argument(codebook), 1, shape.n, shape.k, x.as<void>(), y.as<void>(), nullptr);
  check(cudaDeviceSynchronize(), "bitsandbytes, product");
  library.quantize(weights.as<void>(), shape.size(), weight.packed.as<u8>(), absmax.as<float>());
  check(cudaDeviceSynchronize(), "bitsandbytes, quantize");
}

int run(int argc, char** argv) {
  std::string cublaslt, bitsandbytes, shape, case_text;
  bool quick = false, several = false, find = false;
  CLI::App app("The kernels on a GPU, in microseconds");
  CLI::Option* const contenders[] = {
      app.add_option("--cublaslt", cublaslt, "The library, if it is not where libraries are")->check(CLI::ExistingFile),
      app.add_option("--bitsandbytes", bitsandbytes, "libbitsandbytes_cudaXXX.so")->check(CLI::ExistingFile)};
  std::vector<std::string> names;
  const std::vector<Shape> all = all_shapes();
  for (const Shape& one : all) names.push_back(one.text());
  app.add_option("--shape", shape, "This shape alone")->check(CLI::IsMember(names));
  app.add_flag("--quick", quick, "The smallest shape alone");
  CLI::Option* const several_option = app.add_flag(
      "--several", several, "Products of several weights in one launch instead: of q, k and v; of experts");
  for (CLI::Option* const option : contenders) several_option->excludes(option);
  app.add_flag("--find", find, "Say whether there is a GPU, and no more");
  app.add_option("--profile", case_text, "One cold launch of OPERATION,NxK[,M]");
  CLI11_PARSE(app, argc, argv);
  std::optional<ProfileCase> one_case;
  if (!case_text.empty()) one_case = profile_case(case_text);

  if (!has_gpu()) return no_gpu_code;
  if (one_case) {
    profile(*one_case);
    return 0;
  }
  if (find) {
    if (!bitsandbytes.empty()) try_bitsandbytes(bitsandbytes);
    return 0;
  }
  if (several) return Table().run_several() ? 0 : 1;
  std::vector<Shape> chosen;
  for (const Shape& one : all)
    if (quick ? chosen.empty() : shape.empty() || one.text() == shape) chosen.push_back(one);
  return Table(cublaslt, bitsandbytes).run(chosen) ? 0 : 1;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::result_of(nibble::bench::run, argc, argv); }
