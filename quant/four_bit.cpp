#include "quant/four_bit.hpp"

#include <algorithm>
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

template <class T> std::vector<std::byte> bytes_of(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

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
                 const TensorInfo& tensor)
      : tables_(tables),
        codec_(codec),
        blocksize_(blocksize),
        nested_(nested),
        tensor_(tensor),
        absmax_(ceil_div(tensor.elements(), blocksize)) {}

  Findings encode(std::uint64_t first, std::span<const std::byte> weights, std::span<std::byte> out) override {
    const std::span<std::uint8_t> packed(reinterpret_cast<std::uint8_t*>(out.data()), out.size());
    const std::span<float> absmax = std::span(absmax_).subspan(first / blocksize_);
    const std::size_t size = traits(tensor_.dtype).bits / 8;
    Findings findings;
    for_each_tile(tensor_.dtype, weights, [&](std::size_t i, std::span<const float> tile) {
      const auto codes = packed.subspan(i / 2, ceil_div(tile.size(), 2));
      const auto scales = absmax.subspan(i / blocksize_, ceil_div(tile.size(), blocksize_));
      if (encode_four_bit(tables_, tile, blocksize_, codes, scales) != 0)
        findings.add(count_nonfinite(tensor_.dtype, weights.subspan(i * size, tile.size() * size), first + i));
    });
    return findings;
  }

  std::vector<std::vector<std::byte>> finish() override {
    std::vector<std::vector<std::byte>> parts;
    std::string offset_text;
    if (nested_) {
      const float offset = nested::offset(absmax_);
      std::vector<std::uint8_t> codes(absmax_.size());
      std::vector<float> nested_absmax(ceil_div(absmax_.size(), nested::blocksize));
      nested::encode(absmax_, offset, codes, nested_absmax);
      offset_text = python_repr(offset);
      parts.push_back(bytes_of<std::uint8_t>(codes));
      parts.push_back(bytes_of<float>(tables_.codebook));
      parts.push_back(bytes_of<float>(nested_absmax));
      parts.push_back(bytes_of<float>(nested::codebook));
    } else {
      parts.push_back(bytes_of<float>(absmax_));
      parts.push_back(bytes_of<float>(tables_.codebook));
    }
    std::string state = quant_state(codec_, blocksize_, tensor_, nested_ ? &offset_text : nullptr);
    state.resize(quant_state_size(codec_, blocksize_, tensor_, nested_), ' ');
    parts.push_back(bytes_of<char>(state));
    return parts;
  }

 private:
  const FourBitTables& tables_;
  std::string_view codec_;
  std::size_t blocksize_;
  bool nested_;
  TensorInfo tensor_;
  std::vector<float> absmax_;  // of the whole tensor: 4 / blocksize bytes per weight
};

class FourBitDecoder final : public Decoder {
 public:
  FourBitDecoder(const FourBitTables& tables, std::size_t blocksize, std::vector<float> absmax)
      : tables_(tables), blocksize_(blocksize), absmax_(std::move(absmax)) {}

  void decode(std::uint64_t first, std::span<const std::byte> in, std::span<float> out) const override {
    const std::span<const std::uint8_t> packed(reinterpret_cast<const std::uint8_t*>(in.data()), in.size());
    const auto absmax = std::span(absmax_).subspan(first / blocksize_, ceil_div(out.size(), blocksize_));
    decode_four_bit(tables_, packed, absmax, blocksize_, out);
  }

 private:
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

  // The fp32 absmax of every block, and what finish() makes of them.
  std::uint64_t encoder_bytes(const TensorInfo& tensor) const override {
    constexpr std::uint64_t small_parts = 4096;
    return 8 * ceil_div(tensor.elements(), blocksize_) + small_parts;
  }

  std::unique_ptr<Encoder> encoder(const TensorInfo& tensor, const Chunking&) const override {
    return std::make_unique<FourBitEncoder>(tables_, name_, blocksize_, nested_, tensor);
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

std::unique_ptr<const Codec> make_four_bit(std::string_view name, std::string_view summary, const FourBitTables& tables,
                                           const CodecOptions& options) {
  return std::make_unique<FourBitCodec>(name, summary, tables, options);
}

}  // namespace nibble
