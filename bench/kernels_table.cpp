#include "bench/kernels_table.hpp"

#include <algorithm>

#include "bench/bandwidth.hpp"
#include "nibble/bf16.hpp"

namespace nibble::bench {
namespace {

double gb_s(u64 bytes, const Times& times) { return static_cast<double>(bytes) / times.median * 1e-3; }

Json line_of(const std::string& name, const Times& times, u64 bytes) {
  Json line = bench::line_of(name, times);
  line["bytes"] = bytes;
  line["gb_s"] = gb_s(bytes, times);
  return line;
}

// How many times as fast as the others nibble is.
void add_ratios(Json& line, const std::vector<Contender>& contenders, const std::vector<Times>& times,
                std::size_t own) {
  if (contenders[own].by != "nibble") return;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    if (i != own) line["faster_than"][contenders[i].by] = times[i].median / times[own].median;
}

}  // namespace

Table::Table(const std::string& cublaslt, const std::string& bitsandbytes)
    : bitsandbytes_path_(bitsandbytes), codebook_(nested_codebook()) {
  report_.attempt("cublaslt", [&] { cublas_ = Cublas::open(cublaslt); });
  if (bitsandbytes.empty()) return;
  report_.attempt("bitsandbytes", [&] { bitsandbytes_ = std::make_unique<Bitsandbytes>(bitsandbytes); });
}

bool Table::run(const std::vector<Shape>& chosen) {
  Json device = device_line();
  device["cublaslt"] = cublas_ ? Json(cublas_->version()) : Json();
  device["bitsandbytes"] = bitsandbytes_ ? Json(bitsandbytes_path_) : Json();
  Report::print(device);
  hbm_gb_s_ = nominal_gb_s();
  bandwidth("");
  for (const Shape& shape : chosen) measure_shape(shape);
  bandwidth("/again");  // lower than at first: the device became slower meanwhile, and figures are not to be trusted
  return report_.all_right();
}

// The contenders, without those whose result of the first copy is wrong.
template <class Check>
std::vector<Contender> Table::right_ones(const std::string& name, const std::vector<Contender>& contenders, Buffer& out,
                                         Check&& check_result) {
  std::vector<Contender> right;
  for (const Contender& contender : contenders) {
    const std::string its_name = name + "/" + contender.by;
    const bool is_right = report_.attempt(its_name, [&] {
      out.poison();
      contender.run(0, nullptr);
      check_result(contender, its_name);
    });
    if (is_right) right.push_back(contender);
  }
  return right;
}

void Table::bandwidth(const std::string& suffix) {
  constexpr u64 bytes = bandwidth_bytes;
  const std::vector<u16> random = random_bf16(bytes / 2, 1, 1);
  const Buffer from = Buffer::of(random), to(bytes), sink(4);
  copy_bytes(from.as<void>(), to.as<void>(), bytes, nullptr);
  require(to.to_host<u16>() == random, "copy");
  const std::vector<Times> times = measure({
      {"kernel", 1, [&](std::size_t, cudaStream_t s) { copy_bytes(from.as<void>(), to.as<void>(), bytes, s); }},
      {"cudaMemcpyAsync", 1,
       [&](std::size_t, cudaStream_t s) {
         check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), bytes, cudaMemcpyDeviceToDevice, s), "cudaMemcpyAsync");
       }},
      {"kernel", 1, [&](std::size_t, cudaStream_t s) { read_bytes(from.as<void>(), sink.as<void>(), bytes, s); }},
  });
  Report::print(line_of("copy/kernel" + suffix, times[0], 2 * bytes));
  Report::print(line_of("copy/cudaMemcpyAsync" + suffix, times[1], 2 * bytes));
  Report::print(line_of("read/kernel" + suffix, times[2], bytes));
  if (!suffix.empty()) return;
  copy_gb_s_ = std::max(gb_s(2 * bytes, times[0]), gb_s(2 * bytes, times[1]));
  read_gb_s_ = gb_s(bytes, times[2]);
}

void Table::measure_shape(const Shape& shape) {
  const u64 size = shape.size();
  const std::vector<u16> weights = random_bf16(size, 0.02f, size);
  const std::vector<Buffer> originals = bf16_copies(weights);
  auto quantized = random_copies<FourBit>(shape);  // in case nibble cannot quantize here
  if (shape.has_usual_blocks()) {
    report_.attempt("quantize/" + shape.text(), [&] { measure_quantize(shape, weights, originals, quantized); });
    report_.attempt("dequantize/" + shape.text(), [&] { measure_dequantize(shape, quantized); });
  }
  m1_us_ = 0;
  for (const u64 m : decode_m)
    report_.attempt("matmul/" + shape.text(), [&] { measure_matmul(shape, m, weights, originals, quantized); });
}

void Table::measure_quantize(const Shape& shape, const std::vector<u16>& weights, const std::vector<Buffer>& originals,
                             std::vector<FourBit>& quantized) {
  const u64 size = shape.size();
  const std::string name = "quantize/bf16/nf4-nested/" + shape.text();
  const Quantize quantize(size);
  const Buffer absmax(4 * size / blocksize);
  const bool with_peer = bitsandbytes_ && report_.attempt(name + "/bitsandbytes-without-nesting", [&] {
    bitsandbytes_->quantize(originals[0].as<void>(), size, quantized[0].packed.as<u8>(), absmax.as<float>());
    check_codes(weights, quantized[0], name + ", bitsandbytes", 0.001);  // its reciprocal is approximate
  });
  for (FourBit& one : quantized) {
    one.poison();
    quantize.run(originals[0], one, nullptr);
  }
  check_quantized(weights, quantized[0], name);

  // What is written has the same bytes each time.
  const std::size_t copies = std::max(originals.size(), quantized.size());
  std::vector<Contender> contenders{{"nibble", copies, [&](std::size_t copy, cudaStream_t stream) {
                                       quantize.run(originals[copy % originals.size()],
                                                    quantized[copy % quantized.size()], stream);
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

void Table::measure_dequantize(const Shape& shape, const std::vector<FourBit>& quantized) {
  const u64 size = shape.size();
  const std::string name = "dequantize/nf4-nested/bf16/" + shape.text();
  const Buffer absmax(4 * size / blocksize);
  std::vector<Buffer> outs;
  for (std::size_t i = 0; i < copies_of(2 * size); ++i) outs.emplace_back(2 * size);
  std::vector<Contender> contenders{{"nibble", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                                       dequantize(quantized[copy], shape, codebook_, outs[copy % outs.size()], stream);
                                     }}};
  if (bitsandbytes_)
    contenders.push_back({"bitsandbytes", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                            bitsandbytes_->dequantize(quantized[copy].peer_argument(codebook_), size,
                                                      absmax.as<float>(), outs[copy % outs.size()].as<void>(), stream);
                          }});
  contenders = right_ones(name, contenders, outs[0], [&](const Contender&, const std::string& what) {
    check_dequantized(quantized[0], size, outs[0], what);
  });
  print_copies(name, contenders, 2 * size + quantized[0].bytes());
}

void Table::measure_matmul(const Shape& shape, u64 m, const std::vector<u16>& weights,
                           const std::vector<Buffer>& originals, const std::vector<FourBit>& quantized) {
  const std::string name = "matmul/bf16/nf4-nested/" + shape.text() + "/m" + std::to_string(m);
  const std::vector<u16> host_x = random_bf16(m * shape.k, 1, m);
  const Buffer x = Buffer::of(host_x);
  Buffer y(2 * m * shape.n);
  const Matmul matmul(shape, m, quantized.front(), codebook_);
  const auto original_row = [&](u64 n) {
    std::vector<float> row(shape.k);
    for (u64 k = 0; k < shape.k; ++k) row[k] = bf16::to_float(weights[n * shape.k + k]);
    return row;
  };
  const auto quantized_row = [&](u64 n) { return quantized[0].row(shape, n); };

  std::vector<Contender> contenders{{"nibble", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                                       matmul.run(quantized[copy], codebook_, x, y, stream);
                                     }}};
  std::shared_ptr<const Cublas::Plan> plan;
  if (cublas_ && report_.attempt(name + "/cublaslt", [&] {
        plan = fastest_plan(*cublas_, {.m = m, .n = shape.n, .k = shape.k}, originals, x, y, {.seconds = 0.1});
      }))
    contenders.push_back({"cublaslt", originals.size(), [&](std::size_t copy, cudaStream_t stream) {
                            cublas_->run(*plan, originals[copy].as<void>(), x.as<void>(), y.as<void>(), stream);
                          }});
  std::vector<Buffer> scratch;
  if (bitsandbytes_ && shape.has_usual_blocks()) {
    contenders.push_back({"bitsandbytes-fused", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                            bitsandbytes_->matmul(quantized[copy].peer_argument(codebook_), m, shape.n, shape.k,
                                                  x.as<void>(), y.as<void>(), stream);
                          }});
    if (plan) {
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
    Report::print(line);
  }
}

// Prints the lines of operations that are bound by what they read and write.
void Table::print_copies(const std::string& name, const std::vector<Contender>& contenders, u64 bytes) const {
  const std::vector<Times> times = measure(contenders);
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    Json line = line_of(name + "/" + contenders[i].by, times[i], bytes);
    line["share_of_copy"] = gb_s(bytes, times[i]) / copy_gb_s_;
    line["share_of_hbm"] = gb_s(bytes, times[i]) / hbm_gb_s_;
    if (!contenders[i].in_graph) line["graph"] = false;
    add_ratios(line, contenders, times, i);
    Report::print(line);
  }
}

}  // namespace nibble::bench
