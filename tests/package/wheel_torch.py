"""What an installed nibble does beside torch and bitsandbytes: its operators, its layers, and the entry point."""

import os
import pathlib
import subprocess
import sys

if len(sys.argv) > 1:  # what stands behind bitsandbytes, once it is imported
    import bitsandbytes  # noqa: F401
    import nibble.backend

    print(*nibble.backend.replaced())
    sys.exit()

import nibble
import nibble.nn
import nibble.operators  # noqa: F401: loads torch.ops.nibble
import torch

assert pathlib.Path(nibble.__file__).is_relative_to(sys.prefix), "this is not the installed package"
torch.manual_seed(0)
weight = torch.randn(48, 128)
quantized = nibble.quantize_nf4(weight)
assert isinstance(quantized.packed, torch.Tensor)
packed, absmax = torch.ops.nibble.quantize_4bit(weight, 64, "nf4")
assert torch.equal(packed, quantized.packed) and torch.equal(absmax, quantized.absmax)

linear = torch.nn.Linear(128, 48)
layer = nibble.nn.Linear4bit.from_linear(linear)
x = torch.randn(3, 128, requires_grad=True)
layer(x).sum().backward()
assert x.grad.shape == x.shape and torch.isfinite(x.grad).all()


def replaced(**environment):
    done = subprocess.run(
        [sys.executable, "-I", __file__, "replaced"],
        env=os.environ | environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.split()


assert "bitsandbytes::quantize_4bit" in replaced(), replaced()
assert replaced(NIBBLE_BITSANDBYTES="0") == []
print("operators, layers, entry point: passed")
