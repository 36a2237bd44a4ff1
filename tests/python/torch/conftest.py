"""What the tests of nibble's operators and layers for torch share.

    NIBBLE_TORCH_LIBRARY=build/release/python/torch/libnibble_torch.so PYTHONPATH=python pytest tests/python/torch

or, where nibble is installed with its operators, without the two variables.
"""

import math

import pytest
import torch

BLOCKSIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
# Around a block, an odd number of weights, rows that do not start with a block, several panels.
SHAPES = ((1, 1), (3, 5), (2, 64), (33, 80), (64, 96), (7, 129), (130, 512), (600, 3072))


class Weight:
    """A quantized weight: the arguments of the operators, and what they stand for in float64."""

    def __init__(self, n, k, quant_type="nf4", blocksize=64, nested=False, dtype=torch.float32):
        ops = torch.ops.nibble
        generator = torch.Generator().manual_seed(n * 10000 + k)
        self.shape = (n, k)
        self.quant_type, self.blocksize = quant_type, blocksize
        self.original = torch.randn(n, k, generator=generator).to(dtype)
        self.packed, absmax = ops.quantize_4bit(self.original, blocksize, quant_type)
        self.parts = (absmax, None, None, None)
        if nested:
            codes, nested_absmax, offset = ops.quantize_absmax(absmax)
            quant_map = ops.quant_map("nested")
            self.parts = (codes, nested_absmax, quant_map, offset)
            blocks = torch.arange(codes.numel()) // 256
            absmax = quant_map[codes.int()] * nested_absmax[blocks] + offset
        self.absmax = absmax
        # By definition: weight = codebook[code] * absmax[block], rounded once; the first code is the high nibble.
        nibbles = torch.stack((self.packed.flatten() >> 4, self.packed.flatten() & 15), 1).flatten()[: n * k]
        block = torch.arange(n * k) // blocksize
        self.fp32 = (ops.quant_map(quant_type)[nibbles.int()] * absmax[block]).view(n, k)

    def linear(self, x, bias=None):
        arguments = (bias, self.shape[0], self.blocksize, self.quant_type)
        return torch.ops.nibble.linear_4bit(x, self.packed, *self.parts, *arguments)

    def linear_dx(self, dy):
        arguments = (self.shape[1], self.blocksize, self.quant_type)
        return torch.ops.nibble.linear_4bit_dx(dy, self.packed, *self.parts, *arguments)

    def dequantize(self, dtype=torch.float32, shape=None):
        arguments = (list(shape or self.shape), self.blocksize, self.quant_type, dtype)
        return torch.ops.nibble.dequantize_4bit(self.packed, *self.parts, *arguments)


def rms(error):
    return error.double().square().mean().sqrt().item()


MAX_CHAIN = 128  # products that are summed up one after the other (docs/cpu-matmul.md)


def fp32_error(size, k, count):
    """Root mean square error that `count` sums of k products in fp32 may have, if `size` is the root mean square of
    sqrt(sum (x w)^2), which cancellation does not make smaller.

    The i-th partial sum of a chain has about size * sqrt(i / k), and adding to it rounds by about eps / 2 times that, in
    a random direction: over a chain of c products, sqrt(c / 6) * eps / 2 * size would be expected, the distribution of
    roundings included. One more eps / 2 is for the last rounding, and 4 / sqrt(count) for chance.
    """
    chain = min(k, MAX_CHAIN)
    return torch.finfo(torch.float32).eps / 2 * size * (1 + math.sqrt(chain / 6) * (1 + 4 / math.sqrt(count)))


def assert_product(result, x, weight, bias=None):
    """`result` is x @ weight.T + bias: in fp32 with no more than the error of such sums; in 16 bits with at most 1.1 times
    that of torch with the weight in that type, or of the type's rounding."""
    x64, w64 = x.double(), weight.double()
    bias64 = torch.zeros(()) if bias is None else bias.double()
    exact = x64 @ w64.T + bias64
    error = rms(result.double() - exact)
    if result.dtype == torch.float32:
        size = (x64.square() @ w64.square().T + bias64.square()).mean().sqrt().item()
        assert error <= fp32_error(size, x.shape[-1], result.numel())
    else:
        peer = torch.nn.functional.linear(x, weight.to(x.dtype), bias)
        assert error <= 1.1 * max(torch.finfo(result.dtype).eps / 4 * rms(exact), rms(peer.double() - exact))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
