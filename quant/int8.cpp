#include "nibble/int8.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "nibble/error.hpp"
#include "nibble/fp16.hpp"
#include "quant/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/int8.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/magnitude-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::int8::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// max |w| as bits.
std::int32_t largest_of_row(const float* HWY_RESTRICT w, std::size_t n) {
  const hn::ScalableTag<float> d;
  const std::size_t whole = n - n % hn::Lanes(d);
  std::int32_t largest = nibble::HWY_NAMESPACE::largest_magnitude(d, w, whole);
  for (std::size_t i = whole; i < n; ++i) largest = std::max(largest, std::bit_cast<std::int32_t>(w[i]) & 0x7FFFFFFF);
  return largest;
}

// Weights that fp16 can hold, times scale; the products are at most 127 and a rounding.
void quantize_row(const float* HWY_RESTRICT w, std::size_t n, float scale, std::int8_t* HWY_RESTRICT codes) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const auto half = hn::Set(d, 0.5f);
  const auto factor = hn::Set(d, scale);
  const auto rounder = hn::Set(d, 12582912.0f);  // 1.5 * 2^23 has an ulp of 1: adding it rounds, halves to even
  const auto step = [&](const float* from) HWY_ATTR {
    const auto weight = hn::LoadU(d, from);
    const auto magnitude = hn::Abs(weight);
    // To fp16, as fp32: 10 mantissa bits, and below 2^-14 multiples of 2^-24, the ulp of 0.5.
    const auto bits = hn::BitCast(di, magnitude);
    const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(di, 1));
    const auto up = hn::Add(hn::Add(bits, hn::Set(di, 0xFFF)), odd);
    const auto normal = hn::BitCast(d, hn::And(up, hn::Set(di, ~0x1FFF)));
    const auto tiny = hn::Sub(hn::Add(magnitude, half), half);
    const auto rounded = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, fp16::smallest_normal)), tiny, normal);
    const auto product = hn::Mul(hn::CopySign(rounded, weight), factor);
    const auto code = hn::Sub(hn::BitCast(di, hn::Add(product, rounder)), hn::BitCast(di, rounder));
    return hn::DemoteTo(d8, code);
  };
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(step(w + i), d8, codes + i);
  if (i < n) {
    HWY_ALIGN float last[hn::MaxLanes(d)] = {};
    HWY_ALIGN std::int8_t result[hn::MaxLanes(d)];
    std::copy(w + i, w + n, last);
    hn::StoreU(step(last), d8, result);
    std::copy_n(result, n - i, codes + i);
  }
}

}  // namespace nibble::int8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace int8 {

HWY_EXPORT(largest_of_row);
HWY_EXPORT(quantize_row);

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

}  // namespace

float row_absmax(std::span<const float> weights, bool& plain) noexcept {
  const float largest = std::bit_cast<float>(HWY_DYNAMIC_DISPATCH(largest_of_row)(weights.data(), weights.size()));
  // Rounding keeps the order, so the largest of the rounded weights is the largest weight, rounded.
  if (largest < fp16::smallest_overflow) return fp16::to_float(fp16::from_float(largest));
  plain = false;
  float absmax = 0;
  for (const float weight : weights)
    if (std::isfinite(weight)) absmax = std::max(absmax, std::abs(repaired(weight, 0)));
  return fp16::to_float(fp16::from_float(absmax));
}

void encode_row(std::span<const float> weights, float absmax, bool plain, std::span<std::int8_t> codes) {
  check_same_size(weights.size(), codes.size());
  const float scale = absmax == 0.0f ? 0.0f : 1.0f / absmax * 127.0f;
  const auto quantize_row_here = HWY_DYNAMIC_DISPATCH(quantize_row);
  if (plain) return quantize_row_here(weights.data(), weights.size(), scale, codes.data());
  std::array<float, tile_weights> tile;
  for (std::size_t i = 0; i < weights.size(); i += tile.size()) {
    const auto part = weights.subspan(i, std::min(tile.size(), weights.size() - i));
    std::transform(part.begin(), part.end(), tile.begin(), [&](float weight) { return repaired(weight, absmax); });
    quantize_row_here(tile.data(), part.size(), scale, &codes[i]);
  }
}

float encode_row(std::span<const float> weights, std::span<std::int8_t> codes) {
  bool plain = true;
  const float absmax = row_absmax(weights, plain);
  encode_row(weights, absmax, plain, codes);
  return absmax;
}

void decode_row(std::span<const std::int8_t> codes, float absmax, std::span<float> weights) {
  check_same_size(weights.size(), codes.size());
  // Plain pointers: a span that checks every index is not vectorized.
  const std::int8_t* HWY_RESTRICT const in = codes.data();
  float* HWY_RESTRICT const out = weights.data();
  for (std::size_t i = 0; i < codes.size(); ++i) out[i] = static_cast<float>(in[i]) * absmax * inverse_127;
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
  Int8Encoder(const TensorInfo& tensor, bool scanned)
      : source_(tensor.dtype), columns_(tensor.shape[1]), scanned_(scanned), rows_(tensor.shape[0]) {}

  void scan(std::uint64_t first, std::span<const std::byte> weights) override {
    const std::size_t size = traits(source_).bits / 8;
    for_each_row(columns_, first, weights.size() / size, [&](std::size_t row, std::size_t begin, std::size_t end) {
      look_at(row, weights.subspan(begin * size, (end - begin) * size));
    });
  }

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out) override {
    if (!scanned_) scan(first, weights);
    const std::size_t size = traits(source_).bits / 8;
    Findings findings;
    for_each_row(columns_, first, weights.size() / size, [&](std::size_t row, std::size_t begin, std::size_t end) {
      const auto bytes = weights.subspan(begin * size, (end - begin) * size);
      const float absmax = std::bit_cast<float>(rows_[row].absmax_bits.load(std::memory_order_relaxed));
      const bool plain = rows_[row].plain.load(std::memory_order_relaxed);
      if (!plain) findings.add(count_nonfinite(source_, bytes, first + begin, fp16::smallest_overflow));
      for_each_tile(source_, bytes, [&](std::size_t i, std::span<const float> tile) {
        auto* const codes = reinterpret_cast<std::int8_t*>(out.data() + begin + i);
        int8::encode_row(tile, absmax, plain, {codes, tile.size()});
      });
    });
    return findings;
  }

  std::vector<std::vector<std::byte>> finish() override {
    std::vector<std::byte> scb(rows_.size() * sizeof(float));
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const std::uint32_t bits = rows_[row].absmax_bits.load(std::memory_order_relaxed);
      std::memcpy(&scb[row * sizeof(bits)], &bits, sizeof(bits));
    }
    std::vector<std::vector<std::byte>> rest;  // moved in: a braced list would copy them
    rest.push_back(std::move(scb));
    rest.push_back({std::byte{0}});
    return rest;
  }

 private:
  // Chunks of one row may be looked at concurrently; the bits of magnitudes order as the magnitudes do.
  struct Row {
    std::atomic<std::uint32_t> absmax_bits{0};
    std::atomic<bool> plain{true};
  };

  void look_at(std::size_t row, std::span<const std::byte> bytes) {
    float absmax = 0;
    bool plain = true;
    for_each_tile(source_, bytes, [&](std::size_t, std::span<const float> tile) {
      absmax = std::max(absmax, int8::row_absmax(tile, plain));
    });
    if (!plain) rows_[row].plain.store(false, std::memory_order_relaxed);
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(absmax);
    std::uint32_t seen = rows_[row].absmax_bits.load(std::memory_order_relaxed);
    while (seen < bits && !rows_[row].absmax_bits.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }

  DType source_;
  std::uint64_t columns_;
  bool scanned_;
  std::vector<Row> rows_;
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
  std::string_view name() const noexcept override { return "int8"; }
  std::string_view summary() const noexcept override {
    return "8-bit integers with an absmax per row (LLM.int8()), as bitsandbytes stores them";
  }
  // Per row what scan() and encode() keep, and its SCB.
  std::uint64_t encoder_bytes(const TensorInfo& tensor) const override { return 12 * tensor.shape.at(0); }

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
    if (columns > limit) return {limit, true};
    return {limit - limit % columns, false};
  }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking& chunking) const override {
    return std::make_unique<Int8Encoder>(tensor, chunking.scan);
  }

  std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                   std::span<const std::span<const std::byte>> rest) const override {
    if (rest.empty() || rest[0].size() / sizeof(float) != tensor.shape[0] || rest[0].size() % sizeof(float) != 0)
      throw Error(Errc::bad_input, "tensor '" + printable(tensor.name) + "': SCB has " +
                                       std::to_string(rest.empty() ? 0 : rest[0].size()) +
                                       " bytes, not 4 for each of " + std::to_string(tensor.shape[0]) + " rows");
    return std::make_unique<Int8Decoder>(tensor.shape[1], rest[0]);
  }

  std::optional<BnbConfig> bnb_config() const override { return BnbConfig{8, "fp4", false}; }
};

}  // namespace

std::unique_ptr<const Codec> make_int8(const CodecOptions&) { return std::make_unique<Int8>(); }

}  // namespace nibble
#endif
