#include "bench/kernels/table/several.hpp"

#include <string>
#include <vector>

#include "bench/kernels/operands/grouped.hpp"

namespace nibble::bench {
namespace {

u64 bytes_of(const std::vector<FourBit>& weights) {
  u64 bytes = 0;
  for (const FourBit& weight : weights) bytes += weight.bytes();
  return bytes;
}

/// As many copies as no cache holds.
std::vector<std::vector<FourBit>> copies_of_shared(const std::vector<Shape>& of) {
  std::vector<std::vector<FourBit>> copies;
  do {
    std::vector<FourBit>& copy = copies.emplace_back();
    for (const Shape& shape : of) copy.push_back(FourBit::random(shape, of.size() * copies.size() + copy.size()));
  } while (copies.size() < copies_of(bytes_of(copies[0])));
  return copies;
}

void print(const Session& session, const std::string& name, const Times& times, u64 bytes, u64 operations,
           const std::vector<Contender>& contenders, const std::vector<Times>& all, std::size_t own) {
  Json line = line_of(name, times, bytes);
  line["share_of_read"] = gb_s(bytes, times) / session.read_gb_s;
  line["share_of_hbm"] = gb_s(bytes, times) / session.hbm_gb_s;
  line["tflop_s"] = 1e-6 * static_cast<double>(operations) / times.median;
  add_ratios(line, contenders, all, own);
  Report::print(line);
}

void measure_shared(Session& session, const std::vector<Shape>& of, const std::vector<std::vector<FourBit>>& copies,
                    u64 m) {
  std::string name = "shared-matmul/bf16/nf4-nested/";
  u64 rows = 0;
  for (const Shape& shape : of) {
    name += (rows == 0 ? "" : "+") + std::to_string(shape.n);
    rows += shape.n;
  }
  name += "x" + std::to_string(of[0].k) + "/m" + std::to_string(m);
  const std::vector<u16> host_x = random_bf16(m * of[0].k, 1, m);
  const Buffer x = Buffer::of(host_x);
  std::vector<Buffer> y;
  std::vector<Matmul> single;
  for (std::size_t i = 0; i < of.size(); ++i) {
    y.emplace_back(2 * m * of[i].n);
    single.emplace_back(of[i], m, copies[0][i], session.codebook);
  }
  const GroupedMatmul together(of, m, copies[0], nullptr, session.codebook, x, y);
  const std::vector<Contender> all{
      {"nibble", copies.size(),
       [&](std::size_t copy, cudaStream_t stream) { together.run(copies[copy], nullptr, stream); }},
      {"nibble-one-by-one", copies.size(), [&](std::size_t copy, cudaStream_t stream) {
         for (std::size_t i = 0; i < of.size(); ++i) single[i].run(copies[copy][i], session.codebook, x, y[i], stream);
       }}};
  std::vector<Contender> right;
  for (const Contender& contender : all) {
    const std::string its_name = name + "/" + contender.by;
    const bool is_right = session.report.attempt(its_name, [&] {
      for (Buffer& one : y) one.poison();
      contender.run(0, nullptr);
      for (std::size_t i = 0; i < of.size(); ++i)
        check_product(
            of[i], m, host_x, y[i], [&](u64 n) { return copies[0][i].row(of[i], n); }, its_name);
    });
    if (is_right) right.push_back(contender);
  }
  const std::vector<Times> times = measure(right);
  for (std::size_t i = 0; i < right.size(); ++i)
    print(session, name + "/" + right[i].by, times[i], bytes_of(copies[0]) + 2 * m * (rows + of[0].k),
          2 * m * rows * of[0].k, right, times, i);
}

// Each call takes other experts or another copy, so that no cache holds what the next one reads.
void measure_experts(Session& session, const std::vector<std::vector<FourBit>>& copies, u64 tokens) {
  const Shape& shape = expert_shape;
  std::vector<Routing> routings;
  for (u64 seed = 0; seed < distinct_routings; ++seed) routings.emplace_back(tokens, seed);
  const u64 m = routings[0].m;
  const std::string name = "expert-matmul/bf16/nf4-nested/" + std::to_string(experts) + "x" + shape.text() + "/tokens" +
                           std::to_string(tokens) + "/nibble";
  const std::vector<u16> host_x = random_bf16(m * shape.k, 1, m);
  const Buffer x = Buffer::of(host_x);
  std::vector<Buffer> y;
  y.emplace_back(2 * m * shape.n);
  const GroupedMatmul matmul({shape}, m, copies[0], &routings[0], session.codebook, x, y);
  matmul.run(copies[0], &routings[0], nullptr);
  check_expert_product(shape, routings[0], host_x, y[0], copies[0][0], name);
  const Contender contender{"nibble", copies.size() * routings.size(), [&](std::size_t copy, cudaStream_t stream) {
                              matmul.run(copies[copy % copies.size()], &routings[copy / copies.size()], stream);
                            }};
  const std::vector<Times> times = measure({contender});
  const u64 bytes = copies[0][0].bytes() / experts * used_experts(routings[0].host_ends);
  print(session, name, times[0], bytes + x.bytes() + y[0].bytes(), 2 * m * shape.size(), {contender}, times, 0);
}

}  // namespace

void measure_several(Session& session) {
  const std::vector<Shape> of = shared_shapes(shared_shape);
  const auto weights = copies_of_shared(of);
  for (const u64 m : decode_m)
    session.report.attempt("shared-matmul/m" + std::to_string(m), [&] { measure_shared(session, of, weights, m); });
  const auto of_experts = copies_of_shared({shape_of_experts(expert_shape)});
  for (const u64 tokens : expert_tokens)
    session.report.attempt("expert-matmul/tokens" + std::to_string(tokens),
                           [&] { measure_experts(session, of_experts, tokens); });
}

}  // namespace nibble::bench
