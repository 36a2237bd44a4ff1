// How bitsandbytes stores quantized tensors: 4-bit codes with a state in JSON beside them, 8-bit ones with their SCB.
// Both are read by bitsandbytes and by transformers.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/models/weight_name.hpp"
#include "nibble/error.hpp"
#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/codecs/int8_rows.hpp"
#include "quant/schemes/bitsandbytes_config.hpp"
#include "quant/schemes/bitsandbytes_quant_types.hpp"
#include "quant/schemes/scheme.hpp"

namespace nibble {
namespace {

// ---- shared by 4 and 8 bits ----

[[noreturn]] void fail(const TensorInfo& tensor, const std::string& fact) {
  throw Error(Errc::bad_input, "tensor '" + printable(tensor.name) + "': " + fact);
}

std::vector<std::byte> read_part(const Reader& in, std::size_t part) {
  std::vector<std::byte> bytes(in.tensors().bytes(part));
  in.read(part, 0, bytes);
  return bytes;
}

std::vector<std::byte> bytes_of(const void* data, std::size_t size) {
  const auto* const bytes = static_cast<const std::byte*>(data);
  return {bytes, bytes + size};
}

// ---- 4 bits ----

// Null for codecs of another kind, or if bitsandbytes has no name for the codebook.
const FourBitCodec* as_four_bit(const Codec& codec) {
  return quant_type_of(codec).empty() ? nullptr : dynamic_cast<const FourBitCodec*>(&codec);
}

// The codec that has this codebook.
std::string_view codec_name_of(const QuantType& type) {
  const auto names = codec_names();
  const auto found = std::ranges::find_if(names, [&](std::string_view name) {
    const auto codec = make_codec(name);
    return as_four_bit(*codec) != nullptr && quant_type_of(*codec) == type.name;
  });
  if (found == names.end()) throw Error(Errc::internal, "no codec has the codebook " + std::string(type.name));
  return *found;
}

constexpr std::string_view state_infix = ".quant_state.bitsandbytes__";
constexpr std::string_view absmax_suffix = ".absmax";
constexpr std::string_view map_suffix = ".quant_map";
constexpr std::uint64_t max_state_bytes = 1 << 16;
constexpr int max_state_depth = 16;

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
constexpr std::size_t max_offset_chars = 22;

std::string state_name(std::string_view tensor, std::string_view quant_type) {
  return fmt::format("{}{}{}", tensor, state_infix, quant_type);
}

// Everything else that bitsandbytes has to know, as JSON in the form of Python's json.dumps(). bitsandbytes refuses
// other keys.
std::string quant_state(std::string_view quant_type, std::size_t blocksize, const TensorInfo& tensor,
                        const std::string* nested_offset) {
  const DType dtype = tensor.dtype == DType::f64 ? DType::f32 : tensor.dtype;  // fp64 was rounded to fp32 first
  std::string text = "{\"quant_type\": \"" + std::string(quant_type) +
                     "\", \"blocksize\": " + std::to_string(blocksize) + ", \"dtype\": \"" +
                     std::string(traits(dtype).torch_name) + "\", \"shape\": [";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  text += "]";
  if (nested_offset != nullptr)
    text += ", \"nested_blocksize\": " + std::to_string(nested::blocksize) +
            ", \"nested_dtype\": \"float32\", \"nested_offset\": " + *nested_offset;
  return text + "}";
}

// Its size must follow from the header alone, so a text with an offset is padded with spaces to the greatest length.
std::size_t quant_state_size(std::string_view quant_type, std::size_t blocksize, const TensorInfo& tensor,
                             bool nested) {
  const std::string longest(max_offset_chars, '0');
  return quant_state(quant_type, blocksize, tensor, nested ? &longest : nullptr).size();
}

// Parts in the order in which bitsandbytes writes them.
std::vector<Part> four_bit_parts(const FourBitCodec& codec, const TensorInfo& tensor) {
  const std::vector<Plane> planes = codec.planes(tensor);
  const bool nested = codec.double_quant();
  std::vector<Part> parts;
  const auto add = [&](std::string_view suffix, std::size_t plane) {
    parts.push_back({{tensor.name + std::string(suffix), planes[plane].dtype, planes[plane].shape}, plane});
  };
  const auto add_own = [&](std::string name, DType dtype, std::uint64_t size) {
    parts.push_back({{std::move(name), dtype, {size}}, {}});
  };
  add("", 0);
  add(absmax_suffix, 1);
  add_own(tensor.name + std::string(map_suffix), DType::f32, codec.codebook().size());
  if (nested) {
    add(".nested_absmax", 2);
    add(".nested_quant_map", 3);
  }
  const std::string_view quant_type = quant_type_of(codec);
  add_own(state_name(tensor.name, quant_type), DType::u8,
          quant_state_size(quant_type, codec.blocksize(), tensor, nested));
  return parts;
}

std::vector<std::byte> four_bit_own_bytes(const FourBitCodec& codec, const TensorInfo& tensor, const Part& part,
                                          std::span<const std::vector<std::byte>> loose) {
  if (part.info.dtype == DType::f32) return bytes_of(codec.codebook().data(), codec.codebook().size_bytes());
  constexpr std::size_t nested_offset = 4;  // the plane
  std::string offset_text;
  if (codec.double_quant()) {
    float offset = 0;
    std::memcpy(&offset, loose[nested_offset].data(), sizeof offset);
    offset_text = python_repr(offset);
  }
  std::string state =
      quant_state(quant_type_of(codec), codec.blocksize(), tensor, codec.double_quant() ? &offset_text : nullptr);
  state.resize(part.info.bytes(), ' ');
  return bytes_of(state.data(), state.size());
}

// The type that the weights had before: one of those that bitsandbytes quantizes.
DType dtype_of(const TensorInfo& part, const nlohmann::json& state) {
  const auto name = state.find("dtype");
  if (name == state.end() || !name->is_string()) fail(part, "dtype is missing");
  const auto dtype = find_torch_dtype(name->get_ref<const std::string&>());
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return *dtype;
  fail(part, "dtype is " + printable(name->get<std::string>()) + ", not float32, float16 or bfloat16");
}

nlohmann::json parse_state(const TensorInfo& part, std::span<const std::byte> bytes) {
  const auto* const text = reinterpret_cast<const char*>(bytes.data());
  // A message may print a value. Printing nested values would recurse, so they are left out.
  const auto is_shallow = [](int depth, auto, const auto&) { return depth <= max_state_depth; };
  auto state = nlohmann::json::parse(text, text + bytes.size(), is_shallow, /*allow_exceptions=*/false);
  if (!state.is_object()) fail(part, "is not a JSON object");
  return state;
}

// Such a tensor is recognized by its quantization state; its packed bytes may have any type (quant_storage).
std::optional<StoredTensor> recognize_four_bit(const QuantType& quant_type, const Reader& in, std::size_t first,
                                               const FindTensor& find) {
  const auto state_part = find(state_name(in.tensors().name(first), quant_type.name));
  if (!state_part) return std::nullopt;
  const TensorInfo packed = in.tensors()[first];
  StoredTensor stored;
  stored.info.name = packed.name;
  stored.parts.push_back(first);
  const TensorInfo part = in.tensors()[*state_part];
  if (part.bytes() > max_state_bytes)
    fail(part, "has " + std::to_string(part.bytes()) + " bytes, more than any quant_state");
  const auto state = parse_state(part, read_part(in, *state_part));
  const auto blocksize = state.find("blocksize");
  if (blocksize == state.end() || !blocksize->is_number_unsigned() || *blocksize < 32u || *blocksize > 4096u ||
      !std::has_single_bit(blocksize->get<std::uint32_t>()))
    fail(part, "blocksize is not one of 32, 64, ..., 4096");
  const auto shape = state.find("shape");
  if (shape == state.end() || !shape->is_array()) fail(part, "shape is missing");
  for (const nlohmann::json& dimension : *shape) {
    if (!dimension.is_number_unsigned()) fail(part, "shape has a dimension that is not a size");
    if (stored.info.shape.size() == max_dimensions)
      fail(part, "shape has more than " + std::to_string(max_dimensions) + " dimensions");
    stored.info.shape.push_back(dimension.get<std::uint64_t>());
  }
  stored.info.dtype = dtype_of(part, state);
  stored.codec = four_bit_spec(codec_name_of(quant_type), blocksize->get<std::uint64_t>(),
                               /*double_quant=*/state.contains("nested_blocksize"));
  const std::unique_ptr<const Codec> codec = make_codec(stored.codec);
  // A product beyond 64 bits is more than any file holds.
  std::uint64_t n = 1;
  for (const std::uint64_t dimension : stored.info.shape)
    if (__builtin_mul_overflow(n, dimension, &n)) fail(packed, "the weights of its shape exceed 64 bits");
  if (packed.bytes() != n / 2 + n % 2)
    fail(packed, "has " + std::to_string(packed.bytes()) + " bytes for " + std::to_string(n) + " weights");
  const std::vector<Part> expected = four_bit_parts(*as_four_bit(*codec), stored.info);
  for (std::size_t i = 1; i < expected.size(); ++i) {
    const auto found = find(expected[i].info.name);
    if (!found) fail(packed, "part '" + printable(expected[i].info.name) + "' is missing");
    stored.parts.push_back(*found);
  }
  for (std::size_t i = 1; i < expected.size(); ++i) {
    const TensorInfo found = in.tensors()[stored.parts[i]];
    if (found.dtype != expected[i].info.dtype)
      fail(found, "type is " + std::string(traits(found.dtype).name) + ", not " +
                      std::string(traits(expected[i].info.dtype).name));
    // The state may be longer or shorter than the one that nibble writes.
    if (i + 1 < expected.size() && found.bytes() != expected[i].info.bytes())
      fail(found, "has " + std::to_string(found.bytes()) + " bytes, not " + std::to_string(expected[i].info.bytes()));
  }
  return stored;
}

// bitsandbytes decodes with its own tables, whose last bits have changed between versions, and so does nibble.
void check_codebook(const TensorInfo& part, const Codec& codec, std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < codec.codebook().size(); ++i) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    if (!(std::abs(value - codec.codebook()[i]) <= 1e-4f))
      fail(part, "value " + std::to_string(i) + " is " + std::to_string(value) + ", in " + std::string(codec.name()) +
                     " it is " + std::to_string(codec.codebook()[i]));
  }
}

// Returns the offset of double quantization.
float check_quant_state(const FourBitCodec& codec, const TensorInfo& tensor, const TensorInfo& part,
                        std::span<const std::byte> bytes) {
  const auto state = parse_state(part, bytes);
  const auto text_of = [](const nlohmann::json& value) {
    return printable(value.is_string() ? value.get<std::string>() : value.dump());
  };
  const auto expect = [&](const char* key, const nlohmann::json& value) {
    const auto found = state.find(key);
    if (found == state.end() || *found != value)
      fail(part, std::string(key) + " is " + (found == state.end() ? "missing" : text_of(*found)) + ", not " +
                     text_of(value));
  };
  expect("quant_type", quant_type_of(codec));
  expect("blocksize", codec.blocksize());
  expect("shape", tensor.shape);
  if (!codec.double_quant()) return 0;
  expect("nested_blocksize", nested::blocksize);
  const auto offset = state.find("nested_offset");
  if (offset == state.end() || !offset->is_number()) fail(part, "nested_offset is not a number");
  const double value = offset->get<double>();
  if (!(std::abs(value) <= std::numeric_limits<float>::max())) fail(part, "nested_offset is beyond fp32");
  return static_cast<float>(value);
}

std::vector<std::vector<std::byte>> read_four_bit_planes(const Reader& in, const FourBitCodec& codec,
                                                         const StoredTensor& tensor) {
  const auto& parts = tensor.parts;
  check_codebook(in.tensors()[parts[2]], codec, read_part(in, parts[2]));
  const float offset = check_quant_state(codec, tensor.info, in.tensors()[parts.back()], read_part(in, parts.back()));
  std::vector<std::vector<std::byte>> planes{read_part(in, parts[1])};
  if (codec.double_quant()) {
    planes.push_back(read_part(in, parts[3]));
    planes.push_back(read_part(in, parts[4]));
    planes.push_back(bytes_of(&offset, sizeof offset));
  }
  return planes;
}

// ---- 8 bits ----

constexpr std::string_view scb_suffix = ".SCB";

bool is_int8(const Codec& codec) { return dynamic_cast<const Int8Codec*>(&codec) != nullptr; }

// bitsandbytes names the other tensors after the module, not after its weight.
std::vector<Part> int8_parts(const Codec& codec, const TensorInfo& tensor) {
  const std::string module(without_weight_suffix(tensor.name));
  const std::vector<Plane> planes = codec.planes(tensor);
  return {{{tensor.name, planes[0].dtype, planes[0].shape}, 0},
          {{module + std::string(scb_suffix), planes[1].dtype, planes[1].shape}, 1},
          {{module + ".weight_format", DType::u8, {}}, {}}};
}

constexpr std::byte row_major{0};  // weight_format: rows as they are

// weight_format may be missing: old versions of bitsandbytes did not write it.
std::optional<StoredTensor> recognize_int8(const Reader& in, std::size_t first, const FindTensor& find) {
  const TensorInfo codes = in.tensors()[first];
  if (codes.dtype != DType::i8 || codes.shape.size() != 2) return std::nullopt;
  StoredTensor stored;
  stored.info = {codes.name, DType::f16, codes.shape};
  stored.codec = "int8";
  stored.parts.push_back(first);
  const std::vector<Part> expected = int8_parts(*make_codec(stored.codec), stored.info);
  const auto scb = find(expected[1].info.name);
  if (!scb) return std::nullopt;
  stored.parts.push_back(*scb);
  if (const auto format = find(expected[2].info.name)) {
    stored.parts.push_back(*format);
    if (in.tensors().bytes(*format) != expected[2].info.bytes())
      fail(expected[2].info, "has " + std::to_string(in.tensors().bytes(*format)) + " bytes, not 1");
  }
  if (in.tensors().dtype(*scb) != DType::f32)
    fail(expected[1].info, "type is " + std::string(traits(in.tensors().dtype(*scb)).name) + ", not F32");
  return stored;
}

std::vector<std::vector<std::byte>> read_int8_planes(const Reader& in, const StoredTensor& tensor) {
  std::vector<std::byte> scb = read_part(in, tensor.parts[1]);
  if (scb.size() % sizeof(float) != 0 || scb.size() / sizeof(float) != tensor.info.shape[0])
    fail(tensor.info, "SCB has " + std::to_string(scb.size()) + " bytes, not 4 for each of " +
                          std::to_string(tensor.info.shape[0]) + " rows");
  if (tensor.parts.size() > 2 && read_part(in, tensor.parts[2]) != std::vector{row_major})
    fail(tensor.info, "weight_format is not 0 (row-major)");
  return {std::move(scb)};
}

class Bitsandbytes final : public Scheme {
 public:
  std::string_view quant_method() const noexcept override { return "bitsandbytes"; }
  bool leaves_plain_types() const override { return true; }
  bool is_declared(const ModelConfig& config) const override { return is_bitsandbytes(config); }
  bool stores(const Codec& codec) const override { return as_four_bit(codec) != nullptr || is_int8(codec); }

  std::vector<Part> parts(const Codec& codec, const TensorInfo& tensor) const override {
    return is_int8(codec) ? int8_parts(codec, tensor) : four_bit_parts(*as_four_bit(codec), tensor);
  }

  std::vector<std::byte> own_bytes(const Codec& codec, const TensorInfo& tensor, const Part& part,
                                   std::span<const std::vector<std::byte>> loose) const override {
    return is_int8(codec) ? std::vector{row_major} : four_bit_own_bytes(*as_four_bit(codec), tensor, part, loose);
  }

  std::optional<StoredTensor> recognize(const Reader& in, std::size_t first, const FindTensor& find) const override {
    if (auto stored = recognize_int8(in, first, find)) return stored;
    for (const QuantType& quant_type : quant_types)
      if (auto stored = recognize_four_bit(quant_type, in, first, find)) return stored;
    return std::nullopt;
  }

  std::vector<std::vector<std::byte>> read_planes(const Reader& in, const Codec& codec,
                                                  const StoredTensor& tensor) const override {
    return is_int8(codec) ? read_int8_planes(in, tensor) : read_four_bit_planes(in, *as_four_bit(codec), tensor);
  }

  bool names(std::string_view part) const override {
    return part.ends_with(scb_suffix) || part.find(state_infix) != std::string_view::npos;
  }

  std::string undecodable(const Reader& in, std::size_t part, const FindTensor& find) const override {
    const TensorInfo tensor = in.tensors()[part];
    if (names(tensor.name)) return "a part of a tensor that bitsandbytes quantized, but no codes go with it";
    if (!in.config() || !(is_declared(*in.config()) || is_nibble_only(*in.config()))) return {};
    if (find(tensor.name + std::string(absmax_suffix)) || find(tensor.name + std::string(map_suffix)))
      return "quantized by bitsandbytes, but its quant_state is missing or of a type that nibble does not decode";
    if (tensor.dtype == DType::i8 && tensor.shape.size() == 2) return "codes in I8, but their SCB is missing";
    return {};
  }

  // 8-bit layers always multiply in fp16.
  bool has_compute_dtype(const Codec& codec) const override { return as_four_bit(codec) != nullptr; }

  bool replaces(Role role) const override {
    return role == Role::linear || role == Role::conv1d || role == Role::output_embeddings || role == Role::kept;
  }

  std::string obstacle(const Plan& plan) const override { return bitsandbytes_obstacle(*this, plan); }
  std::string config(const Plan& plan) const override { return bitsandbytes_config(*this, plan); }
};

}  // namespace

const Scheme& bitsandbytes_scheme() {
  static const Bitsandbytes scheme;
  return scheme;
}

}  // namespace nibble
