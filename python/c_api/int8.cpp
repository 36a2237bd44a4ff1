// Rows of 8-bit codes of arrays in memory, on all threads.

#include "nibble/int8.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

#include "core/memory/huge_page_advice.hpp"
#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "python/c_api/arrays.hpp"
#include "python/c_api/result.hpp"

namespace nibble::c_api {
namespace {

constexpr std::uint64_t piece_weights = 1 << 18;

void check(const nibble_cpu_int8* weight) {
  require(weight, "the int8 weight");
  require_struct(*weight, "nibble_cpu_int8");
  check_array(weight->codes, Checked(weight->rows) * weight->columns, 1, "codes");
  check_array(weight->absmax, Checked(weight->rows) * sizeof(float), alignof(float), "absmax");
}

std::uint64_t quantize(const nibble_array& weights, DType dtype, const nibble_cpu_int8& out, std::uint32_t threads) {
  const std::uint64_t row_bytes = out.columns * (traits(dtype).bits / 8);
  const auto source = elements<const std::byte>(weights);
  const auto codes = elements<std::int8_t>(out.codes);
  const auto absmax = elements<float>(out.absmax);
  const std::uint64_t rows_per_piece =
      std::max<std::uint64_t>(1, piece_weights / std::max<std::uint64_t>(1, out.columns));
  std::atomic<std::uint64_t> nonfinite = 0;
  for_each_piece(out.rows, rows_per_piece, threads, [&](std::uint64_t first, std::uint64_t n) {
    for (std::uint64_t row = first; row < first + n; ++row) {
      const auto of_row = source.subspan(row * row_bytes, row_bytes);
      bool plain = true;
      absmax[row] = int8::row_absmax(dtype, of_row, plain);
      int8::encode_row(dtype, of_row, absmax[row], plain, codes.subspan(row * out.columns, out.columns));
      if (!plain) ++nonfinite;
    }
  });
  return nonfinite;
}

void dequantize(const nibble_cpu_int8& in, const nibble_array& weights, DType dtype, std::uint32_t threads) {
  const std::uint64_t size = in.rows * in.columns;
  if (size == 0) return;
  const auto absmax = std::as_bytes(elements<const float>(in.absmax));
  const auto codec = make_codec(CodecSpec("int8"));
  const auto decoder = codec->decoder({"", dtype, {in.rows, in.columns}}, std::array{absmax});
  const auto codes = elements<const std::byte>(in.codes);
  const auto out = elements<std::byte>(weights);
  const std::size_t element = traits(dtype).bits / 8;
  for_each_piece(size, piece_weights, threads, [&](std::uint64_t first, std::uint64_t n) {
    decoder->decode(first, codes.subspan(first, n), dtype, out.subspan(first * element, n * element));
  });
}

}  // namespace
}  // namespace nibble::c_api

int nibble_cpu_quantize_int8(nibble_array weights, int32_t dtype, const nibble_cpu_int8* out, uint32_t threads,
                             uint64_t* nonfinite_rows) {
  using namespace nibble;
  return c_api::guarded([&] {
    c_api::check(out);
    const DType source = c_api::dtype_of(dtype);
    c_api::check_array(weights, Checked(out->rows) * out->columns * (traits(source).bits / 8), 1, "weights");
    const std::uint64_t nonfinite = c_api::quantize(weights, source, *out, threads);
    if (nonfinite_rows != nullptr) *nonfinite_rows = nonfinite;
  });
}

int nibble_cpu_dequantize_int8(const nibble_cpu_int8* in, nibble_array weights, int32_t dtype, uint32_t threads) {
  using namespace nibble;
  return c_api::guarded([&] {
    c_api::check(in);
    const DType target = c_api::dtype_of(dtype);
    const std::size_t size = traits(target).bits / 8;
    c_api::check_array(weights, Checked(in->rows) * in->columns * size, size, "weights");
    advise_huge_pages(c_api::elements<std::byte>(weights));
    c_api::dequantize(*in, weights, target, threads);
  });
}
