"""Layers with frozen quantized weights: `Linear4bit` (NF4, FP4) and `LinearInt8` (LLM.int8).

Their forward and the gradient of their input are operators of torch.ops.nibble (docs/torch.md). State dicts have
bitsandbytes' names, and those that bitsandbytes wrote load.
"""

from .linear_4bit import Linear4bit
from .linear_int8 import LinearInt8
from .quantized_weight import ExpertWeights, QuantizedWeight

__all__ = ["ExpertWeights", "Linear4bit", "LinearInt8", "QuantizedWeight"]
