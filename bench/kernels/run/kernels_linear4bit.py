#!/usr/bin/env python3
"""Linear4bit of nibble.nn and of bitsandbytes, forward and backward, beside torch's product with a bf16 weight: lines
of JSON.

Random data; the contenders take turns, round by round, and each has layers of more than 250 MB, so that no cache holds
a weight. A time is the median of 15 rounds between two events, a call's share of a round over all layers. It includes
what Python and torch need for a call where the device is faster than they are; the lines `forward-graph` are CUDA
graphs of the same calls. The products of both kinds of Linear4bit are checked first, against the fp64 product with the
dequantized weight: a line with `error` stands for one that is wrong, and the exit code is 1. 77: there is no GPU. 78:
torch is not there, or neither nibble nor bitsandbytes.
"""

import dataclasses
import importlib
import json
import statistics
import sys

import kernels_gpu

DEVICE = "cuda"
SHAPES = ((4096, 4096), (14336, 4096), (28672, 8192))
TOKENS = (1, 16, 64, 1024, 4096)
MAX_GRAPH_TOKENS = 64  # with more, a call takes the device longer than the processor
UNCACHED_BYTES, ROUNDS = 250_000_000, 15


@dataclasses.dataclass
class Contender:
    calls: list  # of a round
    products: int  # that these calls compute


def one_each(calls):
    return Contender(calls, len(calls))


def microseconds(calls):
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for call in calls:
        call()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end)


def times(contenders):
    """{who: its time for a product}: medians, with a tenth of the rounds below and above."""
    samples = {who: [] for who in contenders}
    for round_number in range(1 + ROUNDS):  # the first one warms up
        for who, contender in contenders.items():
            sample = microseconds(contender.calls) / contender.products
            if round_number > 0:
                samples[who].append(sample)
    measured = {}
    for who, values in samples.items():
        values.sort()
        measured[who] = {"unit": "us", "median": statistics.median(values), "low": values[ROUNDS // 10],
                         "high": values[-1 - ROUNDS // 10], "replays": ROUNDS,
                         "calls": contenders[who].products}  # fmt: skip
    return measured


def report(name, contenders, flops, **more):
    """A line for each contender; that of nibble compares it with the others."""
    measured = times(contenders)
    for who, line in measured.items():
        line = {"name": f"{name}/{who}", **line, "tflop_s": 1e-6 * flops / line["median"], **more}
        if who == "nibble":
            line["faster_than"] = {
                other: measured[other]["median"] / line["median"] for other in measured if other != who
            }
        print(json.dumps(line), flush=True)


def fail(name, error):
    print(json.dumps({"name": name, "error": " ".join(str(error).split())}), flush=True)
    return False


def linear4bit_of(who, weight):
    """The contender's layer with this weight, as nested NF4."""
    import torch

    n, k = weight.shape
    if who == "nibble":
        from nibble.nn import Linear4bit

        linear = torch.nn.Linear(k, n, bias=False, device="meta")
        linear.weight = torch.nn.Parameter(weight)
        return Linear4bit.from_linear(linear)
    import bitsandbytes

    layer = bitsandbytes.nn.Linear4bit(k, n, bias=False, compute_dtype=torch.bfloat16, compress_statistics=True,
                                       quant_type="nf4", device="meta")  # fmt: skip
    # to() quantizes on its way to the device.
    layer.weight = bitsandbytes.nn.Params4bit(weight.cpu(), requires_grad=False, compress_statistics=True,
                                              quant_type="nf4")  # fmt: skip
    return layer.to(DEVICE)


def exact_weight(layer):
    """What the codes of the layer stand for, in fp64."""
    import torch

    if hasattr(layer, "dequantize"):
        return layer.dequantize(torch.float32).double()
    import bitsandbytes

    state = layer.weight.quant_state
    state.dtype = torch.float32
    exact = bitsandbytes.functional.dequantize_4bit(layer.weight.data, state).double()
    state.dtype = torch.bfloat16
    return exact


def fault(layer, weight, m):
    """None, or what is wrong with the layer's product or its gradient."""
    import kernels_product
    import torch

    n, k = weight.shape
    x = torch.randn(m, k, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    dy = torch.randn(m, n, dtype=torch.bfloat16, device=DEVICE)
    y = layer(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    with torch.no_grad():  # bitsandbytes has other kernels where no gradient is needed
        found = {"y": kernels_product.fault(layer(x), x, weight), "y of training": kernels_product.fault(y, x, weight),
                 "dx": kernels_product.fault(dx, dy, weight.T)}  # fmt: skip
    return ", ".join(f"{what}: {text}" for what, text in found.items() if text) or None


def right_layers(whos, n, k):
    """{who: layers} of those whose products are right, each with enough copies; and whether all are."""
    import torch

    weight = torch.randn(n, k, dtype=torch.bfloat16, device=DEVICE) * 0.02
    layers = {}
    for who in whos:
        try:
            layer = linear4bit_of(who, weight)
            exact = exact_weight(layer)
            faults = [f"m {m}: {found}" for m in TOKENS if (found := fault(layer, exact, m))]
            del exact
            if faults:
                fail(f"linear4bit/{n}x{k}/{who}", "; ".join(faults))
                continue
            count = max(2, UNCACHED_BYTES // (n * k // 2) + 1)
            layers[who] = [layer, *(linear4bit_of(who, weight) for _ in range(count - 1))]
        except Exception as error:
            fail(f"linear4bit/{n}x{k}/{who}", f"{type(error).__name__}: {error}")
    all_right = set(layers) == set(whos)
    layers["torch-bf16"] = []
    for _ in range(max(2, UNCACHED_BYTES // (2 * n * k) + 1)):
        linear = torch.nn.Linear(k, n, bias=False, device="meta")
        linear.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        layers["torch-bf16"].append(linear)
    return layers, all_right


def graph_of(calls):
    """The calls as a CUDA graph."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    # Several in a row, so that the start of a round does not matter.
    return Contender([graph.replay] * 4, 4 * len(calls))


def graphs_of(name, contenders):
    """The contenders as CUDA graphs, and whether all can be captured."""
    graphs = {}
    for who, contender in contenders.items():
        try:
            graphs[who] = graph_of(contender.calls)
        except Exception as error:
            fail(f"{name}/{who}", f"{type(error).__name__}: {error}")
    return graphs, len(graphs) == len(contenders)


def measure(whos, n, k):
    """Whether all contenders were right."""
    import torch

    layers, right = right_layers(whos, n, k)
    for m in TOKENS:
        x = torch.randn(m, k, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
        dy = torch.randn(m, n, dtype=torch.bfloat16, device=DEVICE)
        forward = {who: [lambda layer=layer: layer(x) for layer in own] for who, own in layers.items()}
        both = {who: [lambda call=call: torch.autograd.grad(call(), x, dy) for call in calls]
                for who, calls in forward.items()}  # fmt: skip
        forward, both = ({who: one_each(calls) for who, calls in by.items()} for by in (forward, both))
        case, flops = f"{n}x{k}/m{m}", 2 * m * n * k
        with torch.no_grad():
            report(f"linear4bit/forward/{case}", forward, flops)
        report(f"linear4bit/forward-backward/{case}", both, 2 * flops)
        if m <= MAX_GRAPH_TOKENS and DEVICE == "cuda":
            name = f"linear4bit/forward-graph/{case}"
            with torch.no_grad():
                graphs, captured = graphs_of(name, forward)
                report(name, graphs, flops, graph=True)
            right = right and captured
    return right


def main():
    kernels_gpu.end_without_gpu()
    versions, failed = {}, False
    for module in ("torch", "bitsandbytes", "nibble"):
        try:
            versions[module] = importlib.import_module(module).__version__
        except ModuleNotFoundError as error:
            print(f"without {module}: {error}")
        except Exception as error:
            failed = not fail(module, f"{type(error).__name__}: {error}")
    if "torch" not in versions or len(versions) < 2:
        print("left out: there is no torch, or neither nibble nor bitsandbytes")
        return 1 if failed else kernels_gpu.NOT_THERE
    import torch

    print(json.dumps({"name": "versions", **versions}))
    torch.manual_seed(1)
    whos = [who for who in ("nibble", "bitsandbytes") if who in versions]
    for n, k in SHAPES:
        if not measure(whos, n, k):
            failed = True
        torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
