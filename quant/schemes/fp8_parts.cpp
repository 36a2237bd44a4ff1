#include "quant/schemes/fp8_parts.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "nibble/error.hpp"

namespace nibble {
namespace {

DType type_before(const Reader& in, DType scales, DType otherwise) {
  if (scales != DType::f32) return scales;
  if (in.config())
    for (const DType half : {DType::bf16, DType::f16})
      if (in.config()->dtype == traits(half).torch_name) return half;
  return otherwise;
}

}  // namespace

std::optional<StoredTensor> recognize_fp8(const Reader& in, std::size_t first, const FindTensor& find,
                                          std::string_view suffix, DType otherwise) {
  const TensorInfo codes = in.tensors()[first];
  const bool is_e5m2 = codes.dtype == DType::f8_e5m2;
  if (codes.shape.size() != 2 || (codes.dtype != DType::f8_e4m3 && !is_e5m2)) return std::nullopt;
  const auto part = find(codes.name + std::string(suffix));
  if (!part) return std::nullopt;
  const TensorInfo scales = in.tensors()[*part];
  // MXFP8 has scales of other types.
  if (scales.dtype != DType::f32 && scales.dtype != DType::bf16 && scales.dtype != DType::f16) return std::nullopt;
  const Shape shape = scales.shape.empty() ? Shape{1} : scales.shape;  // of the whole tensor
  const TensorInfo tensor{codes.name, type_before(in, scales.dtype, otherwise), codes.shape};
  for (const std::string_view regions : {"tensor", "row", "block"}) {
    const CodecSpec spec = CodecSpec("fp8").with("format", is_e5m2 ? "e5m2" : "e4m3").with("scales", regions);
    if (make_codec(spec)->planes(tensor)[1].shape == shape) return StoredTensor{tensor, spec, {first, *part}};
  }
  throw Error(Errc::bad_input, fmt::format("tensor '{}': shape is {}, which fits neither the rows nor the blocks of {}",
                                           printable(scales.name), to_string(scales.shape), to_string(codes.shape)));
}

std::vector<std::vector<std::byte>> read_fp8_scales(const Reader& in, const StoredTensor& tensor) {
  std::vector<std::byte> scales(in.tensors().bytes(tensor.parts[1]));
  in.read(tensor.parts[1], 0, scales);
  return {std::move(scales)};
}

}  // namespace nibble
