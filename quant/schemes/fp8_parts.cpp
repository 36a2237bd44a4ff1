#include "quant/schemes/fp8_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "formats/models/weight_name.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/scaled.hpp"

namespace nibble {
namespace {

constexpr std::array<std::string_view, 3> cache_suffixes{".k_scale", ".v_scale", ".q_scale"};  // of an attention module
constexpr std::string_view packed_suffix = "_packed";  // of codes that share bytes

// Suffixes of tensors beside codes whose weights are not code * scale: they are shifted, or in another order.
constexpr std::array<std::string_view, 2> shift_suffixes{"_zero_point", "_g_idx"};

// The name of such a tensor beside codes; empty if there is none.
std::string shift_of(std::string_view codes, const FindTensor& find) {
  for (const std::string_view suffix : shift_suffixes)
    if (std::string name = std::string(codes).append(suffix); find(name)) return name;
  return {};
}

DType type_before(const Reader& in, DType scales, DType otherwise) {
  if (scales != DType::f32) return scales;
  const DType declared = in.config() ? find_torch_dtype(in.config()->dtype).value_or(otherwise) : otherwise;
  const bool is_a_models = declared == DType::f32 || declared == DType::bf16 || declared == DType::f16;
  return is_a_models ? declared : otherwise;
}

constexpr float fp16_overflow = 65520.0f;  // the smallest magnitude that is rounded to infinity

// Whether the largest code times the largest of these scales is that large. Such weights were not fp16, whatever
// config.json says.
bool exceeds_fp16(const Reader& in, std::size_t scales, const Codec& codec) {
  std::vector<std::byte> stored(in.tensors().bytes(scales));
  in.read(scales, 0, stored);
  const float largest = dynamic_cast<const ScaledCodec&>(codec).largest();
  const auto exceeds = [largest](float scale) { return std::abs(scale) * largest >= fp16_overflow; };
  return std::ranges::any_of(widen_scales(stored, in.tensors().dtype(scales)), exceeds);
}

}  // namespace

std::optional<StoredTensor> Fp8Parts::recognize(const Reader& in, std::size_t first, const FindTensor& find) const {
  const bool is_e5m2 = in.tensors().dtype(first) == DType::f8_e5m2;
  if (!is_e5m2 && in.tensors().dtype(first) != DType::f8_e4m3) return std::nullopt;
  const TensorInfo codes = in.tensors()[first];
  if (codes.shape.size() != 2) return std::nullopt;
  const auto part = find(codes.name + std::string(suffix_));
  if (!part || !shift_of(codes.name, find).empty()) return std::nullopt;
  const TensorInfo scales = in.tensors()[*part];
  // MXFP8 has scales of other types.
  if (scales.dtype != DType::f32 && scales.dtype != DType::bf16 && scales.dtype != DType::f16) return std::nullopt;
  const Shape shape = scales.shape.empty() ? Shape{1} : scales.shape;  // of the whole tensor
  StoredTensor stored{
      {codes.name, type_before(in, scales.dtype, otherwise_), codes.shape}, CodecSpec(), {first, *part}};
  const std::string_view module = without_weight_suffix(codes.name);
  for (const std::string_view suffix : activation_suffixes_)
    if (const auto companion = find(std::string(module).append(suffix));
        companion && element_count(in.tensors().shape(*companion)) == 1)
      stored.parts.push_back(*companion);
  std::vector<std::string> expected;
  for (const std::string_view regions : {"tensor", "row", "block"}) {
    stored.codec = CodecSpec("fp8").with("format", is_e5m2 ? "e5m2" : "e4m3").with("scales", regions);
    const std::unique_ptr<const Codec> codec = make_codec(stored.codec);
    const std::vector<Plane> planes = codec->planes(stored.info);
    if (planes[1].shape == shape) {
      if (stored.info.dtype == DType::f16 && exceeds_fp16(in, *part, *codec)) stored.info.dtype = DType::f32;
      return stored;
    }
    expected.push_back(to_string(planes[1].shape));
  }
  // In other formats, groups of a row have their own scales.
  if (shape.size() == 2 && shape[0] == codes.shape[0] && shape[1] > 1 && codes.shape[1] % shape[1] == 0)
    return std::nullopt;
  throw Error(Errc::bad_input,
              fmt::format("tensor '{}': shape is {}; the scales of codes of {} are {}", printable(scales.name),
                          to_string(scales.shape), to_string(codes.shape), fmt::join(expected, " or ")));
}

std::string Fp8Parts::undecodable(const Reader& in, std::size_t part, const FindTensor& find) const {
  const DType dtype = in.tensors().dtype(part);
  const TensorInfo tensor = in.tensors()[part];
  const bool nibble_only = in.config() && is_nibble_only(*in.config());
  const bool is_quantized = nibble_only || (in.config() && is_declared(*in.config()));
  if (is_weight_type(dtype)) {
    const std::string name = is_quantized ? codes_of(tensor.name) : std::string();
    const auto codes = name.empty() ? std::nullopt : find(name);
    // Codes that cannot be decoded get their own error.
    if (name.empty() || (codes && !is_weight_type(in.tensors().dtype(*codes)))) return {};
    return fmt::format("a scale, but '{}' is {}", printable(name), codes ? "not in FP8" : "missing");
  }
  if (dtype == DType::i64 || dtype == DType::boolean) return {};
  std::string_view name = tensor.name;
  if (name.ends_with(packed_suffix)) name.remove_suffix(packed_suffix.size());
  const std::string scale = std::string(name).append(suffix_);
  const bool is_fp8 = dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2, has_scale = find(scale).has_value();
  if (!has_scale && !(is_quantized && (is_fp8 || tensor.shape.size() == 2))) return {};
  const std::string what = fmt::format("{} {}", traits(dtype).name, to_string(tensor.shape));
  if (is_fp8 && !has_scale) return fmt::format("{}, but its scale '{}' is missing", what, printable(scale));
  if (const std::string shift = shift_of(name, find); !shift.empty())
    return fmt::format("{}, but '{}' lies beside it; nibble takes FP8 whose weights are code * scale", what,
                       printable(shift));
  return fmt::format(
      "{}: quantized already by {} in a form that nibble does not decode; it takes matrices in FP8 with a scale per "
      "tensor, row or block of {} x {}",
      what, nibble_only ? nibble_quant_method : quant_method(), Regions::tile, Regions::tile);
}

bool Fp8Parts::is_left_over(const Reader& in, std::size_t part) const {
  const std::string_view name = in.tensors().name(part);
  const auto is_suffix = [name](std::string_view suffix) { return name.ends_with(suffix); };
  return element_count(in.tensors().shape(part)) == 1 &&
         (std::ranges::any_of(activation_suffixes_, is_suffix) || std::ranges::any_of(cache_suffixes, is_suffix));
}

nlohmann::json Fp8Parts::parse_config(std::string_view quantization_config) {
  auto config = nlohmann::json::parse(quantization_config, nullptr, /*allow_exceptions=*/false);
  return config.is_object() ? config : nlohmann::json();
}

std::string Fp8Parts::undecodable_blocks(const nlohmann::json& blocks, std::string_view key) {
  if (blocks.is_null() || blocks == nlohmann::json::array({Regions::tile, Regions::tile})) return {};
  return fmt::format("quantized in blocks of {}, as {} of config.json says; nibble takes blocks of {} x {}",
                     printable(blocks.dump()), key, Regions::tile, Regions::tile);
}

// "a.weight" of "a.weight_scale"; empty for other names.
std::string Fp8Parts::codes_of(std::string_view scale) const {
  if (!scale.ends_with(suffix_)) return {};
  scale.remove_suffix(suffix_.size());
  return scale.ends_with(weight_suffix) ? std::string(scale) : std::string();
}

std::vector<std::vector<std::byte>> Fp8Parts::read_planes(const Reader& in, const Codec& /*codec*/,
                                                          const StoredTensor& tensor) const {
  std::vector<std::byte> scales(in.tensors().bytes(tensor.parts[1]));
  in.read(tensor.parts[1], 0, scales);
  // Scales have the type of the weights, or F32.
  if (const DType type = in.tensors().dtype(tensor.parts[1]); type != DType::f32 && type != tensor.info.dtype) {
    const std::vector<float> wide = widen_scales(scales, type);
    scales.resize(wide.size() * sizeof(float));
    narrow_scales(wide, DType::f32, scales);
  }
  return {std::move(scales)};
}

}  // namespace nibble
