"""What `nibble measure` says against torch, for directories that transformers and bitsandbytes saved themselves, too.

The weights behind a quantized directory are those of stored.py's decoder: bitsandbytes' own is wrong on some
processors for rows that are no multiple of the block size (docs/model-directories.md).
"""

import json
import math

import numpy as np
import pytest
import stored
import torch
from loading import quantize_on_the_fly
from models import DTYPES, save_llama
from safetensors.torch import save_file
from transformers import BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

BNB = {
    "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "nf4-plain": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "fp4": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_use_double_quant=True),
    "int8": dict(load_in_8bit=True),
}
# Sums of 16 fp32 products: include/nibble/metrics.hpp
TOLERANCE = 1e-6


def measure(nibble, *arguments):
    done = nibble.run("measure", *arguments, "--json", "--progress", "none")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def figures(reference, test):
    """What the header defines, by torch in fp64."""
    w, t = reference.double().flatten(), test.double().flatten()
    e = t - w
    there = w != 0
    result = {
        "mae": e.abs().mean(),
        "rmse": e.square().mean().sqrt(),
        "max_abs": e.abs().max(),
        "rel_rmse": (e.square().sum() / w.square().sum()).sqrt(),
        "sqnr_db": 10 * torch.log10(w.square().sum() / e.square().sum()),
        "cosine": torch.nn.functional.cosine_similarity(w, t, dim=0),
        "mean_rel": (e[there] / w[there]).abs().mean(),
    }
    return {name: value.item() for name, value in result.items()}


def check_weights(entry, weights):
    w = weights.double().flatten()
    assert entry["weights"] == w.numel() and math.prod(entry["shape"]) == w.numel()
    assert entry["mean"] == pytest.approx(w.mean().item(), abs=TOLERANCE * w.square().mean().sqrt().item())
    assert entry["rms"] == pytest.approx(w.square().mean().sqrt().item(), rel=TOLERANCE)
    x = w - w.mean()
    if x.square().mean() > 1e-9 * w.square().mean():
        kurtosis = x.pow(4).mean() / x.square().mean() ** 2
        assert entry["kurtosis"] == pytest.approx(kurtosis.item(), rel=10 * TOLERANCE)
    blocks = torch.nn.functional.pad(w.abs(), (0, -w.numel() % 64)).reshape(-1, 64).amax(1)
    found = entry["absmax"]
    assert (found["min"], found["max"]) == pytest.approx((blocks.min().item(), blocks.max().item()), rel=1e-7)
    assert found["mean"] == pytest.approx(blocks.mean().item(), rel=1e-7)
    assert found["std"] == pytest.approx(blocks.std(unbiased=False).item(), abs=1e-6 * blocks.mean().item())
    if weights.dim() == 2:
        energy = weights.double().square().sum(0)
        outliers = energy >= 36 * energy.sort().values[energy.numel() // 2]
        assert entry["outlier_columns"] == outliers.sum().item()
        assert entry["outlier_energy"] == pytest.approx((energy[outliers].sum() / energy.sum()).item(), abs=1e-5)


def check_error(entry, weights, test):
    expected = figures(weights, test)
    if expected["rmse"] == 0:
        assert entry["rmse"] == 0 and entry["cosine"] == 1 and entry["sqnr_db"] is None
        return
    for name, value in expected.items():
        assert entry[name] == pytest.approx(value, rel=TOLERANCE), name
    error = (test.double() - weights.double()).abs().flatten()
    assert error[entry["max_abs_at"]] == pytest.approx(expected["max_abs"], rel=TOLERANCE)
    squares = torch.nn.functional.pad(error.square(), (0, -error.numel() % 64)).reshape(-1, 64).sum(1)
    at = entry["worst_block"]["at"]
    assert squares[at // 64].item() == pytest.approx(squares.max().item(), rel=TOLERANCE) and at % 64 == 0
    # of a block of 64, or of all there are
    assert entry["worst_block"]["rmse"] == pytest.approx((squares.max() / min(64, error.numel())).sqrt().item(), rel=TOLERANCE)
    binned = {b if b == "zero" else int(b): count for b, count in entry["error_histogram"]}
    exponents, counts = torch.frexp(error[error > 0]).exponent.unique(return_counts=True)
    expected = dict(zip((exponents - 1).tolist(), counts.tolist()))
    if (error == 0).any():
        expected["zero"] = int((error == 0).sum())
    assert binned == expected


def check(document, reference, tests, conv1d=False):
    """Every figure of the document; `reference` and `tests` are directories or files. Quantized Conv1D matrices are
    transposed, and so is the reference that they are compared with."""
    parts = stored.read(reference)
    for number, test in enumerate(tests):
        test_parts = stored.read(test)
        found = document["tests"][number]
        assert found["missing"] == []
        assert found["bytes"] == sum(len(part.data) for part in test_parts.values())
        bits = total = 0
        for weights_entry, entry in zip(document["reference"]["tensors"], found["tensors"], strict=True):
            name = weights_entry["name"]
            weights = torch.from_numpy(np.array(stored.decode(parts, name)))
            decoded = torch.from_numpy(np.array(stored.decode(test_parts, name)))
            if conv1d and entry["outcome"] == "quantized":
                weights = weights.T.contiguous()
            assert tuple(weights_entry["shape"]) == weights.shape == decoded.shape
            check_weights(weights_entry, weights)
            check_error(entry, weights, decoded)
            own = [name, *(part for part in test_parts if part.startswith(name + "."))]
            if entry["codec"] == "int8":
                module = name.removesuffix("weight")
                own += [module + "SCB", module + "weight_format"]
            bytes_of_parts = sum(len(test_parts[part].data) for part in own if part in test_parts)
            assert entry["bytes"] == bytes_of_parts
            assert entry["bits_per_weight"] == pytest.approx(8 * bytes_of_parts / weights.numel())
            bits, total = bits + 8 * bytes_of_parts, total + weights.numel()
        assert found["total"]["weights"] == document["reference"]["weights"] == total
        assert found["total"]["bits_per_weight"] == pytest.approx(bits / total)


@pytest.fixture(scope="module")
def llamas(tmp_path_factory):
    """{dtype: directory} of a plain model."""
    return {dtype: save_llama(tmp_path_factory.mktemp("llama"), dtype) for dtype in DTYPES}


@pytest.fixture(scope="module")
def by_bitsandbytes(llamas, tmp_path_factory):
    """{format: a directory that transformers saved}, of the bf16 model."""
    made = {}
    for name, settings in BNB.items():
        model = quantize_on_the_fly(llamas["bf16"], BitsAndBytesConfig(**settings), dtype=torch.bfloat16)
        made[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(made[name])
    return made


@pytest.mark.parametrize("target", ["nf4", "fp4 --no-double-quant", "nf4 --block-size 4096", "int8", "fp16", "bf16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions(nibble, llamas, dtype, target):
    converted = nibble.convert(llamas[dtype], *target.split())
    check(measure(nibble, llamas[dtype], converted), llamas[dtype], [converted])


@pytest.mark.parametrize("target", BNB)
def test_what_bitsandbytes_saved(nibble, llamas, by_bitsandbytes, target):
    document = measure(nibble, llamas["bf16"], by_bitsandbytes[target])
    check(document, llamas["bf16"], [by_bitsandbytes[target]])
    codecs = [tensor["codec"].partition(":")[0] for tensor in document["tests"][0]["tensors"]]
    assert codecs.count(target.split("-")[0]) == 14  # the linear layers


def test_quantized_against_quantized(nibble, by_bitsandbytes):
    others = [by_bitsandbytes[target] for target in ("nf4-plain", "fp4", "int8")]
    check(measure(nibble, by_bitsandbytes["nf4"], *others), by_bitsandbytes["nf4"], others)


def test_plain_against_quantized(nibble, llamas, by_bitsandbytes):
    """The quantized one as the reference, whose weights are then what is missed."""
    check(measure(nibble, by_bitsandbytes["fp4"], llamas["bf16"]), by_bitsandbytes["fp4"], [llamas["bf16"]])


def test_formats_are_what_convert_writes(nibble, llamas):
    converted = [nibble.convert(llamas["bf16"], "nf4", "--block-size", 128), nibble.convert(llamas["bf16"], "int8")]
    document = measure(nibble, llamas["bf16"], "--to", "nf4:block-size=128", "--to", "int8")
    check(document, llamas["bf16"], converted)


def test_conv1d(nibble, tmp_path):
    """GPT-2 stores matrices transposed, and quantized ones as they are multiplied."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=128, n_positions=32))
    model.save_pretrained(tmp_path / "plain")
    quantized = quantize_on_the_fly(tmp_path / "plain", BitsAndBytesConfig(**BNB["nf4"]))
    quantized.save_pretrained(tmp_path / "theirs")
    tests = [tmp_path / "theirs", nibble.convert(tmp_path / "plain", "nf4")]
    document = measure(nibble, tmp_path / "plain", *tests)
    check(document, tmp_path / "plain", tests, conv1d=True)
    kinds = {kind["kind"]: kind for kind in document["tests"][0]["kinds"]}
    assert kinds["attn.c_attn"]["sqnr_db"] == pytest.approx(20.7, abs=0.5)
    assert kinds["attn.c_attn"]["tensors"] == 2


def test_nonfinite_and_odd_shapes(nibble, tmp_path):
    generator = torch.Generator().manual_seed(1)
    weights = {f"w{i}.weight": torch.randn(shape, generator=generator)
               for i, shape in enumerate([(1,), (65,), (3, 1367), (130, 1031), (2, 3, 5)])}  # fmt: skip
    tests = {name: weight + 0.01 * torch.randn(weight.shape, generator=generator) for name, weight in weights.items()}
    save_file(weights, tmp_path / "ref.safetensors")
    save_file(tests, tmp_path / "test.safetensors")
    check(measure(nibble, tmp_path / "ref.safetensors", tmp_path / "test.safetensors"), tmp_path / "ref.safetensors",
          [tmp_path / "test.safetensors"])  # fmt: skip
    weights["w3.weight"][7, 9] = torch.nan
    tests["w3.weight"][8, 100] = torch.inf
    tests["w3.weight"][129, 1030] = -torch.inf
    save_file(weights, tmp_path / "ref.safetensors")
    save_file(tests, tmp_path / "test.safetensors")
    document = measure(nibble, tmp_path / "ref.safetensors", tmp_path / "test.safetensors")
    names = [tensor["name"] for tensor in document["reference"]["tensors"]]
    entry = document["tests"][0]["tensors"][names.index("w3.weight")]
    assert (entry["nan"], entry["inf"]) == (0, 2)
    assert document["reference"]["tensors"][names.index("w3.weight")]["nan"] == 1
    finite = weights["w3.weight"].isfinite() & tests["w3.weight"].isfinite()
    for name, value in figures(weights["w3.weight"][finite], tests["w3.weight"][finite]).items():
        assert entry[name] == pytest.approx(value, rel=TOLERANCE), name
