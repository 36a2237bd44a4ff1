#!/usr/bin/env python3
"""nibble's Python package on a CUDA device: a line of JSON for each check, with `ok`, `error` or `left_out`.

    kernels_python.py [--device cpu] [--only RE]

What is made on the device is compared with the same bytes made on the CPU, products with fp64. A check that fails does
not stop the others; if it leaves CUDA in an error state, the others go on in a new process. --device cpu tries the
checks themselves where there is no GPU. One file, because the checks are small and share their tensors.

0: nothing failed. 1: a check failed. 77: there is no GPU. 78: torch or nibble is not there.
"""

import argparse
import copy
import dataclasses
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import sys
import sysconfig
import tempfile
import time

import kernels_gpu

PACKAGE = pathlib.Path(__file__).resolve().parent / "python" / "nibble"
CHECKS = {}
DEVICE = "cuda"


class LeftOut(Exception):
    """Why a check cannot be made on this machine."""


def check(*names):
    """Registers a function for each name, which is its argument."""

    def register(function):
        CHECKS.update({f"{function.__name__}/{name}" if name else function.__name__: (function, name)
                       for name in names or ("",)})  # fmt: skip
        return function

    return register


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def expect_same(found, expected, text):
    """Tensors of the same bytes, wherever they are."""
    import torch

    found, expected = (t.detach().cpu().contiguous() for t in (found, expected))
    expect(found.dtype == expected.dtype and found.shape == expected.shape,
           f"{text}: is {found.dtype} {list(found.shape)}, not {expected.dtype} {list(expected.shape)}")  # fmt: skip
    found, expected = (t.reshape(-1).view(torch.uint8) for t in (found, expected))
    differ = (found != expected).nonzero()
    expect(len(differ) == 0, f"{text}: {len(differ)} of {len(found)} bytes differ, the first at {differ[:1].tolist()}")


DTYPES = ("bfloat16", "float16", "float32")
# Around a block, an odd number of weights, rows that are no whole blocks, many blocks.
WEIGHTS = ((1, 1), (7, 13), (33, 80), (96, 208), (515, 1024))


def weights(dtype):
    import torch

    for n, k in WEIGHTS:
        weight = torch.randn(n, k)
        weight[0, 0] = 0
        yield weight.to(getattr(torch, dtype))
    yield torch.zeros(3, 64, dtype=getattr(torch, dtype))


# -- quantization: the bytes of the CPU


@check(*DTYPES)
def arrays(dtype):
    """quantize_nf4() and its like of the package."""
    import nibble

    for weight in weights(dtype):
        on_device = weight.to(DEVICE)
        for format in ("nf4", "fp4"):
            for nested, blocksize in ((False, 64), (True, 64), (False, 32), (True, 4096)):
                text = f"{format}, {list(weight.shape)}, blocksize {blocksize}, nested {nested}"
                quantize, dequantize = (getattr(nibble, f"{verb}_{format}") for verb in ("quantize", "dequantize"))
                expected, found = (quantize(w, blocksize=blocksize, nested=nested) for w in (weight, on_device))
                for field in dataclasses.fields(expected):
                    part, other = (getattr(value, field.name) for value in (expected, found))
                    if hasattr(part, "cpu"):
                        expect(other.device.type == DEVICE, f"{text}: {field.name} is on {other.device}")
                        expect_same(other, part, f"{text}: {field.name}")
                    else:
                        expect(part == other, f"{text}: {field.name} is {other}, not {part}")
                for to in DTYPES:
                    expect_same(dequantize(found, dtype=to), dequantize(expected, dtype=to), f"{text}: as {to}")
        text = f"int8, {list(weight.shape)}"
        expected, found = nibble.quantize_int8(weight), nibble.quantize_int8(on_device)
        expect_same(found.codes, expected.codes, f"{text}: codes")
        expect_same(found.absmax, expected.absmax, f"{text}: absmax")
        for to in DTYPES:
            decoded = nibble.dequantize_int8(found, dtype=to)
            expect_same(decoded, nibble.dequantize_int8(expected, dtype=to), f"{text}: as {to}")


@check(*DTYPES)
def operators(dtype):
    """torch.ops.nibble.quantize_4bit and its like."""
    import torch

    ops = torch.ops.nibble
    for weight in weights(dtype):
        on_device, shape = weight.to(DEVICE), list(weight.shape)
        for quant_type, blocksize in (("nf4", 64), ("nf4", 32), ("fp4", 128), ("fp4", 4096)):
            text = f"{quant_type}, {shape}, blocksize {blocksize}"
            packed, absmax = ops.quantize_4bit(weight, blocksize, quant_type)
            for found, expected in zip(ops.quantize_4bit(on_device, blocksize, quant_type), (packed, absmax)):
                expect_same(found, expected, text)
            codes, nested_absmax, offset = ops.quantize_absmax(absmax)
            quant_map = ops.quant_map("nested")
            for parts in ((absmax, None, None, None), (codes, nested_absmax, quant_map, offset)):
                there = [None if part is None else part.to(DEVICE) for part in (packed, *parts)]
                for to in DTYPES:
                    arguments = (shape, blocksize, quant_type, getattr(torch, to))
                    decoded = ops.dequantize_4bit(packed, *parts, *arguments)
                    expect_same(ops.dequantize_4bit(*there, *arguments), decoded, f"{text}: as {to}")
        codes, absmax = ops.quantize_int8(weight)
        found = ops.quantize_int8(on_device)
        expect_same(found[0], codes, f"int8, {shape}: codes")
        expect_same(found[1], absmax, f"int8, {shape}: absmax")
        for to in DTYPES:
            decoded = ops.dequantize_int8(codes, absmax, getattr(torch, to))
            expect_same(ops.dequantize_int8(*found, getattr(torch, to)), decoded, f"int8, {shape}: as {to}")


# -- layers

KINDS = {
    "nf4": lambda linear: nibble_layer("Linear4bit", linear),
    "nf4-plain": lambda linear: nibble_layer("Linear4bit", linear, compress_statistics=False),
    "fp4-128": lambda linear: nibble_layer("Linear4bit", linear, "fp4", 128),
    "int8": lambda linear: nibble_layer("LinearInt8", linear),
}
LAYERS = ((48, 80), (96, 208), (64, 192), (512, 1024))  # n, k: runs of 16 weights, of 64, and longer rows
TOKENS = (1, 16, 64, 65, 300)


def nibble_layer(name, linear, *arguments, **options):
    import nibble.nn

    return getattr(nibble.nn, name).from_linear(linear, *arguments, **options)


def layer_of(kind, n=96, k=208, device=None, bias=True):
    import torch

    torch.manual_seed(n * 10000 + k)
    return KINDS[kind](torch.nn.Linear(k, n, bias).to(device or DEVICE))


def result_and_gradients(function, layer, x, dy):
    import torch

    x = x.detach().clone().requires_grad_()
    y = function(x)
    return y.detach(), *torch.autograd.grad(y, (x, layer.bias), dy)


@check(*(f"{kind}-{dtype}" for kind in KINDS for dtype in DTYPES))
def linear(name):
    """Products and their gradients, from few rows of x to more than the kernels take, against fp64."""
    import kernels_product
    import torch

    kind, dtype = name.rsplit("-", 1)
    faults = []
    for n, k in LAYERS:
        layer = layer_of(kind, n, k)
        weight = layer.dequantize(torch.float32).double()
        expect_same(weight.float(), layer_of(kind, n, k, "cpu").dequantize(torch.float32), f"{n} x {k}: the weight")
        layer = layer.to(getattr(torch, dtype))
        for m in TOKENS:
            x, dy = (torch.randn(m, size, device=DEVICE).to(getattr(torch, dtype)) for size in (k, n))
            y, dx, dbias = result_and_gradients(layer, layer, x, dy)
            found = {"y": kernels_product.fault(y, x, weight, layer.bias.detach()),
                     "dx": kernels_product.fault(dx, dy, weight.T)}  # fmt: skip
            faults += [f"{n} x {k}, m {m}: {what}: {text}" for what, text in found.items() if text]
            expect(dbias.shape == (n,) and dbias.isfinite().all(), f"{n} x {k}, m {m}: gradient of the bias")
    expect(not faults, "; ".join(faults))


@check(*KINDS)
def shapes(kind):
    """x of any dimensions, also without rows, and not contiguous."""
    import torch

    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        layer = layer_of(kind).to(dtype)
        flat = torch.randn(6, 208, device=DEVICE).to(dtype)
        expected = layer(flat)
        for x, shape in ((flat[0], (96,)), (flat.view(2, 3, 208), (2, 3, 96)), (flat[:0], (0, 96)),
                         (flat.T.contiguous().T, (6, 96))):  # fmt: skip
            y, text = layer(x), f"{dtype}, {list(x.shape)}"
            expect(y.shape == shape, f"{text} becomes {list(y.shape)}")
            rows = y.reshape(-1, 96)
            expect(torch.allclose(rows, expected[: len(rows)], atol=tolerance), f"{text}: other values than 6 x 208")


@check(*KINDS)
def module(kind):
    """Moved to the device and back, cast, copied, saved and loaded: the same bytes."""
    import torch

    here = layer_of(kind, device="cpu")
    state = {name: tensor.clone() for name, tensor in here.state_dict().items()}
    made_there, moved = layer_of(kind), copy.deepcopy(here).to(DEVICE)
    for text, layer in (("made there", made_there), ("moved", moved), ("copied", copy.deepcopy(moved)),
                        ("cast", copy.deepcopy(moved).to(torch.bfloat16).float())):  # fmt: skip
        expect({t.device.type for t in layer.state_dict().values()} <= {DEVICE, "cpu"}, f"{text}: devices")
        for name, tensor in layer.state_dict().items():
            if (text, name) != ("cast", "bias"):
                expect_same(tensor, state[name], f"{text}: {name}")
    for name, tensor in copy.deepcopy(moved).to("cpu").state_dict().items():
        expect_same(tensor, state[name], f"back: {name}")
    file = io.BytesIO()
    torch.save(moved.state_dict(), file)
    file.seek(0)
    x = torch.randn(5, 208, device=DEVICE)
    for device in (DEVICE, "cpu"):
        loaded = type(here)(208, 96, device=device)
        file.seek(0)
        loaded.load_state_dict(torch.load(file, map_location=device))
        expect_same(loaded.to(DEVICE)(x), moved(x), f"loaded on {device}")
    expect(torch.allclose(moved(x).cpu(), here(x.cpu()), atol=1e-5), "the device's product is not that of the CPU")


@check(*KINDS)
def modes(kind):
    """autocast, inference mode, activation checkpointing."""
    import torch

    layer, x, dy = layer_of(kind), torch.randn(5, 208, device=DEVICE), torch.randn(5, 96, device=DEVICE)
    in_bf16 = copy.deepcopy(layer).bfloat16()(x.bfloat16())
    with torch.autocast(DEVICE, torch.bfloat16):
        expect_same(layer(x), in_bf16, "autocast")
    expected = result_and_gradients(layer, layer, x, dy)
    with torch.inference_mode():
        expect_same(layer(x), expected[0], "inference mode")

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)

    for found, wanted in zip(result_and_gradients(checkpointed, layer, x, dy), expected):
        expect(torch.allclose(found, wanted, atol=1e-5), "activation checkpointing")


def only_on_cuda():
    if DEVICE != "cuda":
        raise LeftOut("needs a GPU")


@check(*KINDS)
def streams(kind):
    """A stream that is not the default one: the kernels are in its order."""
    only_on_cuda()
    import torch

    layer, x = layer_of(kind).bfloat16(), torch.randn(16, 208, device=DEVICE, dtype=torch.bfloat16)
    expected, doubled = layer(x), layer(2 * x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = x.clone()
        torch.cuda._sleep(100_000_000)  # cycles: x changes long after the call
        late.mul_(2)
        y = layer(late)
    stream.synchronize()
    expect_same(y, doubled, "on another stream")
    expect_same(layer(x), expected, "on the default stream")


@check(*KINDS)
def graphs(kind):
    """CUDA graphs, for few rows of x and many."""
    only_on_cuda()
    import torch

    layer = layer_of(kind).bfloat16()
    with torch.no_grad():
        for m in (1, 64, 128):
            x = torch.randn(m, 208, device=DEVICE, dtype=torch.bfloat16)
            expected = layer(-x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = layer(x)
            x.neg_()
            graph.replay()
            expect(torch.allclose(y, expected, atol=2e-2), f"m {m}: other values than without a graph")


@check(*KINDS)
def refused(kind):
    """Tensors on two devices are an exception that says so."""
    only_on_cuda()
    import torch

    layer = layer_of(kind)
    for x, weight in ((torch.ones(2, 208), layer), (torch.ones(2, 208, device=DEVICE), copy.deepcopy(layer).cpu())):
        try:
            weight(x)
        except RuntimeError as error:
            expect("device" in str(error), str(error))
        else:
            raise AssertionError(f"x on {x.device} and a weight on {weight.weight.device} are multiplied")


# -- models


def llama():
    """A model of random weights, the same each time."""
    import torch

    try:
        import transformers
    except ImportError as error:
        raise LeftOut(str(error)) from None
    # Rows of 96 and 208 weights, which are no whole blocks of 64.
    config = transformers.LlamaConfig(vocab_size=128, hidden_size=96, intermediate_size=208, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def losses_of(model, dtype=None, steps=3):
    """The losses of steps that train a LoRA adapter, under autocast if there is a dtype."""
    import torch

    try:
        import peft
    except ImportError as error:
        raise LeftOut(str(error)) from None
    device = next(model.parameters()).device
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config).train()
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_" in name:  # random numbers of the CPU, which are the same for each device
            value = torch.randn(parameter.shape) / 4 if "lora_A" in name else torch.zeros(parameter.shape)
            parameter.data = value.to(device)
    # Not Adam, to which the size of gradients does not matter.
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    ids = torch.arange(170, device=device).reshape(2, 85) * 7 % 128
    losses = []
    for _ in range(steps):
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def expect_losses(found, expected, tolerance):
    close = all(abs(a - b) <= tolerance * abs(b) for a, b in zip(found, expected))
    expect(close and found[-1] < found[0], f"the losses are {found}; on the CPU they are {expected}")
    return {"losses": found, "on_cpu": expected}


def device_map_of(device):
    return {"": 0 if device == "cuda" else device}


def with_nibble_layers(kind, device):
    import torch

    model = llama()
    for name, linear in list(model.named_modules()):
        if isinstance(linear, torch.nn.Linear) and name != "lm_head":
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, KINDS[kind](linear))
    return model.to(device)


@check(*(f"{kind}-{dtype}" for kind in ("nf4", "int8") for dtype in ("float32", "bfloat16")))
def lora(name):
    """Steps that train an adapter of a small Llama with nibble's layers, beside the same steps on the CPU."""
    import torch

    kind, dtype = name.split("-")
    autocast, tolerance = (torch.bfloat16, 2e-3) if dtype == "bfloat16" else (None, 1e-4)
    losses = {device: losses_of(with_nibble_layers(kind, device), autocast) for device in ("cpu", DEVICE)}
    return expect_losses(losses[DEVICE], losses["cpu"], tolerance)


@check("nf4", "int8")
def bitsandbytes(kind):
    """bitsandbytes' layers, while nibble's operators are behind them on the CPU: on the device they are its own."""
    import torch

    try:
        import bitsandbytes  # noqa: F401
        import transformers
    except ImportError as error:
        raise LeftOut(str(error)) from None
    from nibble import backend

    expect(backend.enable() and "bitsandbytes::quantize_4bit" in backend.replaced(), "the operators are not replaced")
    options = {"nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
                       "bnb_4bit_compute_dtype": torch.float32}, "int8": {"load_in_8bit": True}}[kind]  # fmt: skip
    losses = {}
    with tempfile.TemporaryDirectory() as directory:
        llama().save_pretrained(directory)
        for device in ("cpu", DEVICE):
            config = transformers.BitsAndBytesConfig(**options)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                directory, quantization_config=config, device_map=device_map_of(device)
            )
            losses[device] = losses_of(model)
    backend.disable()
    return expect_losses(losses[DEVICE], losses["cpu"], 2e-3)


@check("nf4", "int8")
def directory(kind):
    """A directory that is converted on the device, opened there and on the CPU; its embeddings are NF4."""
    import nibble
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        plain, here, there = (pathlib.Path(scratch, name) for name in ("plain", "here", "there"))
        llama().save_pretrained(plain)
        for out, device in ((here, "cpu"), (there, DEVICE)):
            nibble.convert(plain, out, to=kind, embeddings="nf4", allow_nibble_only=True, device=device)
        expect((here / "model.safetensors").read_bytes() == (there / "model.safetensors").read_bytes(),
               "the bytes that the device converts to are not those of the CPU")  # fmt: skip
        ids = torch.arange(17)[None] * 7 % 128
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
            models = [nibble.load(there, dtype=dtype, compute_dtype=dtype, device_map=device_map).eval()
                      for device_map in ("cpu", device_map_of(DEVICE))]  # fmt: skip
            with torch.no_grad():
                expected, found = (model(ids.to(model.device)).logits.cpu().float() for model in models)
            largest, scale = (found - expected).abs().max().item(), expected.abs().max().item()
            expect(largest <= tolerance * scale, f"{dtype}: logits differ by {largest:.3g}, the largest is {scale:.3g}")
        generated = models[1].generate(ids.to(models[1].device), max_new_tokens=4, do_sample=False)
        expect(generated.device.type == DEVICE and generated.shape[1] <= 21, f"generates {list(generated.shape)}")


# -- torch.compile, which takes longest


def backend_of_compile():
    """inductor, if there is what its kernels need: triton, a C compiler and Python's headers."""
    headers = pathlib.Path(sysconfig.get_path("include"), "Python.h")
    there = importlib.util.find_spec("triton") and shutil.which("cc") and headers.is_file()
    return "inductor" if DEVICE == "cuda" and there else "aot_eager"


@check(*KINDS)
def compiled(kind):
    """torch.compile(fullgraph=True), forward and backward, with few rows of x and with many."""
    import torch

    torch.compiler.reset()
    backend = backend_of_compile()
    model = torch.nn.Sequential(layer_of(kind), torch.nn.Tanh(), layer_of(kind, 64, 96))
    traced = torch.compile(model, fullgraph=True, backend=backend)
    for m in (5, 70):
        x, dy = torch.randn(m, 208, device=DEVICE), torch.randn(m, 64, device=DEVICE)
        for found, wanted in zip(*(result_and_gradients(f, model[0], x, dy) for f in (traced, model))):
            expect(torch.allclose(found, wanted, atol=1e-4), f"{m} rows: differs from what is not compiled")
    return {"backend": backend}


# -- the program


def device_is_lost():
    import torch

    try:
        if DEVICE == "cuda":
            torch.cuda.synchronize()
            torch.zeros(1, device=DEVICE).item()
    except Exception:
        return True
    return False


def run(name):
    """The line of a check."""
    import torch

    function, argument = CHECKS[name]
    begin = time.perf_counter()
    try:
        torch.manual_seed(0)
        more = function(argument) or {}
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        line = {"ok": True, **more}
    except LeftOut as reason:
        line = {"left_out": str(reason)}
    except Exception as error:
        line = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:2000]}
    return {"name": f"python/{name}", **line, "seconds": round(time.perf_counter() - begin, 2)}


def main():
    global DEVICE
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), default=DEVICE)
    parser.add_argument("--only", metavar="RE", default="", help="checks whose name matches")
    parser.add_argument("--begin", metavar="CHECK", default="", help="the first check")
    parser.add_argument("--failed", action="store_true", help="an earlier check failed")
    options = parser.parse_args()
    DEVICE, failed = options.device, options.failed
    if DEVICE == "cuda":
        kernels_gpu.end_without_gpu()
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    try:
        import torch
    except ImportError as error:
        print(f"left out: {error}")
        return kernels_gpu.NOT_THERE
    if not PACKAGE.is_dir():
        print(f"left out: there is no {PACKAGE}")
        return kernels_gpu.NOT_THERE
    try:
        import nibble.nn  # noqa: F401: loads the operators

        print(json.dumps({"name": "python/versions", "python": sys.version.split()[0], "torch": torch.__version__,
                          "nibble": nibble.__version__, "package": str(nibble.__path__[0])}), flush=True)  # fmt: skip
    except Exception as error:
        print(json.dumps({"name": "python/import", "error": f"{type(error).__name__}: {error}"}), flush=True)
        return 1
    names = [name for name in CHECKS if re.search(options.only, name)]
    if options.begin:
        names = names[names.index(options.begin) :]
    for name, following in zip(names, [*names[1:], None]):
        line = run(name)
        print(json.dumps(line), flush=True)
        failed = failed or "error" in line
        if "error" in line and following and device_is_lost():
            command = [sys.executable, __file__, "--device", DEVICE, "--only", options.only, "--begin", following]
            os.execv(sys.executable, [*command, "--failed"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
