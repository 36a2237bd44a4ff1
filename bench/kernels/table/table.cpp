#include "bench/kernels/table/table.hpp"

#include <algorithm>

#include "bench/kernels/gpu/bandwidth.hpp"
#include "bench/kernels/table/products.hpp"
#include "bench/kernels/table/several.hpp"

namespace nibble::bench {

Table::Table(const std::string& cublaslt, const std::string& bitsandbytes) : bitsandbytes_path_(bitsandbytes) {
  session_.report.attempt("cublaslt", [&] { session_.cublas = Cublas::open(cublaslt); });
  if (bitsandbytes.empty()) return;
  session_.report.attempt("bitsandbytes",
                          [&] { session_.bitsandbytes = std::make_unique<Bitsandbytes>(bitsandbytes); });
}

bool Table::run(const std::vector<Shape>& chosen) {
  return run_between_bandwidths([&] {
    for (const Shape& shape : chosen) measure_shape(shape);
  });
}

bool Table::run_several() {
  return run_between_bandwidths([&] { measure_several(session_); });
}

template <class Body> bool Table::run_between_bandwidths(Body&& body) {
  Json device = device_line();
  device["cublaslt"] = session_.cublas ? Json(session_.cublas->version()) : Json();
  device["bitsandbytes"] = session_.bitsandbytes ? Json(bitsandbytes_path_) : Json();
  Report::print(device);
  bandwidth("");
  body();
  bandwidth("/again");  // lower than at first: the device became slower meanwhile, and figures are not to be trusted
  return session_.report.all_right();
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
  session_.copy_gb_s = std::max(gb_s(2 * bytes, times[0]), gb_s(2 * bytes, times[1]));
  session_.read_gb_s = gb_s(bytes, times[2]);
}

void Table::measure_shape(const Shape& shape) {
  const u64 size = shape.size();
  const std::vector<u16> weights = random_bf16(size, 0.02f, size);
  const std::vector<Buffer> originals = bf16_copies(weights);
  auto quantized = random_copies<FourBit>(shape);  // in case nibble cannot quantize here
  if (shape.has_usual_blocks()) {
    session_.report.attempt("quantize/" + shape.text(),
                            [&] { measure_quantize(shape, weights, originals, quantized); });
    session_.report.attempt("dequantize/" + shape.text(), [&] { measure_dequantize(shape, quantized); });
  }
  session_.report.attempt("matmul/" + shape.text(),
                          [&] { measure_products(session_, shape, weights, originals, quantized); });
}

void Table::measure_quantize(const Shape& shape, const std::vector<u16>& weights, const std::vector<Buffer>& originals,
                             std::vector<FourBit>& quantized) {
  const u64 size = shape.size();
  const std::string name = "quantize/bf16/nf4-nested/" + shape.text();
  const Quantize quantize(size);
  const Buffer absmax(4 * size / blocksize);
  const bool with_peer = session_.bitsandbytes && session_.report.attempt(name + "/bitsandbytes-without-nesting", [&] {
    session_.bitsandbytes->quantize(originals[0].as<void>(), size, quantized[0].packed.as<u8>(), absmax.as<float>());
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
  std::vector<FourBit> others;
  for (std::size_t i = 0; i < quantized.size(); ++i) others.emplace_back(size);
  quantize.run_without_nesting(originals[0], others[0].packed, absmax, nullptr);
  check_codes(weights, others[0], name + ", without nesting");
  contenders.push_back({"nibble-without-nesting", copies, [&](std::size_t copy, cudaStream_t stream) {
                          quantize.run_without_nesting(originals[copy % originals.size()],
                                                       others[copy % others.size()].packed, absmax, stream);
                        }});
  if (with_peer)
    contenders.push_back({"bitsandbytes-without-nesting", copies,
                          [&](std::size_t copy, cudaStream_t) {
                            session_.bitsandbytes->quantize(originals[copy % originals.size()].as<void>(), size,
                                                            others[copy % others.size()].packed.as<u8>(),
                                                            absmax.as<float>());
                          },
                          false});
  print_copies(name, contenders, 2 * size + quantized[0].bytes());
}

void Table::measure_dequantize(const Shape& shape, const std::vector<FourBit>& quantized) {
  const u64 size = shape.size();
  const std::string name = "dequantize/nf4-nested/bf16/" + shape.text();
  const Buffer absmax(4 * size / blocksize);
  std::vector<Buffer> outs;
  for (std::size_t i = 0; i < copies_of(2 * size); ++i) outs.emplace_back(2 * size);
  std::vector<Contender> contenders{{"nibble", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                                       dequantize(quantized[copy], shape, session_.codebook, outs[copy % outs.size()],
                                                  stream);
                                     }}};
  if (session_.bitsandbytes)
    contenders.push_back({"bitsandbytes", quantized.size(), [&](std::size_t copy, cudaStream_t stream) {
                            session_.bitsandbytes->dequantize(quantized[copy].peer_argument(session_.codebook), size,
                                                              absmax.as<float>(), outs[copy % outs.size()].as<void>(),
                                                              stream);
                          }});
  contenders = session_.right_ones(name, contenders, outs[0], [&](const Contender&, const std::string& what) {
    check_dequantized(quantized[0], size, outs[0], what);
  });
  print_copies(name, contenders, 2 * size + quantized[0].bytes());
}

// Prints the lines of operations that are bound by what they read and write.
void Table::print_copies(const std::string& name, const std::vector<Contender>& contenders, u64 bytes) const {
  const std::vector<Times> times = measure(contenders);
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    Json line = line_of(name + "/" + contenders[i].by, times[i], bytes);
    line["share_of_copy"] = gb_s(bytes, times[i]) / session_.copy_gb_s;
    line["share_of_hbm"] = gb_s(bytes, times[i]) / session_.hbm_gb_s;
    if (!contenders[i].in_graph) line["graph"] = false;
    add_ratios(line, contenders, times, i);
    Report::print(line);
  }
}

}  // namespace nibble::bench
