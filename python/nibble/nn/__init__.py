"""Layers with frozen quantized weights: `Linear4bit` (NF4, FP4) and `LinearInt8` (LLM.int8).

Their forward and the gradient of their input are operators of torch.ops.nibble (docs/torch.md). State dicts have
bitsandbytes' names, and those that bitsandbytes wrote load.
"""

from .frozen_linear import FrozenLinear
from .linear_4bit import Linear4bit, Weight4bit
from .linear_int8 import LinearInt8, WeightInt8
from .quantized_weight import ExpertWeights, QuantizedWeight

__all__ = [
    "ExpertWeights",
    "FrozenLinear",
    "Linear4bit",
    "LinearInt8",
    "QuantizedWeight",
    "Weight4bit",
    "WeightInt8",
]
