// 4-bit codes of arrays in memory, on all threads.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <vector>

#include "core/memory/huge_page_advice.hpp"
#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "nibble/nested.hpp"
#include "python/c_api/arrays.hpp"
#include "python/c_api/result.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble::c_api {
namespace {

constexpr std::uint64_t piece_weights = 1 << 18;  // whole blocks; 1 MiB of fp32, about 0.2 ms
static_assert(piece_weights % FourBitTables::max_blocksize == 0);

// Of a codebook. The tables are constants, which outlive the codec.
const FourBitTables& tables_of(std::int32_t codebook) {
  const auto find = [](std::string_view name) -> const FourBitTables& {
    return dynamic_cast<const FourBitCodec&>(*make_codec(CodecSpec(name))).tables();
  };
  static const FourBitTables& nf4 = find("nf4");
  static const FourBitTables& fp4 = find("fp4");
  if (codebook == NIBBLE_NF4) return nf4;
  if (codebook == NIBBLE_FP4) return fp4;
  throw Error(Errc::usage, fmt::format("codebook is {}, neither 0 (NF4) nor 1 (FP4)", codebook));
}

// A nibble_cpu_four_bit, whose arrays have the sizes that follow from its other members.
class Weight {
 public:
  explicit Weight(const nibble_cpu_four_bit* weight) {
    require(weight, "the 4-bit weight");
    require_struct(*weight, "nibble_cpu_four_bit");
    weight_ = *weight;
    tables_ = &tables_of(weight_.codebook);
    if (!std::has_single_bit(weight_.blocksize) || weight_.blocksize < min_blocksize ||
        weight_.blocksize > FourBitTables::max_blocksize)
      throw Error(Errc::usage, fmt::format("blocksize is {}, not one of 32, 64, ..., 4096", weight_.blocksize));
    blocks_ = ceil_div(weight_.elements, weight_.blocksize);
    const Checked of_fp32 = Checked(blocks_) * sizeof(float);
    check_array(weight_.packed, ceil_div(weight_.elements, 2), 1, "packed");
    check_array(weight_.absmax, nested() ? 0 : of_fp32, alignof(float), "absmax");
    const auto check_nested = [&](const nibble_array& array, Checked bytes, std::size_t alignment, const char* name) {
      check_array(array, nested() ? bytes : 0, alignment, name);
    };
    check_nested(weight_.absmax_codes, blocks_, 1, "absmax_codes");
    check_nested(weight_.nested_absmax, ceil_div(blocks_, nested::blocksize) * sizeof(float), alignof(float),
                 "nested_absmax");
    check_nested(weight_.nested_codebook, sizeof nested::codebook, alignof(float), "nested_codebook");
    check_nested(weight_.nested_offset, sizeof(float), alignof(float), "nested_offset");
  }

  [[nodiscard]] bool nested() const noexcept { return weight_.absmax_codes.data != nullptr; }
  [[nodiscard]] const FourBitTables& tables() const noexcept { return *tables_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return weight_.elements; }
  [[nodiscard]] std::uint64_t blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::size_t blocksize() const noexcept { return weight_.blocksize; }

  [[nodiscard]] std::span<std::uint8_t> packed() const { return elements<std::uint8_t>(weight_.packed); }
  [[nodiscard]] std::span<float> absmax() const { return elements<float>(weight_.absmax); }
  [[nodiscard]] std::span<std::uint8_t> absmax_codes() const { return elements<std::uint8_t>(weight_.absmax_codes); }
  [[nodiscard]] std::span<float> nested_absmax() const { return elements<float>(weight_.nested_absmax); }
  [[nodiscard]] std::span<float, 256> nested_codebook() const {
    return elements<float>(weight_.nested_codebook).first<256>();
  }
  [[nodiscard]] float& nested_offset() const { return elements<float>(weight_.nested_offset)[0]; }

  // The codes of weights [first, first + n), which begin with a block.
  [[nodiscard]] std::span<std::uint8_t> packed(std::uint64_t first, std::uint64_t n) const {
    return packed().subspan(first / 2, ceil_div(n, 2));
  }

 private:
  nibble_cpu_four_bit weight_{};
  const FourBitTables* tables_ = nullptr;
  std::uint64_t blocks_ = 0;
};

// As the float64 sums of groups are added in order, the offset is that of nested::offset().
float mean_of(std::span<const float> absmax, std::uint32_t threads) {
  if (absmax.empty()) return 0;
  std::vector<double> sums(ceil_div(absmax.size(), nested::group));
  for_each_piece(absmax.size(), nested::group, threads, [&](std::uint64_t first, std::uint64_t n) {
    sums[first / nested::group] = nested::group_sum(absmax.subspan(first, n));
  });
  double sum = 0;
  for (const double group : sums) sum += group;
  return static_cast<float>(sum / static_cast<double>(absmax.size()));
}

void quantize_absmax(std::span<const float> absmax, const Weight& out, std::uint32_t threads) {
  const float offset = mean_of(absmax, threads);
  std::atomic<bool> finite = true;
  for_each_piece(absmax.size(), nested::group, threads, [&](std::uint64_t first, std::uint64_t n) {
    const auto codes = out.absmax_codes().subspan(first, n);
    const auto scales = out.nested_absmax().subspan(first / nested::blocksize, ceil_div(n, nested::blocksize));
    nested::encode(absmax.subspan(first, n), offset, codes, scales);
    if (!nested::decodes_to_finite(codes, scales, offset)) finite = false;
  });
  if (!finite)
    throw Error(Errc::bad_input,
                "the weights are so close to the largest fp32 value that double quantization would turn them into "
                "infinities");
  std::ranges::copy(nested::codebook, out.nested_codebook().begin());
  out.nested_offset() = offset;
}

std::uint64_t quantize(const nibble_array& weights, DType dtype, const Weight& out, std::uint32_t threads) {
  const std::size_t size = traits(dtype).bits / 8;
  std::vector<float> room(out.nested() ? out.blocks() : 0);
  const std::span<float> absmax = out.nested() ? std::span(room) : out.absmax();
  std::atomic<std::uint64_t> nonfinite = 0;
  for_each_piece(out.size(), piece_weights, threads, [&](std::uint64_t first, std::uint64_t n) {
    const auto source = elements<const std::byte>(weights).subspan(first * size, n * size);
    nonfinite += encode_four_bit(out.tables(), dtype, source, out.blocksize(), out.packed(first, n),
                                 absmax.subspan(first / out.blocksize(), ceil_div(n, out.blocksize())));
  });
  if (out.nested()) quantize_absmax(absmax, out, threads);
  return nonfinite;
}

// The absmax of n blocks from `first` on; `room` may take them.
std::span<const float> absmax_of(const Weight& in, std::uint64_t first, std::size_t n, std::span<float> room) {
  if (!in.nested()) return in.absmax().subspan(first, n);
  nested::decode_slice(first, in.absmax_codes(), in.nested_absmax(), in.nested_codebook(), in.nested_offset(),
                       room.first(n));
  return room.first(n);
}

void dequantize(const Weight& in, const nibble_array& weights, DType dtype, std::uint32_t threads) {
  std::uint64_t step = 1024 * in.blocksize();  // weights whose absmax is decoded at a time
  step = std::min(step, piece_weights);
  for_each_piece(in.size(), piece_weights, threads, [&](std::uint64_t begin, std::uint64_t size) {
    std::array<float, 1024> room;
    for (std::uint64_t first = begin; first < begin + size; first += step) {
      const std::uint64_t n = std::min(step, begin + size - first);
      const auto absmax = absmax_of(in, first / in.blocksize(), ceil_div(n, in.blocksize()), room);
      if (dtype == DType::f32)
        decode_four_bit(in.tables(), in.packed(first, n), absmax, in.blocksize(),
                        elements<float>(weights).subspan(first, n));
      else
        decode_four_bit(in.tables(), in.packed(first, n), absmax, in.blocksize(), dtype,
                        elements<std::uint16_t>(weights).subspan(first, n));
    }
  });
}

}  // namespace
}  // namespace nibble::c_api

int nibble_cpu_quantize_4bit(nibble_array weights, int32_t dtype, const nibble_cpu_four_bit* out, uint32_t threads,
                             uint64_t* nonfinite_blocks) {
  using namespace nibble;
  return c_api::guarded([&] {
    const c_api::Weight weight(out);
    const DType source = c_api::dtype_of(dtype);
    c_api::check_array(weights, Checked(weight.size()) * (traits(source).bits / 8), 1, "weights");
    const std::uint64_t nonfinite = c_api::quantize(weights, source, weight, threads);
    if (nonfinite_blocks != nullptr) *nonfinite_blocks = nonfinite;
  });
}

int nibble_cpu_dequantize_4bit(const nibble_cpu_four_bit* in, nibble_array weights, int32_t dtype, uint32_t threads) {
  using namespace nibble;
  return c_api::guarded([&] {
    const c_api::Weight weight(in);
    const DType target = c_api::dtype_of(dtype);
    const std::size_t size = traits(target).bits / 8;
    c_api::check_array(weights, Checked(weight.size()) * size, size, "weights");
    advise_huge_pages(c_api::elements<std::byte>(weights));
    c_api::dequantize(weight, weights, target, threads);
  });
}
