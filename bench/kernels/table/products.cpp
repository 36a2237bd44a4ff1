#include "bench/kernels/table/products.hpp"

#include <functional>
#include <memory>
#include <string>

#include "bench/kernels/operands/int8.hpp"
#include "nibble/bf16.hpp"

namespace nibble::bench {
namespace {

/// Of one m: what the contenders share.
struct Product {
  Session& session;
  Shape shape;
  u64 m;
  const std::vector<u16>& weights;
  const std::vector<Buffer>& originals;
  std::vector<u16> host_x = random_bf16(m * shape.k, 1, m);
  Buffer x = Buffer::of(host_x), y{2 * m * shape.n};
  std::shared_ptr<const Cublas::Plan> plan = nullptr;  // null if cuBLASLt is not there, or does not do it

  [[nodiscard]] std::string name(const std::string& form) const {
    return "matmul/bf16/" + form + "/" + shape.text() + "/m" + std::to_string(m);
  }
  [[nodiscard]] std::vector<float> original_row(u64 n) const {
    std::vector<float> row(shape.k);
    for (u64 k = 0; k < shape.k; ++k) row[k] = bf16::to_float(weights[n * shape.k + k]);
    return row;
  }
};

/// A form of quantized weights.
struct Form {
  std::string name;
  u64 bytes;                                     // of a weight
  std::function<std::vector<float>(u64 n)> row;  // of the first copy
  double m1_us = 0;                              // nibble's time for m = 1
};

void find_plan(Product& product) {
  const Cublas* const cublas = product.session.cublas.get();
  if (cublas == nullptr) return;
  product.session.report.attempt(product.name("bf16") + "/cublaslt", [&] {
    product.plan = fastest_plan(*cublas, {.m = product.m, .n = product.shape.n, .k = product.shape.k},
                                product.originals, product.x, product.y, {.seconds = 0.1});
  });
}

void add_cublaslt(std::vector<Contender>& to, const Product& product) {
  if (!product.plan) return;
  to.push_back({"cublaslt", product.originals.size(), [&product](std::size_t copy, cudaStream_t stream) {
                  product.session.cublas->run(*product.plan, product.originals[copy].as<void>(), product.x.as<void>(),
                                              product.y.as<void>(), stream);
                }});
}

// Times those whose result is right, and prints their lines.
void measure_contenders(Form& form, Product& product, const std::vector<Contender>& all) {
  Session& session = product.session;
  const Shape& shape = product.shape;
  const u64 m = product.m;
  const std::string name = product.name(form.name);
  const auto contenders =
      session.right_ones(name, all, product.y, [&](const Contender& contender, const std::string& what) {
        const auto original_row = [&](u64 n) { return product.original_row(n); };
        if (contender.by == "cublaslt")
          check_product(shape, m, product.host_x, product.y, original_row, what);
        else
          check_product(shape, m, product.host_x, product.y, form.row, what);
      });
  const std::vector<Times> times = measure(contenders);
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const bool is_bf16 = contenders[i].by == "cublaslt";
    // bitsandbytes-dequantized moves more; what it has to read is counted.
    const u64 bytes = product.x.bytes() + product.y.bytes() + (is_bf16 ? product.originals[0].bytes() : form.bytes);
    Json line = line_of(name + "/" + contenders[i].by, times[i], bytes);
    line["share_of_read"] = gb_s(bytes, times[i]) / session.read_gb_s;
    line["share_of_hbm"] = gb_s(bytes, times[i]) / session.hbm_gb_s;
    line["tflop_s"] = 2e-6 * static_cast<double>(m * shape.size()) / times[i].median;
    if (contenders[i].by == "nibble") {
      if (m == 1) form.m1_us = times[i].median;
      if (form.m1_us > 0) line["times_m1"] = times[i].median / form.m1_us;
    }
    add_ratios(line, contenders, times, i);
    Report::print(line);
  }
}

void measure_four_bit(Form& form, Product& product, const std::vector<FourBit>& weights) {
  const Session& session = product.session;
  const Shape& shape = product.shape;
  const Buffer &x = product.x, &y = product.y, &codebook = session.codebook;
  const Matmul matmul(shape, product.m, weights[0], codebook),
      in_turn(shape, product.m, weights[0], codebook, 0, false);
  std::vector<Contender> contenders{
      {"nibble", weights.size(),
       [&](std::size_t copy, cudaStream_t stream) { matmul.run(weights[copy], codebook, x, y, stream); }},
      {"nibble-in-turn", weights.size(),
       [&](std::size_t copy, cudaStream_t stream) { in_turn.run(weights[copy], codebook, x, y, stream); }}};
  add_cublaslt(contenders, product);
  std::vector<Buffer> scratch;
  if (session.bitsandbytes && shape.has_usual_blocks()) {
    contenders.push_back({"bitsandbytes-fused", weights.size(), [&](std::size_t copy, cudaStream_t stream) {
                            session.bitsandbytes->matmul(weights[copy].peer_argument(codebook), product.m, shape.n,
                                                         shape.k, x.as<void>(), y.as<void>(), stream);
                          }});
    if (product.plan) {
      scratch.emplace_back(4 * shape.size() / blocksize);
      scratch.emplace_back(2 * shape.size());
      contenders.push_back({"bitsandbytes-dequantized", weights.size(), [&](std::size_t copy, cudaStream_t stream) {
                              session.bitsandbytes->dequantize(weights[copy].peer_argument(codebook), shape.size(),
                                                               scratch[0].as<float>(), scratch[1].as<void>(), stream);
                              session.cublas->run(*product.plan, scratch[1].as<void>(), x.as<void>(), y.as<void>(),
                                                  stream);
                            }});
    }
  }
  measure_contenders(form, product, contenders);
}

void measure_int8(Form& form, Product& product, const std::vector<Int8>& weights) {
  const Int8Matmul matmul(product.shape, product.m, weights[0]);
  std::vector<Contender> contenders{{"nibble", weights.size(), [&](std::size_t copy, cudaStream_t stream) {
                                       matmul.run(weights[copy], product.x, product.y, stream);
                                     }}};
  add_cublaslt(contenders, product);
  measure_contenders(form, product, contenders);
}

}  // namespace

void measure_products(Session& session, const Shape& shape, const std::vector<u16>& weights,
                      const std::vector<Buffer>& originals, const std::vector<FourBit>& four_bit) {
  const auto int8 = shape.block == blocksize ? random_copies<Int8>(shape) : std::vector<Int8>();
  Form of_four_bit{"nf4-nested", four_bit[0].bytes(), [&](u64 n) { return four_bit[0].row(shape, n); }};
  Form of_int8{"int8", int8.empty() ? 0 : int8[0].bytes(), [&](u64 n) { return int8[0].row(shape, n); }};
  std::vector<u64> all_m(decode_m.begin(), decode_m.end());
  if (shape.has_usual_blocks()) all_m.insert(all_m.end(), table_many_m.begin(), table_many_m.end());
  for (const u64 m : all_m) {
    Product product{session, shape, m, weights, originals};
    find_plan(product);
    session.report.attempt(product.name("nf4-nested"), [&] { measure_four_bit(of_four_bit, product, four_bit); });
    if (!int8.empty() && m <= decode_m.back())
      session.report.attempt(product.name("int8"), [&] { measure_int8(of_int8, product, int8); });
  }
}

}  // namespace nibble::bench
