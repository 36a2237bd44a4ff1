#include "quant/four_bit.hpp"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nibble/error.hpp"
#include "nibble/nested.hpp"
#include "quant/widen.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0); }

template <class T> std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// A finite number as Python's repr() spells it: the shortest digits that read back the same, without an exponent from
// 1e-04 to 1e16.
std::string python_repr(double value) {
  char text[32];
  const auto scientific = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific);
  const std::string_view written(text, static_cast<std::size_t>(scientific.ptr - text));
  int exponent = 0;
  const char* first = text + written.find('e') + 1;
  if (*first == '+') ++first;
  std::from_chars(first, scientific.ptr, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(written);
  const auto fixed = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed);
  std::string out(text, fixed.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

// The longest text of an fp32 offset, such as -1.1754943508222875e-38 without the sign: a mean of magnitudes.
constexpr std::size_t longest_offset = 22;

std::vector<std::string> part_names(const std::string& name, std::string_view codec, bool nested) {
  std::vector<std::string> names{name, name + ".absmax", name + ".quant_map"};
  if (nested) names.insert(names.end(), {name + ".nested_absmax", name + ".nested_quant_map"});
  names.push_back(name + ".quant_state.bitsandbytes__" + std::string(codec));
  return names;
}

// The JSON text that tells bitsandbytes the rest, as Python's json.dumps() writes it: bitsandbytes refuses other keys.
std::string quant_state(std::string_view codec, std::size_t blocksize, const TensorInfo& tensor,
                        const std::string* nested_offset) {
  const DType dtype = tensor.dtype == DType::f64 ? DType::f32 : tensor.dtype;  // fp64 was rounded to fp32 first
  std::string text = "{\"quant_type\": \"" + std::string(codec) + "\", \"blocksize\": " + std::to_string(blocksize) +
                     ", \"dtype\": \"" + std::string(traits(dtype).torch_name) + "\", \"shape\": [";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  text += "]";
  if (nested_offset != nullptr)
    text += ", \"nested_blocksize\": " + std::to_string(nested::blocksize) +
            ", \"nested_dtype\": \"float32\", \"nested_offset\": " + *nested_offset;
  return text + "}";
}

// Its size must follow from the header alone, so what has an offset in it is padded with spaces to the longest.
std::size_t quant_state_size(std::string_view codec, std::size_t blocksize, const TensorInfo& tensor, bool nested) {
  const std::string longest(longest_offset, '0');
  return quant_state(codec, blocksize, tensor, nested ? &longest : nullptr).size();
}

class FourBitEncoder final : public Encoder {
 public:
  FourBitEncoder(const FourBitTables& tables, std::string_view codec, std::size_t blocksize, bool nested,
                 const TensorInfo& tensor, Scratch& scratch)
      : tables_(tables),
        codec_(codec),
        blocksize_(blocksize),
        nested_(nested),
        tensor_(tensor),
        blocks_(ceil_div(tensor.elements(), blocksize)),
        scratch_(scratch) {}

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out) override {
    const std::span<std::uint8_t> packed(reinterpret_cast<std::uint8_t*>(out.data()), out.size());
    const std::size_t size = traits(tensor_.dtype).bits / 8;
    std::vector<float> kept(ceil_div(weights.size() / size, blocksize_));
    const std::span<float> absmax = kept;
    Findings findings;
    const auto encode_tile = [&](std::size_t i, std::size_t n, auto&&... tile) {
      const auto codes = packed.subspan(i / 2, ceil_div(n, 2));
      const auto scales = absmax.subspan(i / blocksize_, ceil_div(n, blocksize_));
      if (encode_four_bit(tables_, tile..., blocksize_, codes, scales) != 0)
        findings.add(count_nonfinite(tensor_.dtype, weights.subspan(i * size, n * size), first + i));
    };
    if (tensor_.dtype == DType::f64) {
      for_each_tile(tensor_.dtype, weights,
                    [&](std::size_t i, std::span<const float> tile) { encode_tile(i, tile.size(), tile); });
    } else {
      encode_tile(0, weights.size() / size, tensor_.dtype, weights);
    }
    scratch_.write(first / blocksize_ * sizeof(float), std::as_bytes(absmax));
    return findings;
  }

  void finish(PartSink& sink) override {
    std::string offset_text;
    if (nested_) {
      const float offset = mean();
      offset_text = python_repr(offset);
      encode_nested(offset, sink);
      sink.write(4, std::as_bytes(std::span(nested::codebook)));
    } else {
      for_each_piece([&](std::span<const float> absmax) { sink.write(1, std::as_bytes(absmax)); });
    }
    sink.write(2, std::as_bytes(std::span(tables_.codebook)));
    std::string state = quant_state(codec_, blocksize_, tensor_, nested_ ? &offset_text : nullptr);
    state.resize(quant_state_size(codec_, blocksize_, tensor_, nested_), ' ');
    sink.write(nested_ ? 5 : 3, std::as_bytes(std::span(state)));
  }

 private:
  // Absmax values in memory at a time when the tensor is finished: 1 MiB, and work for 16 threads.
  static constexpr std::size_t piece_groups = 16;
  static constexpr std::size_t piece = piece_groups * nested::group;
  static_assert(nested::group % nested::blocksize == 0, "groups begin with a nested block");

  template <class F> void for_each_piece(F&& f) const {
    std::vector<float> absmax(std::min<std::uint64_t>(blocks_, piece));
    for (std::uint64_t first = 0; first < blocks_; first += piece) {
      const auto part = std::span(absmax).first(std::min<std::uint64_t>(blocks_ - first, piece));
      scratch_.read(first * sizeof(float), std::as_writable_bytes(part));
      f(std::span<const float>(part));
    }
  }

  // Calls f(group, its first value, its values) for the groups of a piece, side by side.
  template <class F> static void for_each_group(std::span<const float> absmax, F&& f) {
    const auto call = [&](std::size_t g) {
      const std::size_t first = g * nested::group;
      f(g, first, absmax.subspan(first, std::min(nested::group, absmax.size() - first)));
    };
    const std::size_t groups = ceil_div(absmax.size(), nested::group);
    if (groups == 1) return call(0);
    // Isolated: a thread that waits must not begin a chunk of the pipeline meanwhile.
    tbb::this_task_arena::isolate([&] { tbb::parallel_for(std::size_t{0}, groups, call); });
  }

  // As nested::offset().
  float mean() const {
    double sum = 0;
    for_each_piece([&](std::span<const float> absmax) {
      std::array<double, piece_groups> sums{};
      for_each_group(absmax, [&](std::size_t g, std::size_t, std::span<const float> values) {
        sums[g] = nested::group_sum(values);
      });
      for (std::size_t g = 0; g < ceil_div(absmax.size(), nested::group); ++g) sum += sums[g];
    });
    return blocks_ == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(blocks_));
  }

  void encode_nested(float offset, PartSink& sink) const {
    const std::size_t most = std::min<std::uint64_t>(blocks_, piece);
    std::vector<std::uint8_t> codes(most);
    std::vector<float> nested_absmax(ceil_div(most, nested::blocksize));
    for_each_piece([&](std::span<const float> absmax) {
      for_each_group(absmax, [&](std::size_t, std::size_t first, std::span<const float> values) {
        nested::encode(
            values, offset, std::span(codes).subspan(first, values.size()),
            std::span(nested_absmax).subspan(first / nested::blocksize, ceil_div(values.size(), nested::blocksize)));
      });
      sink.write(1, std::as_bytes(std::span(codes).first(absmax.size())));
      sink.write(3, std::as_bytes(std::span(nested_absmax).first(ceil_div(absmax.size(), nested::blocksize))));
    });
  }

  const FourBitTables& tables_;
  std::string_view codec_;
  std::size_t blocksize_;
  bool nested_;
  TensorInfo tensor_;
  std::uint64_t blocks_;
  Scratch& scratch_;  // the fp32 absmax of the whole tensor: 4 / blocksize bytes per weight
};

class FourBitDecoder final : public Decoder {
 public:
  FourBitDecoder(const FourBitTables& tables, std::size_t blocksize, std::vector<float> absmax)
      : tables_(tables), blocksize_(blocksize), absmax_(std::move(absmax)) {}

  void decode(std::uint64_t first, std::span<const std::byte> in, std::span<float> out) const override {
    decode_four_bit(tables_, packed(in), absmax(first, out.size()), blocksize_, out);
  }

  void decode(std::uint64_t first, std::span<const std::byte> in, DType to, std::span<std::byte> out) const override {
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(out.data()) % alignof(std::uint16_t) == 0;
    if ((to != DType::bf16 && to != DType::f16) || !is_aligned) return Decoder::decode(first, in, to, out);
    const std::span<std::uint16_t> weights(reinterpret_cast<std::uint16_t*>(out.data()), out.size() / 2);
    decode_four_bit(tables_, packed(in), absmax(first, weights.size()), blocksize_, to, weights);
  }

 private:
  static std::span<const std::uint8_t> packed(std::span<const std::byte> in) {
    return {reinterpret_cast<const std::uint8_t*>(in.data()), in.size()};
  }
  [[nodiscard]] std::span<const float> absmax(std::uint64_t first, std::size_t n) const {
    return std::span(absmax_).subspan(first / blocksize_, ceil_div(n, blocksize_));
  }

  const FourBitTables& tables_;
  std::size_t blocksize_;
  std::vector<float> absmax_;
};

class FourBitCodec final : public Codec {
 public:
  FourBitCodec(std::string_view name, std::string_view summary, const FourBitTables& tables,
               const CodecOptions& options)
      : name_(name), summary_(summary), tables_(tables), blocksize_(options.blocksize), nested_(options.double_quant) {}

  std::string_view name() const noexcept override { return name_; }
  std::string_view summary() const noexcept override { return summary_; }

  std::vector<TensorInfo> parts(const TensorInfo& tensor) const override {
    const std::uint64_t n = tensor.elements();
    const std::uint64_t blocks = ceil_div(n, blocksize_);
    const std::vector<std::string> names = part_names(tensor.name, name_, nested_);
    std::vector<TensorInfo> parts{{names[0], DType::u8, {ceil_div(n, 2), 1}},
                                  {names[1], nested_ ? DType::u8 : DType::f32, {blocks}},
                                  {names[2], DType::f32, {tables_.codebook.size()}}};
    if (nested_) {
      parts.push_back({names[3], DType::f32, {ceil_div(blocks, nested::blocksize)}});
      parts.push_back({names[4], DType::f32, {nested::codebook.size()}});
    }
    parts.push_back({names.back(), DType::u8, {quant_state_size(name_, blocksize_, tensor, nested_)}});
    return parts;
  }

  Chunking chunking(const TensorInfo&, std::uint64_t limit) const override {
    return {std::max<std::uint64_t>(limit - limit % blocksize_, blocksize_), false};
  }

  // The fp32 absmax of every block: with double quantization all are needed before the first can be stored.
  std::uint64_t scratch_bytes(const TensorInfo& tensor) const override {
    return sizeof(float) * ceil_div(tensor.elements(), blocksize_);
  }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking&, Scratch& scratch) const override {
    return std::make_unique<FourBitEncoder>(tables_, name_, blocksize_, nested_, tensor, scratch);
  }

  std::unique_ptr<Decoder> decoder(const TensorInfo& tensor,
                                   std::span<const std::span<const std::byte>> rest) const override {
    const std::vector<TensorInfo> expected = parts(tensor);
    if (rest.size() != expected.size() - 1)
      fail(tensor, "has " + std::to_string(rest.size() + 1) + " parts, not " + std::to_string(expected.size()));
    for (std::size_t i = 0; i + 1 < rest.size(); ++i)
      if (rest[i].size() != expected[i + 1].bytes())
        fail(expected[i + 1],
             "has " + std::to_string(rest[i].size()) + " bytes, not " + std::to_string(expected[i + 1].bytes()));
    check_codebook(expected[2], values_of<float>(rest[1]));
    const float offset = check_quant_state(tensor, expected.back(), rest.back());
    if (!nested_) return std::make_unique<FourBitDecoder>(tables_, blocksize_, values_of<float>(rest[0]));

    const auto codes = values_of<std::uint8_t>(rest[0]);
    const auto nested_absmax = values_of<float>(rest[2]);
    const auto codebook = values_of<float>(rest[3]);
    std::vector<float> absmax(codes.size());
    nested::decode(codes, nested_absmax, std::span<const float, 256>(codebook), offset, absmax);
    return std::make_unique<FourBitDecoder>(tables_, blocksize_, std::move(absmax));
  }

  std::optional<BnbConfig> bnb_config() const override { return BnbConfig{4, std::string(name_), nested_}; }

 private:
  [[noreturn]] static void fail(const TensorInfo& tensor, const std::string& fact) {
    throw Error(Errc::bad_input, "tensor '" + printable(tensor.name) + "': " + fact);
  }

  // bitsandbytes decodes with its own tables, whose last bits have changed between versions, and so does this.
  void check_codebook(const TensorInfo& part, std::span<const float> codebook) const {
    for (std::size_t i = 0; i < codebook.size(); ++i)
      if (!(std::abs(codebook[i] - tables_.codebook[i]) <= 1e-4f))
        fail(part, "value " + std::to_string(i) + " is " + std::to_string(codebook[i]) + ", in " + std::string(name_) +
                       " it is " + std::to_string(tables_.codebook[i]));
  }

  // Returns the offset of double quantization.
  float check_quant_state(const TensorInfo& tensor, const TensorInfo& part, std::span<const std::byte> bytes) const {
    const auto* const text = reinterpret_cast<const char*>(bytes.data());
    const auto state = nlohmann::json::parse(text, text + bytes.size(), nullptr, /*allow_exceptions=*/false);
    if (!state.is_object()) fail(part, "is not a JSON object");
    const auto text_of = [](const nlohmann::json& value) {
      return printable(value.is_string() ? value.get<std::string>() : value.dump());
    };
    const auto expect = [&](const char* key, const nlohmann::json& value) {
      const auto found = state.find(key);
      if (found == state.end() || *found != value)
        fail(part, std::string(key) + " is " + (found == state.end() ? "missing" : text_of(*found)) + ", not " +
                       text_of(value));
    };
    expect("quant_type", name_);
    expect("blocksize", blocksize_);
    expect("shape", tensor.shape);
    if (!nested_) return 0;
    expect("nested_blocksize", nested::blocksize);
    const auto offset = state.find("nested_offset");
    if (offset == state.end() || !offset->is_number()) fail(part, "nested_offset is not a number");
    return static_cast<float>(offset->get<double>());
  }

  std::string_view name_, summary_;
  const FourBitTables& tables_;
  std::size_t blocksize_;
  bool nested_;
};

}  // namespace

void check_four_bit_sizes(std::size_t weights, std::size_t blocksize, std::size_t packed, std::size_t absmax) {
  if (!std::has_single_bit(blocksize) || blocksize < 32 || blocksize > 4096)
    throw Error(Errc::usage, "blocksize is " + std::to_string(blocksize) + ", not one of 32, 64, ..., 4096");
  if (packed != weights / 2 + weights % 2 || absmax != weights / blocksize + (weights % blocksize != 0))
    throw Error(Errc::usage, std::to_string(weights) + " weights in blocks of " + std::to_string(blocksize) +
                                 " do not fit " + std::to_string(packed) + " packed bytes and " +
                                 std::to_string(absmax) + " absmax values");
}

std::unique_ptr<const Codec> make_four_bit(std::string_view name, std::string_view summary, const FourBitTables& tables,
                                           const CodecOptions& options) {
  return std::make_unique<FourBitCodec>(name, summary, tables, options);
}

}  // namespace nibble
