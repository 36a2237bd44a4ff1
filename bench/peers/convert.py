"""The script that nibble replaces: every matrix of a safetensors file, one after the other, through bitsandbytes or
torch, and the result saved and flushed.

    convert.py IN OUT --to nf4|int8|fp16
"""

import argparse
import os
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402


def nf4(name, weight):
    import bitsandbytes.functional as bnb

    packed, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    return {name: packed, **{f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}}


def int8(name, weight):
    import bitsandbytes.functional as bnb

    codes, scale, _ = bnb.int8_vectorwise_quant(weight.half())
    return {name: codes, name.removesuffix("weight") + "SCB": scale}


def fp16(name, weight):
    return {name: weight.half()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--to", choices=("nf4", "int8", "fp16"), required=True)
    options = parser.parse_args()
    convert = globals()[options.to]
    out = {}
    with torch.no_grad(), safe_open(options.input, "pt") as file:
        for name in file.keys():
            weight = file.get_tensor(name)
            out.update(convert(name, weight) if weight.dim() == 2 or options.to == "fp16" else {name: weight})
    save_file(out, options.output)
    descriptor = os.open(options.output, os.O_RDONLY)
    os.fsync(descriptor)


main()
