// The operations of nibble/kernels.hpp on a GPU, beside what its memory can do, cuBLASLt and bitsandbytes.
//
//   bench_kernels [--out FILE] [--cublaslt LIBRARY] [--bitsandbytes LIBRARY]     77: there is no GPU
//
// Data is random and lies in copies of more than 250 MB together, which take turns: no cache holds it. Before a thing
// is timed, its result is compared with the plainest loops on the CPU, here, for a few rows. docs/kernels-benchmark.md
// says what a line has.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/bandwidth.hpp"
#include "bench/four_bit.hpp"
#include "bench/gpu.hpp"
#include "bench/gpu_peers.hpp"
#include "nibble/bf16.hpp"
#include "nibble/kernels.hpp"
#include "nibble/nf4.hpp"

namespace nibble::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr u64 uncached_bytes = 250'000'000;

struct Options {
  std::string out, cublaslt, bitsandbytes, note, commit, command;
  bool quick = false, find = false;
};

constexpr Shape shapes[] = {{4096, 4096}, {14336, 4096}, {28672, 8192}};

std::size_t copies_of(u64 bytes) { return std::max<std::size_t>(2, uncached_bytes / bytes + 1); }

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options), cublas_(Cublas::open(options.cublaslt)), codebook_(nested_codebook()) {
    if (!options.bitsandbytes.empty()) bitsandbytes_ = std::make_unique<Bitsandbytes>(options.bitsandbytes);
    if (!options.out.empty()) {
      file_.open(options.out, std::ios::app);
      if (!file_) throw std::runtime_error(options.out + ": cannot be written");
    }
  }

  /// Whether all results were right.
  bool run() {
    describe();
    bandwidth("");
    for (const Shape& shape : shapes) {
      if (options_.quick && shape.size() != shapes[0].size()) continue;
      measure_shape(shape);
    }
    bandwidth("/again");  // lower than at first: the device became slower meanwhile, and figures are not to be trusted
    return all_right_;
  }

 private:
  static Buffer nested_codebook() {
    return Buffer::of(std::vector<float>(nibble_nested_codebook(), nibble_nested_codebook() + 256));
  }

  void print(const Json& line) {
    std::cout << line.dump() << std::endl;
    if (file_.is_open()) file_ << line.dump() << std::endl;
  }

  // What fails is a line, too, and does not stop the rest: time on a GPU is dear.
  template <class Body> bool attempt(const std::string& name, Body&& body) {
    try {
      body();
      return true;
    } catch (const std::exception& error) {
      print({{"name", name}, {"error", error.what()}});
      all_right_ = false;
      return false;
    }
  }

  // Without those whose result of the first copy is wrong.
  template <class Check>
  std::vector<Contender> right_ones(const std::string& name, const std::vector<Contender>& contenders, Buffer& out,
                                    Check&& check_result) {
    std::vector<Contender> right;
    for (const Contender& contender : contenders) {
      const std::string its_name = name + "/" + contender.by;
      const bool is_right = attempt(its_name, [&] {
        out.poison();
        contender.run(0, nullptr);
        check_result(contender, its_name);
      });
      if (is_right) right.push_back(contender);
    }
    return right;
  }

  static Json line_of(const std::string& name, const Times& times, u64 bytes) {
    return {{"name", name},         {"unit", "us"},       {"median", times.median},
            {"low", times.low},     {"high", times.high}, {"replays", times.replays},
            {"calls", times.calls}, {"bytes", bytes},     {"gb_s", gb_s(bytes, times)}};
  }
  static double gb_s(u64 bytes, const Times& times) { return static_cast<double>(bytes) / times.median * 1e-3; }

  void describe() {
    int device = 0, driver = 0, runtime = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    const auto attribute = [device](cudaDeviceAttr which) {
      int value = 0;
      check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
      return value;
    };
    const int memory_khz = attribute(cudaDevAttrMemoryClockRate), bits = attribute(cudaDevAttrGlobalMemoryBusWidth);
    hbm_gb_s_ = 2.0 * memory_khz * bits / 8 * 1e-6;  // two transfers a clock
    const std::time_t now = std::time(nullptr);
    char date[32];
    std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    Json line = {{"kind", "run"},
                 {"date", date},
                 {"bench", "bench/kernels.sh"},
                 {"gpu", properties.name},
                 {"capability", 10 * properties.major + properties.minor},
                 {"multiprocessors", properties.multiProcessorCount},
                 {"memory_bytes", properties.totalGlobalMem},
                 {"l2_bytes", properties.l2CacheSize},
                 {"driver", driver},
                 {"runtime", runtime},
                 {"sm_khz", attribute(cudaDevAttrClockRate)},
                 {"memory_khz", memory_khz},
                 {"memory_bits", bits},
                 {"hbm_gb_s", hbm_gb_s_},
                 {"cublaslt", cublas_ ? Json(cublas_->version()) : Json()},
                 {"bitsandbytes", bitsandbytes_ ? Json(options_.bitsandbytes) : Json()},
                 {"command", options_.command}};
    if (!options_.commit.empty()) line["commit"] = options_.commit;
    if (!options_.note.empty()) line["nvidia_smi"] = options_.note;
    print(line);
  }

  void bandwidth(const std::string& suffix) {
    constexpr u64 bytes = u64{1} << 30;
    std::vector<u16> random = random_bf16(bytes / 2, 1, 1);
    const Buffer from = Buffer::of(random), to(bytes), sink(4);
    copy_bytes(from.as<void>(), to.as<void>(), bytes, nullptr);
    require(to.to_host<u16>() == random, "copy");
    const std::vector<Times> times = measure({
        {"kernel", 1, [&](std::size_t, cudaStream_t s) { copy_bytes(from.as<void>(), to.as<void>(), bytes, s); }},
        {"cudaMemcpyAsync", 1,
         [&](std::size_t, cudaStream_t s) {
           check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), bytes, cudaMemcpyDeviceToDevice, s),
                 "cudaMemcpyAsync");
         }},
        {"kernel", 1, [&](std::size_t, cudaStream_t s) { read_bytes(from.as<void>(), sink.as<void>(), bytes, s); }},
    });
    print(line_of("copy/kernel" + suffix, times[0], 2 * bytes));
    print(line_of("copy/cudaMemcpyAsync" + suffix, times[1], 2 * bytes));
    print(line_of("read/kernel" + suffix, times[2], bytes));
    if (!suffix.empty()) return;
    copy_gb_s_ = std::max(gb_s(2 * bytes, times[0]), gb_s(2 * bytes, times[1]));
    read_gb_s_ = gb_s(bytes, times[2]);
  }

  void measure_shape(const Shape& shape) {
    const u64 size = shape.size();
    const std::vector<u16> weights = random_bf16(size, 0.02f, size);
    std::vector<Buffer> originals;
    for (std::size_t i = 0; i < copies_of(2 * size); ++i) originals.push_back(Buffer::of(weights));
    std::vector<FourBit> quantized;
    do quantized.emplace_back(size);
    while (quantized.size() < copies_of(quantized[0].bytes()));
    attempt("quantize/" + shape.text(), [&] { measure_quantize(shape, weights, originals, quantized); });
    attempt("dequantize/" + shape.text(), [&] { measure_dequantize(shape, quantized); });
    m1_us_ = 0;
    for (const u64 m : {1, 8, 16, 32, 64})
      attempt("matmul/" + shape.text(), [&] { measure_matmul(shape, m, weights, originals, quantized); });
  }

  void measure_quantize(const Shape& shape, const std::vector<u16>& weights, const std::vector<Buffer>& originals,
                        std::vector<FourBit>& quantized) {
    const u64 size = shape.size();
    const std::string name = "quantize/bf16/nf4-nested/" + shape.text();
    const Buffer workspace(cuda::quantize_workspace_bytes(size, blocksize, true));
    const Buffer absmax(4 * size / blocksize);
    const auto quantize = [&](std::size_t copy, FourBit& to, cudaStream_t stream) {
      cuda::quantize(originals[copy % originals.size()].as<void>(), NIBBLE_BF16, size, to.output(), nullptr,
                     workspace.as<void>(), workspace.bytes(), stream);
    };
    const bool with_peer =
        bitsandbytes_ && attempt(name + "/bitsandbytes-without-nesting", [&] {
          bitsandbytes_->quantize(originals[0].as<void>(), size, quantized[0].packed.as<u8>(), absmax.as<float>());
          check_codes(weights, quantized[0], name + ", bitsandbytes", 0.001);  // its reciprocal is approximate
        });
    for (FourBit& one : quantized) {
      one.poison();
      quantize(0, one, nullptr);
    }
    check_quantized(weights, quantized[0], name);

    // What is written has the same bytes each time.
    const std::size_t copies = std::max(originals.size(), quantized.size());
    std::vector<Contender> contenders{{"nibble", copies, [&](std::size_t copy, cudaStream_t stream) {
                                         quantize(copy, quantized[copy % quantized.size()], stream);
                                       }}};
    std::vector<FourBit> peer;
    if (with_peer) {
      for (std::size_t i = 0; i < 2; ++i) peer.emplace_back(size);
      contenders.push_back({"bitsandbytes-without-nesting", copies,
                            [&](std::size_t copy, cudaStream_t) {
                              bitsandbytes_->quantize(originals[copy % originals.size()].as<void>(), size,
                                                      peer[copy % 2].packed.as<u8>(), absmax.as<float>());
                            },
                            false});
    }
    print_copies(name, contenders, 2 * size + quantized[0].bytes());
  }

  void measure_dequantize(const Shape& shape, const std::vector<FourBit>& quantized) {
    const u64 size = shape.size();
    const std::string name = "dequantize/nf4-nested/bf16/" + shape.text();
    const Buffer absmax(4 * size / blocksize);
    std::vector<Buffer> outs;
    for (std::size_t i = 0; i < copies_of(2 * size); ++i) outs.emplace_back(2 * size);
    std::vector<Contender> contenders{
        {"nibble", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
           cuda::dequantize(quantized[copy].argument(shape, codebook_), 0,
                            {NIBBLE_BF16, shape.n, shape.k, shape.k, outs[copy % outs.size()].as<void>()}, stream);
         }}};
    if (bitsandbytes_)
      contenders.push_back({"bitsandbytes", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                              bitsandbytes_->dequantize(quantized[copy].peer_argument(codebook_), size,
                                                        absmax.as<float>(), outs[copy % outs.size()].as<void>(),
                                                        stream);
                            }});
    contenders = right_ones(name, contenders, outs[0], [&](const Contender&, const std::string& what) {
      check_dequantized(quantized[0], size, outs[0], what);
    });
    print_copies(name, contenders, 2 * size + quantized[0].bytes());
  }

  void measure_matmul(const Shape& shape, u64 m, const std::vector<u16>& weights, const std::vector<Buffer>& originals,
                      const std::vector<FourBit>& quantized) {
    const std::string name = "matmul/bf16/nf4-nested/" + shape.text() + "/m" + std::to_string(m);
    const std::vector<u16> host_x = random_bf16(m * shape.k, 1, m);
    const Buffer x = Buffer::of(host_x);
    Buffer y(2 * m * shape.n);
    const Buffer workspace(nibble_matmul_four_bit_workspace(m, shape.n, shape.k));
    const auto original_row = [&](u64 n) {
      std::vector<float> row(shape.k);
      for (u64 k = 0; k < shape.k; ++k) row[k] = bf16::to_float(weights[n * shape.k + k]);
      return row;
    };
    const auto quantized_row = [&](u64 n) {
      const auto codes = quantized[0].codes(n * shape.k, shape.k);
      const auto absmax = quantized[0].absmax(n * shape.k / blocksize, shape.k / blocksize);
      std::vector<float> row(shape.k);
      for (u64 k = 0; k < shape.k; ++k) row[k] = nf4::codebook.value[codes[k]] * absmax[k / blocksize];
      return row;
    };

    std::vector<Contender> contenders{{"nibble", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                                         cuda::matmul(quantized[copy].argument(shape, codebook_),
                                                      {NIBBLE_BF16, m, shape.k, shape.k, x.as<void>()}, nullptr,
                                                      {NIBBLE_BF16, m, shape.n, shape.n, y.as<void>()},
                                                      workspace.as<void>(), workspace.bytes(), stream);
                                       }}};
    std::shared_ptr<const Cublas::Product> plan;
    const auto cublas = [&](std::shared_ptr<const Cublas::Product> with) -> Contender {
      return {"cublaslt", originals.size(), [&, with](std::size_t copy, cudaStream_t stream) {
                cublas_->run(*with, originals[copy].as<void>(), x.as<void>(), y.as<void>(), stream);
              }};
    };
    if (cublas_) {
      // The fastest of what it proposes.
      std::vector<Contender> proposals;
      const auto plans = cublas_->plans(m, shape.n, shape.k);
      for (const auto& proposal : plans) proposals.push_back(cublas(proposal));
      const std::vector<Times> times = measure(proposals, 0.1);
      const auto best = std::min_element(times.begin(), times.end(),
                                         [](const Times& a, const Times& b) { return a.median < b.median; });
      plan = plans[static_cast<std::size_t>(best - times.begin())];
      contenders.push_back(cublas(plan));
    }
    std::vector<Buffer> scratch;
    if (bitsandbytes_) {
      contenders.push_back({"bitsandbytes-fused", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                              bitsandbytes_->matmul(quantized[copy].peer_argument(codebook_), m, shape.n, shape.k,
                                                    x.as<void>(), y.as<void>(), stream);
                            }});
      if (cublas_) {
        scratch.emplace_back(4 * shape.size() / blocksize);
        scratch.emplace_back(2 * shape.size());
        contenders.push_back({"bitsandbytes-dequantized", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                                bitsandbytes_->dequantize(quantized[copy].peer_argument(codebook_), shape.size(),
                                                          scratch[0].as<float>(), scratch[1].as<void>(), stream);
                                cublas_->run(*plan, scratch[1].as<void>(), x.as<void>(), y.as<void>(), stream);
                              }});
      }
    }
    contenders = right_ones(name, contenders, y, [&](const Contender& contender, const std::string& what) {
      if (contender.by == "cublaslt")
        check_product(shape, m, host_x, y, original_row, what);
      else
        check_product(shape, m, host_x, y, quantized_row, what);
    });

    const std::vector<Times> times = measure(contenders);
    const u64 activations = x.bytes() + y.bytes();
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const bool is_bf16 = contenders[i].by == "cublaslt";
      // bitsandbytes-dequantized moves more; what it has to read is counted.
      const u64 bytes = activations + (is_bf16 ? originals[0].bytes() : quantized[0].bytes());
      Json line = line_of(name + "/" + contenders[i].by, times[i], bytes);
      line["share_of_read"] = gb_s(bytes, times[i]) / read_gb_s_;
      line["share_of_hbm"] = gb_s(bytes, times[i]) / hbm_gb_s_;
      line["tflop_s"] = 2e-6 * static_cast<double>(m * shape.size()) / times[i].median;
      if (contenders[i].by == "nibble") {
        if (m == 1) m1_us_ = times[i].median;
        if (m1_us_ > 0) line["times_m1"] = times[i].median / m1_us_;
      }
      add_ratios(line, contenders, times, i);
      print(line);
    }
  }

  // Prints the lines of operations that are bound by what they read and write.
  void print_copies(const std::string& name, const std::vector<Contender>& contenders, u64 bytes) {
    const std::vector<Times> times = measure(contenders);
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      Json line = line_of(name + "/" + contenders[i].by, times[i], bytes);
      line["share_of_copy"] = gb_s(bytes, times[i]) / copy_gb_s_;
      line["share_of_hbm"] = gb_s(bytes, times[i]) / hbm_gb_s_;
      if (!contenders[i].in_graph) line["graph"] = false;
      add_ratios(line, contenders, times, i);
      print(line);
    }
  }

  // How many times as fast as the others nibble is.
  static void add_ratios(Json& line, const std::vector<Contender>& contenders, const std::vector<Times>& times,
                         std::size_t own) {
    if (contenders[own].by != "nibble") return;
    for (std::size_t i = 0; i < contenders.size(); ++i)
      if (i != own) line["faster_than"][contenders[i].by] = times[i].median / times[own].median;
  }

  const Options& options_;
  std::ofstream file_;
  std::unique_ptr<Cublas> cublas_;
  std::unique_ptr<Bitsandbytes> bitsandbytes_;
  Buffer codebook_;
  bool all_right_ = true;
  double copy_gb_s_ = 0, read_gb_s_ = 0, hbm_gb_s_ = 0, m1_us_ = 0;
};

int run(int argc, char** argv) {
  Options options;
  for (int i = 0; i < argc; ++i) options.command += (i == 0 ? "" : " ") + std::string(argv[i]);
  CLI::App app("The kernels on a GPU, in microseconds");
  app.add_option("--out", options.out, "Lines are appended to this file, too");
  app.add_option("--cublaslt", options.cublaslt, "The library, if it is not where libraries are")
      ->check(CLI::ExistingFile);
  app.add_option("--bitsandbytes", options.bitsandbytes, "libbitsandbytes_cudaXXX.so")->check(CLI::ExistingFile);
  app.add_option("--note", options.note, "What nvidia-smi says, for the first line");
  app.add_option("--commit", options.commit, "What was built, for the first line");
  app.add_flag("--find", options.find, "Say whether there is a GPU, and no more");
  app.add_flag("--quick", options.quick, "The smallest shape alone");
  CLI11_PARSE(app, argc, argv);

  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no GPU: nothing was measured");
    return 77;
  }
  if (options.find) return 0;
  return Bench(options).run() ? 0 : 1;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) {
  try {
    return nibble::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
