// LLM.int8's rows: the loops, what is done about weights that they cannot take, and how codes and SCB lie in a
// checkpoint. One file, because it is one codec.

#include "nibble/int8.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numbers>
#include <string>
#include <type_traits>

#include "nibble/checkpoint.hpp"
#include "nibble/device.hpp"
#include "nibble/error.hpp"
#include "nibble/fp16.hpp"
#include "nibble/metrics.hpp"
#include "quant/simd/squares.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/codecs/int8.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/source-inl.hpp"
#include "quant/simd/squares-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::int8::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using nibble::HWY_NAMESPACE::Bf16;
using nibble::HWY_NAMESPACE::F16;
using nibble::HWY_NAMESPACE::F32;
using nibble::HWY_NAMESPACE::SquareSums;

// max |w|; NaN or infinity if there is one.
template <class Source> HWY_INLINE float largest_of_row(const std::byte* HWY_RESTRICT w, std::size_t n) {
  constexpr std::size_t step = 32;  // what Source::absmax() takes
  const std::size_t whole = n - n % step;
  HWY_ALIGN std::byte last[step * Source::size] = {};
  if (n > whole) std::memcpy(last, w + whole * Source::size, (n - whole) * Source::size);  // of nothing, w may be null
  // As bits, which order as the magnitudes do and keep NaN.
  const auto bits = [](float value) { return std::bit_cast<std::int32_t>(value); };
  return std::bit_cast<float>(std::max(bits(Source::absmax(w, whole)), bits(Source::absmax(last, step))));
}

// To fp16 and back, for magnitudes that it can hold.
template <class D, class V> HWY_INLINE V through_fp16(D d, V weight) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const hn::Rebind<hwy::float16_t, D> df16;
  return hn::PromoteTo(d, hn::DemoteTo(df16, weight));
#else
  // 10 mantissa bits, and below 2^-14 multiples of 2^-24, the ulp of 0.5.
  const hn::RebindToSigned<D> di;
  const auto half = hn::Set(d, 0.5f);
  const auto magnitude = hn::Abs(weight);
  const auto bits = hn::BitCast(di, magnitude);
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(di, 1));
  const auto up = hn::Add(hn::Add(bits, hn::Set(di, 0xFFF)), odd);
  const auto normal = hn::BitCast(d, hn::And(up, hn::Set(di, ~0x1FFF)));
  const auto tiny = hn::Sub(hn::Add(magnitude, half), half);
  const auto rounded = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, fp16::smallest_normal)), tiny, normal);
  return hn::CopySign(rounded, weight);
#endif
}

// Weights that fp16 can hold, times scale; the products are at most 127 and a rounding.
template <class Source>
HWY_INLINE void quantize_row(const std::byte* HWY_RESTRICT w, std::size_t n, float scale,
                             std::int8_t* HWY_RESTRICT codes) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const auto factor = hn::Set(d, scale);
  const auto rounder = hn::Set(d, 12582912.0f);  // 1.5 * 2^23 has an ulp of 1: adding it rounds, halves to even
  const auto step = [&](const std::byte* from, std::size_t i) HWY_ATTR {
    const auto weight = Source::load(d, from, i);
    const auto product = hn::Mul(std::is_same_v<Source, F16> ? weight : through_fp16(d, weight), factor);
    const auto code = hn::Sub(hn::BitCast(di, hn::Add(product, rounder)), hn::BitCast(di, rounder));
    return hn::DemoteTo(d8, code);
  };
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(step(w, i), d8, codes + i);
  if (i < n) {
    HWY_ALIGN std::byte last[hn::MaxLanes(d) * Source::size] = {};
    HWY_ALIGN std::int8_t result[hn::MaxLanes(d)];
    std::memcpy(last, w + i * Source::size, (n - i) * Source::size);
    hn::StoreU(step(last, 0), d8, result);
    std::copy_n(result, n - i, codes + i);
  }
}

// As the formula has it: two products, each rounded.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V decode(D d, const std::int8_t* HWY_RESTRICT codes, V scale, V unit) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::int8_t, D> d8;
  return hn::Mul(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes))), scale), unit);
}

void dequantize_row(const std::int8_t* HWY_RESTRICT codes, std::size_t n, float absmax, float* HWY_RESTRICT weights) {
  const hn::CappedTag<float, 16> d;
  const auto scale = hn::Set(d, absmax), unit = hn::Set(d, inverse_127);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(decode(d, codes + i, scale, unit), d, weights + i);
  for (; i < n; ++i) weights[i] = static_cast<float>(codes[i]) * absmax * inverse_127;
}

// The squares of n weights and of what their codes are decoded to. They are those of rows that follow each other, the
// first of which has `left` weights to come. The end of a row is padded with zeros to squares_step weights: rows that
// are shorter would waste time and accuracy.
template <class Source>
HWY_INLINE void compare_rows(const std::byte* HWY_RESTRICT w, const std::int8_t* HWY_RESTRICT codes, std::size_t n,
                             std::size_t columns, std::size_t left, const float* HWY_RESTRICT absmax,
                             Squares& HWY_RESTRICT squares) {
  const nibble::HWY_NAMESPACE::D d;
  const auto unit = hn::Set(d, inverse_127);
  SquareSums sums;
  for (std::size_t begin = 0, end = left; begin < n; begin = end, end = begin + columns, ++absmax) {
    end = std::min(end, n);
    const auto scale = hn::Set(d, *absmax);
    const auto add = [&](const std::byte* weights, const std::int8_t* its_codes) HWY_ATTR {
      sums.add([&](std::size_t i) HWY_ATTR { return Source::load(d, weights, i); },
               [&](std::size_t i) HWY_ATTR { return decode(d, its_codes + i, scale, unit); });
    };
    std::size_t i = begin;
    for (; i + squares_step <= end; i += squares_step) add(w + i * Source::size, codes + i);
    if (i < end) {
      HWY_ALIGN std::byte last[squares_step * Source::size] = {};
      HWY_ALIGN std::int8_t last_codes[squares_step] = {};
      std::memcpy(last, w + i * Source::size, (end - i) * Source::size);
      std::copy_n(codes + i, end - i, last_codes);
      add(last, last_codes);
    }
  }
  sums.end(squares);
}

#define NIBBLE_INT8_OF(name, Source)                                                                                   \
  float largest_of_row_##name(const std::byte* HWY_RESTRICT w, std::size_t n) { return largest_of_row<Source>(w, n); } \
  void quantize_row_##name(const std::byte* HWY_RESTRICT w, std::size_t n, float scale,                                \
                           std::int8_t* HWY_RESTRICT codes) {                                                          \
    quantize_row<Source>(w, n, scale, codes);                                                                          \
  }                                                                                                                    \
  void compare_rows_##name(const std::byte* HWY_RESTRICT w, const std::int8_t* HWY_RESTRICT codes, std::size_t n,      \
                           std::size_t columns, std::size_t left, const float* HWY_RESTRICT absmax,                    \
                           Squares& HWY_RESTRICT squares) {                                                            \
    compare_rows<Source>(w, codes, n, columns, left, absmax, squares);                                                 \
  }
NIBBLE_INT8_OF(f32, F32)
NIBBLE_INT8_OF(bf16, Bf16)
NIBBLE_INT8_OF(f16, F16)
#undef NIBBLE_INT8_OF

}  // namespace nibble::int8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace int8 {

HWY_EXPORT(largest_of_row_f32);
HWY_EXPORT(largest_of_row_bf16);
HWY_EXPORT(largest_of_row_f16);
HWY_EXPORT(quantize_row_f32);
HWY_EXPORT(quantize_row_bf16);
HWY_EXPORT(quantize_row_f16);
HWY_EXPORT(compare_rows_f32);
HWY_EXPORT(compare_rows_bf16);
HWY_EXPORT(compare_rows_f16);
HWY_EXPORT(dequantize_row);

namespace {

void check_same_size(std::size_t weights, std::size_t codes) {
  if (weights != codes)
    throw Error(Errc::usage,
                "int8: " + std::to_string(weights) + " weights do not fit " + std::to_string(codes) + " codes");
}

// The finite weight that takes the place of a weight, in a row of this absmax.
float repaired(float weight, float absmax) {
  if (std::isnan(weight)) return 0.0f;
  const float limit = std::isinf(weight) ? absmax : fp16::largest;
  return std::clamp(weight, -limit, limit);
}

// The loops for a source type; F64 is widened before.
struct Loops {
  float (*largest)(const std::byte* weights, std::size_t n);
  void (*quantize)(const std::byte* weights, std::size_t n, float scale, std::int8_t* codes);
  void (*compare)(const std::byte* weights, const std::int8_t* codes, std::size_t n, std::size_t columns,
                  std::size_t left, const float* absmax, Squares& squares);
};
#define NIBBLE_INT8_LOOPS(name)                                                             \
  Loops {                                                                                   \
    HWY_DYNAMIC_DISPATCH(largest_of_row_##name), HWY_DYNAMIC_DISPATCH(quantize_row_##name), \
        HWY_DYNAMIC_DISPATCH(compare_rows_##name)                                           \
  }
Loops loops_of(DType source) {
  return loop_of(source, NIBBLE_INT8_LOOPS(f32), NIBBLE_INT8_LOOPS(bf16), NIBBLE_INT8_LOOPS(f16));
}
#undef NIBBLE_INT8_LOOPS

float scale_of(float absmax) { return absmax == 0.0f ? 0.0f : 1.0f / absmax * 127.0f; }

}  // namespace

float row_absmax(DType source, std::span<const std::byte> weights, bool& plain) {
  const std::size_t n = weights.size() / (traits(source).bits / 8);
  if (source != DType::f64) {
    const float largest = loops_of(source).largest(weights.data(), n);
    // Rounding keeps the order, so the largest of the rounded weights is the largest weight, rounded.
    if (largest < fp16::smallest_overflow) return fp16::to_float(fp16::from_float(largest));
  }
  float absmax = 0;
  for_each_tile(source, weights, [&](std::size_t, std::span<const float> tile) {
    for (const float weight : tile) {
      plain = plain && std::abs(weight) < fp16::smallest_overflow;
      if (std::isfinite(weight)) absmax = std::max(absmax, std::abs(repaired(weight, 0)));
    }
  });
  return fp16::to_float(fp16::from_float(absmax));
}

void encode_row(DType source, std::span<const std::byte> weights, float absmax, bool plain,
                std::span<std::int8_t> codes) {
  const float scale = scale_of(absmax);
  if (plain && source != DType::f64)
    return loops_of(source).quantize(weights.data(), codes.size(), scale, codes.data());
  std::array<float, tile_weights> finite;
  for_each_tile(source, weights, [&](std::size_t i, std::span<const float> tile) {
    std::transform(tile.begin(), tile.end(), finite.begin(), [&](float weight) { return repaired(weight, absmax); });
    loops_of(DType::f32).quantize(std::as_bytes(std::span(finite)).data(), tile.size(), scale, codes.data() + i);
  });
}

float encode_row(std::span<const float> weights, std::span<std::int8_t> codes) {
  check_same_size(weights.size(), codes.size());
  bool plain = true;
  const auto bytes = std::as_bytes(weights);
  const float absmax = row_absmax(DType::f32, bytes, plain);
  encode_row(DType::f32, bytes, absmax, plain, codes);
  return absmax;
}

void decode_row(std::span<const std::int8_t> codes, float absmax, std::span<float> weights) {
  check_same_size(weights.size(), codes.size());
  HWY_DYNAMIC_DISPATCH(dequantize_row)(codes.data(), codes.size(), absmax, weights.data());
}

}  // namespace int8

namespace {

// Calls f(row, begin, end) for the rows that weights [first, first + n) touch, with offsets from `first`.
template <class F> void for_each_row(std::uint64_t columns, std::uint64_t first, std::size_t n, F&& f) {
  for (std::size_t begin = 0; begin < n;) {
    const std::uint64_t at = first + begin;
    const std::size_t end =
        begin + static_cast<std::size_t>(std::min<std::uint64_t>(columns - at % columns, n - begin));
    f(static_cast<std::size_t>(at / columns), begin, end);
    begin = end;
  }
}

class Int8Encoder final : public Encoder {
 public:
  Int8Encoder(Device* device, const TensorInfo& tensor, bool scanned, Scratch& scratch)
      : source_(tensor.dtype),
        size_(traits(tensor.dtype).bits / 8),
        columns_(tensor.shape[1]),
        row_count_(tensor.shape[0]),
        scanned_(scanned),
        scanned_rows_(scanned ? tensor.shape[0] : 0),
        device_(device),
        scratch_(scratch) {}

  void scan(std::uint64_t first, std::span<const std::byte> weights) override {
    for_each_row(columns_, first, weights.size() / size_, [&](std::size_t row, std::size_t begin, std::size_t end) {
      bool plain = true;
      const float absmax = int8::row_absmax(source_, weights.subspan(begin * size_, (end - begin) * size_), plain);
      scanned_rows_[row].add(absmax, plain);
    });
  }

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out,
                  std::vector<ErrorSums>* errors) override {
    Findings findings;
    if (encode_on_device(first, weights, out, errors)) return findings;
    Rows rows;
    // Piece by piece, so that weights are still in a cache when they are read again.
    for_each_piece(first, weights, out, [&](std::uint64_t at, auto piece, auto codes) {
      if (scanned_)
        recall(at, codes.size(), rows);
      else if (at % columns_ == 0)
        look_at(at, weights.subspan((at - first) * size_, std::max(codes.size(), columns_) * size_), rows);
      findings.add(encode_piece(at, piece, rows, codes));
      if (errors != nullptr) errors->push_back(error_of_piece(at, piece, rows.absmax, codes));
    });
    return findings;
  }

  EncodingError late_error() const override { return late_; }

  void finish(PartSink& sink) override {
    for (std::size_t row = 0; row < scanned_rows_.size(); ++row) {
      const float absmax = scanned_rows_[row].absmax();
      store(row, {&absmax, 1});
    }
    std::vector<std::byte> piece(std::min<std::uint64_t>(scb_bytes(), 1 << 18));
    for (std::uint64_t at = 0; at < scb_bytes(); at += piece.size()) {
      // Without a column no chunk has stored a row: all are zeros.
      const auto part = std::span(piece).first(std::min<std::uint64_t>(scb_bytes() - at, piece.size()));
      if (columns_ != 0) scratch_.read(at, part);
      for (std::size_t i = 0; i < part.size(); i += sizeof(float)) {
        float absmax = 0;
        std::memcpy(&absmax, part.data() + i, sizeof absmax);
        late_.absmax.add(absmax);
      }
      sink.write(1, part);
    }
    const std::byte format{0};
    sink.write(2, {&format, 1});
  }

 private:
  // What is known of the rows that a piece touches.
  struct Rows {
    std::vector<float> absmax;
    bool plain = true;  // fp16 can hold all their weights
  };

  // A row that several chunks have parts of. They may be looked at concurrently.
  struct ScannedRow {
    std::atomic<std::uint32_t> absmax_bits{0};  // which order as the magnitudes do
    std::atomic<bool> plain{true};

    void add(float part_absmax, bool part_plain) {
      if (!part_plain) plain.store(false, std::memory_order_relaxed);
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(part_absmax);
      std::uint32_t seen = absmax_bits.load(std::memory_order_relaxed);
      while (seen < bits && !absmax_bits.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
      }
    }
    [[nodiscard]] float absmax() const { return std::bit_cast<float>(absmax_bits.load(std::memory_order_relaxed)); }
  };

  // Calls f(first, weights, codes) for pieces of whole rows, or of 4096 weights of a longer one: chunks begin where
  // pieces do.
  template <class F>
  void for_each_piece(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out, F&& f) const {
    for (std::size_t begin = 0; begin < out.size();) {
      const std::uint64_t at = first + begin;
      const std::uint64_t left_of_row = columns_ - at % columns_;
      const std::uint64_t piece =
          columns_ <= tile_weights ? left_of_row + (rows_per_piece() - 1 - at / columns_ % rows_per_piece()) * columns_
                                   : std::min<std::uint64_t>(left_of_row, tile_weights - at % tile_weights);
      const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(piece, out.size() - begin));
      f(at, weights.subspan(begin * size_, count * size_),
        std::span(reinterpret_cast<std::int8_t*>(out.data() + begin), count));
      begin += count;
    }
  }

  // Whole rows, which begin at weight `at`.
  void look_at(std::uint64_t at, std::span<const std::byte> weights, Rows& rows) {
    rows.plain = true;
    rows.absmax.clear();
    for (std::size_t begin = 0; begin < weights.size(); begin += columns_ * size_)
      rows.absmax.push_back(int8::row_absmax(source_, weights.subspan(begin, columns_ * size_), rows.plain));
    store(at / columns_, rows.absmax);
  }

  // What scan() has found of the rows of n weights from `at`.
  void recall(std::uint64_t at, std::size_t n, Rows& rows) const {
    rows.plain = true;
    rows.absmax.clear();
    for_each_row(columns_, at, n, [&](std::size_t row, std::size_t, std::size_t) {
      rows.absmax.push_back(scanned_rows_[row].absmax());
      rows.plain = rows.plain && scanned_rows_[row].plain.load(std::memory_order_relaxed);
    });
  }

  Findings encode_piece(std::uint64_t first, std::span<const std::byte> weights, const Rows& rows,
                        std::span<std::int8_t> codes) const {
    for_each_row(columns_, first, codes.size(), [&](std::size_t row, std::size_t begin, std::size_t end) {
      int8::encode_row(source_, weights.subspan(begin * size_, (end - begin) * size_),
                       rows.absmax[row - first / columns_], rows.plain, codes.subspan(begin, end - begin));
    });
    return rows.plain ? Findings() : count_nonfinite(source_, weights, first, fp16::smallest_overflow);
  }

  // From the decoded weights where fp32 cannot hold the sums of a piece, for fp64, and for short rows.
  [[nodiscard]] ErrorSums error_of_piece(std::uint64_t first, std::span<const std::byte> weights,
                                         std::span<const float> absmax, std::span<const std::int8_t> codes) const {
    if (source_ != DType::f64 && columns_ >= squares_step) {
      Squares squares;
      int8::loops_of(source_).compare(weights.data(), codes.data(), codes.size(), columns_, columns_ - first % columns_,
                                      absmax.data(), squares);
      ErrorSums sums;
      add_squares_of_lanes(squares, codes.size(), sums);
      if (are_usable(sums)) return sums;
    }
    alignas(64) std::array<float, tile_weights> tile;
    alignas(64) std::array<float, tile_weights> decoded;
    for_each_row(columns_, first, codes.size(), [&](std::size_t row, std::size_t begin, std::size_t end) {
      int8::decode_row(codes.subspan(begin, end - begin), absmax[row - first / columns_],
                       std::span(decoded).subspan(begin, end - begin));
    });
    return compare_squares(widen(source_, weights, tile), std::span(decoded).first(codes.size()));
  }

  // Whole rows. Where some are not finite, or beyond fp16, what is found in them is found on the CPU.
  bool encode_on_device(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out,
                        std::vector<ErrorSums>* errors) {
    if (device_ == nullptr || scanned_ || out.empty()) return false;
    std::vector<float> absmax(out.size() / columns_);
    if (!device_->encode_int8(source_, weights, {reinterpret_cast<std::int8_t*>(out.data()), out.size()}, absmax))
      return false;
    store(first / columns_, absmax);
    if (errors != nullptr)
      for_each_piece(first, weights, out, [&](std::uint64_t at, auto piece, auto codes) {
        errors->push_back(
            error_of_piece(at, piece, std::span(absmax).subspan(at / columns_ - first / columns_), codes));
      });
    return true;
  }

  void store(std::uint64_t first_row, std::span<const float> absmax) {
    scratch_.write(first_row * sizeof(float), std::as_bytes(absmax));
  }

  [[nodiscard]] std::uint64_t scb_bytes() const { return sizeof(float) * row_count_; }
  [[nodiscard]] std::uint64_t rows_per_piece() const { return tile_weights / columns_; }

  DType source_;
  std::size_t size_;  // of a weight, in bytes
  std::uint64_t columns_;
  std::uint64_t row_count_;
  bool scanned_;
  std::vector<ScannedRow> scanned_rows_;  // where rows are looked at first: longer than a chunk, so few
  Device* device_;
  Scratch& scratch_;  // the SCB, 4 bytes per row
  EncodingError late_;
};

class Int8Decoder final : public Decoder {
 public:
  Int8Decoder(std::uint64_t columns, std::span<const std::byte> scb)
      : columns_(columns), scb_(scb.size() / sizeof(float)) {
    if (!scb.empty()) std::memcpy(scb_.data(), scb.data(), scb.size());
  }

  void decode(std::uint64_t first, std::span<const std::byte> in, std::span<float> out) const override {
    for_each_row(columns_, first, out.size(), [&](std::size_t row, std::size_t begin, std::size_t end) {
      const auto* const codes = reinterpret_cast<const std::int8_t*>(in.data() + begin);
      int8::decode_row({codes, end - begin}, scb_[row], out.subspan(begin, end - begin));
    });
  }

 private:
  std::uint64_t columns_;
  std::vector<float> scb_;
};

class Int8 final : public Codec {
 public:
  explicit Int8(const CodecOptions& options) : device_(options.device) {}
  std::string_view name() const noexcept override { return "int8"; }
  std::string_view summary() const noexcept override {
    return "8-bit integers with an absmax per row (LLM.int8()), as bitsandbytes stores them";
  }
  std::uint64_t scratch_bytes(const TensorInfo& tensor) const override { return sizeof(float) * tensor.shape.at(0); }

  bool accepts(const TensorInfo& tensor) const override {
    return is_weight_type(tensor.dtype) && tensor.shape.size() == 2;
  }

  // bitsandbytes hangs the other tensors on the module, not on its weight.
  std::vector<TensorInfo> parts(const TensorInfo& tensor) const override {
    constexpr std::string_view suffix = ".weight";
    std::string module = tensor.name;
    if (module.ends_with(suffix)) module.resize(module.size() - suffix.size());
    return {{tensor.name, DType::i8, tensor.shape},
            {module + ".SCB", DType::f32, {tensor.shape[0]}},
            {module + ".weight_format", DType::u8, {}}};
  }

  // Whole rows, or parts of rows that are looked at before.
  Chunking chunking(const TensorInfo& tensor, std::uint64_t limit) const override {
    const std::uint64_t columns = std::max<std::uint64_t>(tensor.shape[1], 1);
    limit = std::max<std::uint64_t>(limit, 1);
    if (limit > tile_weights) limit -= limit % tile_weights;  // pieces of errors are not cut
    if (columns > limit) return {limit, true};
    std::uint64_t rows = std::min(limit / columns, max_rows);
    if (const std::uint64_t unit = tile_weights / columns; unit > 0 && rows > unit) rows -= rows % unit;
    return {rows * columns, false};
  }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking& chunking,
                                   Scratch& scratch) const override {
    return std::make_unique<Int8Encoder>(device_, tensor, chunking.scan, scratch);
  }

  std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                   std::span<const std::span<const std::byte>> rest) const override {
    if (rest.empty() || rest[0].size() / sizeof(float) != tensor.shape[0] || rest[0].size() % sizeof(float) != 0)
      throw Error(Errc::bad_input, "tensor '" + printable(tensor.name) + "': SCB has " +
                                       std::to_string(rest.empty() ? 0 : rest[0].size()) +
                                       " bytes, not 4 for each of " + std::to_string(tensor.shape[0]) + " rows");
    if (rest.size() > 1 && !(rest[1].size() == 1 && rest[1][0] == std::byte{0}))
      throw Error(Errc::bad_input, "tensor '" + printable(tensor.name) + "': weight_format is not 0, rows as they are");
    return std::make_unique<Int8Decoder>(tensor.shape[1], rest[0]);
  }

  std::optional<BnbConfig> bnb_config() const override { return BnbConfig{8, "fp4", false}; }

  // A row of n weights with absmax a is rounded to steps of a / 127, but for the largest, which is exact:
  //
  //   sum e^2 / sum w^2 = (1 - 1 / n) E[a^2] / (12 * 127^2)   for weights of variance 1
  //
  // E[a^2] is that of the largest of n squared normal numbers, whose distribution tends to Gumbel's: 2 ln n - ln ln n -
  // ln pi + 2 * 0.5772 (Embrechts, Klueppelberg and Mikosch, "Modelling Extremal Events", 1997, table 3.4.4). The
  // result is 0.04 dB too high at 64 <= n <= 16384 (tests/quant/codecs/int8_test.cpp).
  double normal_sqnr_db(const TensorInfo& tensor) const override {
    if (tensor.shape.size() != 2 || tensor.shape[1] < 16) return Codec::normal_sqnr_db(tensor);
    const auto n = static_cast<double>(tensor.shape[1]);
    const double absmax_square =
        2 * std::log(n) - std::log(std::log(n)) - std::log(std::numbers::pi) + 2 * std::numbers::egamma;
    return 10 * std::log10(12 * 127.0 * 127.0 / (absmax_square * (1 - 1 / n)));
  }

  // weight_format may be missing: old versions of bitsandbytes did not write it.
  std::optional<StoredTensor> recognize(const Reader& in, std::size_t first, const FindTensor& find) const override {
    const TensorInfo codes = in.tensors()[first];
    if (codes.dtype != DType::i8 || codes.shape.size() != 2) return std::nullopt;
    const std::vector<TensorInfo> expected = parts(codes);
    const auto scb = find(expected[1].name);
    if (!scb) return std::nullopt;
    StoredTensor stored{{codes.name, DType::f16, codes.shape}, {}, {first, *scb}};
    if (const auto format = find(expected[2].name)) stored.parts.push_back(*format);
    for (std::size_t i = 2; i < stored.parts.size(); ++i)
      if (in.tensors().bytes(stored.parts[i]) != expected[i].bytes())
        throw Error(Errc::bad_input, "tensor '" + printable(expected[i].name) + "': has " +
                                         std::to_string(in.tensors().bytes(stored.parts[i])) + " bytes, not 1");
    if (in.tensors().dtype(*scb) != DType::f32)
      throw Error(Errc::bad_input, "tensor '" + printable(expected[1].name) + "': type is " +
                                       std::string(traits(in.tensors().dtype(*scb)).name) + ", not F32");
    return stored;
  }

 private:
  // In a chunk: a device returns the absmax of all of its rows at once, 4 bytes each.
  static constexpr std::uint64_t max_rows = 4096;

  Device* device_;
};

}  // namespace

std::unique_ptr<const Codec> make_int8(const CodecOptions& options) { return std::make_unique<Int8>(options); }

}  // namespace nibble
#endif
