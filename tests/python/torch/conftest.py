"""What the tests of nibble's operators and layers for torch share.

    NIBBLE_TORCH_LIBRARY=build/release/python/torch/libnibble_torch.so PYTHONPATH=python pytest tests/python/torch

or, where nibble is installed with its operators, without the two variables.
"""

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


def assert_no_worse(result, exact, peers, margin=1.1):
    """The error of `result` is at most `margin` times that of the worst peer, or the rounding of the type. A few hundred
    sums in fp32, in another order than the peer's, can be some units off by chance."""
    units = 4 if result.dtype == torch.float32 and result.numel() < 1000 else 1 / 4
    floor = torch.finfo(result.dtype).eps * units * rms(exact)
    allowed = margin * max([floor, *(rms(peer.double() - exact) for peer in peers)])
    assert rms(result.double() - exact) <= allowed


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
