"""The script that `nibble measure` replaces: every tensor of a safetensors file against the same one of another, which
bitsandbytes may have quantized to 4 bits, with torch's sums. Prints the figures of all weights together.

    measure.py REF TEST
"""

import json
import math
import sys
import warnings

warnings.filterwarnings("ignore")

import bitsandbytes.functional as bnb  # noqa: E402
import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402


def weights_of(file, names, name):
    weight = file.get_tensor(name)
    state = {key.removeprefix(name + "."): file.get_tensor(key) for key in names.get(name, ())}
    if not state:
        return weight
    state = bnb.QuantState.from_dict(state, device=torch.device("cpu"))
    state.dtype = torch.float32  # what is stored, not its rounding to the type of the model
    return bnb.dequantize_4bit(weight, state)


def main():
    totals = dict.fromkeys(("count", "magnitude", "square", "product", "reference", "test"), 0.0)
    largest = 0.0
    with torch.no_grad(), safe_open(sys.argv[1], "pt") as reference, safe_open(sys.argv[2], "pt") as test:
        parts = {}  # of quantized weights
        for key in test.keys():
            if ".weight." in key:
                parts.setdefault(key[: key.index(".weight.") + len(".weight")], []).append(key)
        for name in reference.keys():
            w = reference.get_tensor(name).float()
            t = weights_of(test, parts, name).float().reshape(w.shape)
            e = t - w
            size = e.abs()
            totals["count"] += w.numel()
            totals["magnitude"] += size.sum(dtype=torch.float64).item()
            largest = max(largest, size.max().item())
            totals["square"] += e.square().sum(dtype=torch.float64).item()
            totals["product"] += (w * t).sum(dtype=torch.float64).item()
            totals["reference"] += w.square().sum(dtype=torch.float64).item()
            totals["test"] += t.square().sum(dtype=torch.float64).item()
    print(json.dumps({
        "mae": totals["magnitude"] / totals["count"],
        "rmse": math.sqrt(totals["square"] / totals["count"]),
        "max_abs": largest,
        "cosine": totals["product"] / math.sqrt(totals["reference"] * totals["test"]),
        "sqnr_db": 10 * math.log10(totals["reference"] / totals["square"]),
    }))  # fmt: skip


main()
