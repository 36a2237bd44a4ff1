// The schemas of torch.ops.nibble and what runs on which device. python/nibble/operators.py adds what tracing and
// autograd have to know.

#include "nibble/target.hpp"
#include "python/torch/operators.hpp"

namespace ops = nibble::torch_operators;

namespace {

// For the operators: libnibble has a target of its own.
void force_cpu_target(const std::string& name) { nibble::force_cpu_target(name); }

}  // namespace

// A 4-bit weight is `packed`, `absmax` and the three nested parts, as bitsandbytes stores them; the nested parts are
// all given or all None.
STABLE_TORCH_LIBRARY(nibble, library) {
  library.def(
      "linear_4bit(Tensor x, Tensor packed, Tensor absmax, Tensor? nested_absmax, Tensor? nested_quant_map, "
      "Tensor? nested_offset, Tensor? bias, int out_features, int blocksize, str quant_type) -> Tensor");
  library.def(
      "linear_4bit_dx(Tensor dy, Tensor packed, Tensor absmax, Tensor? nested_absmax, Tensor? nested_quant_map, "
      "Tensor? nested_offset, int in_features, int blocksize, str quant_type) -> Tensor");
  library.def("quantize_4bit(Tensor weights, int blocksize, str quant_type) -> (Tensor, Tensor)");
  library.def(
      "dequantize_4bit(Tensor packed, Tensor absmax, Tensor? nested_absmax, Tensor? nested_quant_map, "
      "Tensor? nested_offset, int[] shape, int blocksize, str quant_type, ScalarType dtype) -> Tensor");
  library.def("quantize_absmax(Tensor absmax, Tensor? offset=None) -> (Tensor, Tensor, Tensor)");
  library.def(
      "dequantize_absmax(Tensor codes, Tensor nested_absmax, Tensor nested_quant_map, Tensor nested_offset) -> Tensor");
  library.def("quant_map(str quant_type) -> Tensor");
  library.def("force_cpu_target(str name) -> ()");
  library.def("linear_int8(Tensor x, Tensor weight, Tensor absmax, Tensor? bias) -> Tensor");
  library.def("linear_int8_dx(Tensor dy, Tensor weight, Tensor absmax) -> Tensor");
  library.def("quantize_int8(Tensor weights) -> (Tensor, Tensor)");
  library.def("dequantize_int8(Tensor weight, Tensor absmax, ScalarType dtype) -> Tensor");
}

// They have no tensor among their arguments that could choose a device.
STABLE_TORCH_LIBRARY_IMPL(nibble, CompositeExplicitAutograd, library) {
  library.impl("quant_map", TORCH_BOX(&ops::quant_map));
  library.impl("force_cpu_target", TORCH_BOX(&force_cpu_target));
}

STABLE_TORCH_LIBRARY_IMPL(nibble, CPU, library) {
  library.impl("linear_4bit", TORCH_BOX(&ops::cpu::linear_4bit));
  library.impl("linear_4bit_dx", TORCH_BOX(&ops::cpu::linear_4bit_dx));
  library.impl("quantize_4bit", TORCH_BOX(&ops::cpu::quantize_4bit));
  library.impl("dequantize_4bit", TORCH_BOX(&ops::cpu::dequantize_4bit));
  library.impl("quantize_absmax", TORCH_BOX(&ops::cpu::quantize_absmax));
  library.impl("dequantize_absmax", TORCH_BOX(&ops::cpu::dequantize_absmax));
  library.impl("linear_int8", TORCH_BOX(&ops::cpu::linear_int8));
  library.impl("linear_int8_dx", TORCH_BOX(&ops::cpu::linear_int8_dx));
  library.impl("quantize_int8", TORCH_BOX(&ops::cpu::quantize_int8));
  library.impl("dequantize_int8", TORCH_BOX(&ops::cpu::dequantize_int8));
}

STABLE_TORCH_LIBRARY_IMPL(nibble, CUDA, library) {
  library.impl("linear_4bit", TORCH_BOX(&ops::cuda::linear_4bit));
  library.impl("linear_4bit_dx", TORCH_BOX(&ops::cuda::linear_4bit_dx));
  library.impl("quantize_4bit", TORCH_BOX(&ops::cuda::quantize_4bit));
  library.impl("dequantize_4bit", TORCH_BOX(&ops::cuda::dequantize_4bit));
  library.impl("linear_int8", TORCH_BOX(&ops::cuda::linear_int8));
  library.impl("linear_int8_dx", TORCH_BOX(&ops::cuda::linear_int8_dx));
  library.impl("quantize_int8", TORCH_BOX(&ops::cuda::quantize_int8));
  library.impl("dequantize_int8", TORCH_BOX(&ops::cuda::dequantize_int8));
}
