"""fp16 and bf16: equal to torch's casts, and the file to what safetensors writes of them."""

import json

import numpy as np
import pytest
import stored
import torch
from models import DTYPES
from safetensors.torch import save_file

TO = {"fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = {"fp16": "F16", "bf16": "BF16"}


def finite(bits, dtype):
    values = torch.from_numpy(bits).view(dtype)
    return values[torch.isfinite(values)]


def values(dtype):
    """Finite values that show every rounding: all 16-bit values; in fp32 the ties between 16-bit values and what
    lies beside them, and random bits."""
    if dtype != torch.float32:
        return finite(np.arange(1 << 16, dtype=np.uint16).view(np.int16), dtype)
    parts = []
    for narrow in TO.values():
        grid = finite(np.arange(1 << 16, dtype=np.uint16).view(np.int16), narrow).float().sort().values
        ties = ((grid[:-1].double() + grid[1:].double()) / 2).float()
        parts += [grid, ties, torch.nextafter(ties, torch.tensor(torch.inf)),
                  torch.nextafter(ties, torch.tensor(-torch.inf))]  # fmt: skip
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.int32)
    return torch.cat([*parts, finite(random, torch.float32)])


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_to_torch(nibble, tmp_path, dtype, to):
    weight = values(DTYPES[dtype])
    if to == "fp16":
        weight = weight[torch.isfinite(weight.half())]
    # odd sizes: nothing may depend on the vectors of a CPU
    tensors = {"long.weight": weight, "a.weight": weight[:77].reshape(7, 11).clone(), "b.bias": weight[-3:].clone(),
               "c.scalar": weight[100].clone(), "d.empty": weight[:0].clone(),
               "e.ids": torch.arange(9), "f.mask": torch.tensor([True, False])}  # fmt: skip
    save_file(tensors, tmp_path / "in.safetensors", metadata={"format": "pt"})
    out = nibble.convert(tmp_path / "in.safetensors", to)

    cast = {name: t.to(TO[to]) if t.is_floating_point() else t for name, t in tensors.items()}
    parts = stored.read(out)
    for name, tensor in cast.items():
        assert parts[name].data == tensor.reshape(-1).view(torch.uint8).numpy().tobytes(), name
    save_file(cast, tmp_path / "torch.safetensors", metadata={"format": "pt"})
    assert out.read_bytes() == (tmp_path / "torch.safetensors").read_bytes()


def test_fp64_is_rounded_as_torch_does(nibble, tmp_path):
    weight = torch.randn(501, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    save_file({"w.weight": weight}, tmp_path / "in.safetensors")
    for to, dtype in TO.items():
        parts = stored.read(nibble.convert(tmp_path / "in.safetensors", to))
        assert parts["w.weight"].data == weight.to(dtype).view(torch.uint8).numpy().tobytes()


def test_nan_and_infinity_are_cast(nibble, tmp_path):
    weight = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf, -2.0])
    save_file({"w.weight": weight}, tmp_path / "in.safetensors")
    for to, dtype in TO.items():
        out = nibble.convert(tmp_path / "in.safetensors", to)
        ours = torch.frombuffer(bytearray(stored.read(out)["w.weight"].data), dtype=dtype)
        assert torch.equal(ours.isnan(), weight.isnan())
        assert torch.equal(ours[~weight.isnan()], weight[~weight.isnan()].to(dtype))
        assert nibble.warnings == ["tensor 'w.weight': 1 NaN, 2 infinite"]


# 65519.996 still rounds to 65504, 65520 is the first value that does not.
LARGE = torch.tensor([65504.0, 65519.996, 65520.0, 1e6, -65520.0, -3e38, 1.0])


@pytest.fixture
def overflowing(tmp_path):
    save_file({"fine.weight": torch.ones(3), "large.weight": LARGE}, tmp_path / "large.safetensors")
    return tmp_path / "large.safetensors"


def test_overflow_is_an_error(nibble, overflowing):
    message = nibble.fails(3, overflowing, "fp16")
    assert message == (f"{overflowing}: tensor 'large.weight': 4 of 7 weights exceed 65504, the largest fp16, the "
                       "first at 2; see --on-overflow")  # fmt: skip


@pytest.mark.parametrize("policy", ["clamp", "keep"])
def test_overflow_is_stored_as_asked(nibble, overflowing, policy):
    out = nibble.convert(overflowing, "fp16", "--on-overflow", policy)
    expected = LARGE.half()
    if policy == "clamp":
        expected = LARGE.clamp(-65504, 65504).half()
    assert stored.read(out)["large.weight"].data == expected.view(torch.uint8).numpy().tobytes()
    manifest = json.loads(out.with_name(out.name + ".nibble.json").read_text())
    findings = {tensor["name"]: tensor["findings"] for tensor in manifest["tensors"]}
    assert findings["large.weight"]["overflow"] == 4
    assert findings["fine.weight"]["overflow"] == 0


@pytest.mark.parametrize("policy", [(), ("--on-overflow", "clamp"), ("--on-overflow", "error")])
def test_bf16_overflow(nibble, tmp_path, policy):
    weight = torch.tensor([1.0, 3.4e38, -torch.inf, -3.4e38])
    save_file({"w.weight": weight}, tmp_path / "in.safetensors")
    if "error" in policy:
        assert "exceed 3.39e38, the largest bf16" in nibble.fails(3, tmp_path / "in.safetensors", "bf16", *policy)
        return
    largest = torch.finfo(torch.bfloat16).max
    expected = torch.tensor([1.0, largest, -torch.inf, -largest]) if policy else weight
    out = nibble.convert(tmp_path / "in.safetensors", "bf16", *policy)
    assert stored.read(out)["w.weight"].data == expected.bfloat16().view(torch.uint8).numpy().tobytes()


def test_bf16_does_not_overflow(nibble, overflowing):
    out = nibble.convert(overflowing, "bf16")
    assert stored.read(out)["large.weight"].data == LARGE.bfloat16().view(torch.uint8).numpy().tobytes()


def test_underflow_is_counted(nibble, tmp_path):
    weight = torch.tensor([1e-9, 0.0, 6e-8, 1e-6, 1.0])  # lost, zero, subnormal, subnormal, normal
    save_file({"w.weight": weight}, tmp_path / "in.safetensors")
    out = nibble.convert(tmp_path / "in.safetensors", "fp16")
    tensor = json.loads(out.with_name(out.name + ".nibble.json").read_text())["tensors"][0]
    assert (tensor["findings"]["underflow"], tensor["findings"]["subnormal"]) == (1, 2)
