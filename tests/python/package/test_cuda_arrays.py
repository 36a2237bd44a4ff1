"""quantize_nf4() and its like on CUDA tensors, by a libnibble_cuda whose device is simulated in ordinary memory.

The tensors are therefore on the CPU; what torch says of its device and stream is replaced. On a device it has not run.
"""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import types

import nibble
import numpy as np
import pytest
from nibble import _cuda, _memory

torch = pytest.importorskip("torch")

LIBRARY = os.environ.get(
    "NIBBLE_SIMULATED_CUDA", str(pathlib.Path(__file__).parents[3] / "build/release/tests/libnibble_cuda_simulated.so")
)


@pytest.fixture
def cuda(monkeypatch):
    """Tensors count as CUDA tensors. Its value: the devices and streams that were asked for."""
    if not pathlib.Path(LIBRARY).is_file():
        pytest.skip(f"{LIBRARY} does not exist")
    asked = []

    def init(self, value, name):
        original(self, value, name)
        self.device = "cuda:0"
        if self.bytes > 0:  # kernels may touch these bytes and no others
            ctypes.CDLL(LIBRARY).nibble_simulate_memory(ctypes.c_void_p(self.pointer), ctypes.c_size_t(self.bytes))

    original = _memory.TorchMemory.__init__
    monkeypatch.setenv("NIBBLE_CUDA_LIBRARY", LIBRARY)
    monkeypatch.setattr(_memory.TorchMemory, "__init__", init)
    monkeypatch.setattr(torch.cuda, "device", lambda device: asked.append(device) or contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=0))
    _cuda.library.cache_clear()
    yield asked
    _cuda.library.cache_clear()


def parts_of(quantized):
    return {f.name: getattr(quantized, f.name) for f in dataclasses.fields(quantized)}


def assert_same(found, expected):
    for name, part in parts_of(expected).items():
        other = getattr(found, name)
        if isinstance(part, np.ndarray):
            assert np.array_equal(other.numpy().reshape(part.shape), part), name
        else:
            assert other == part, name


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(3, 0), (1,), (7, 13), (40, 1000)])
def test_the_bytes_are_those_of_the_cpu(cuda, shape, dtype, nested):
    weight = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for format in ("nf4", "fp4"):
        quantize, dequantize = (getattr(nibble, f"{verb}_{format}") for verb in ("quantize", "dequantize"))
        expected = quantize(weight, nested=nested)
        found = quantize(torch.from_numpy(weight), nested=nested)
        assert_same(found, expected)
        for to in ("float32", "float16"):
            assert np.array_equal(dequantize(found, dtype=to).numpy(), dequantize(expected, dtype=to))
    if len(shape) == 2:
        expected, found = nibble.quantize_int8(weight), nibble.quantize_int8(torch.from_numpy(weight))
        assert_same(found, expected)
        assert np.array_equal(nibble.dequantize_int8(found).numpy(), nibble.dequantize_int8(expected))
    assert len(cuda) == 0 if weight.size == 0 else set(cuda) == {torch.device("cpu")}


def test_a_nan_is_refused_or_counts_as_zero(cuda):
    weight = torch.ones(2, 64)
    weight[1, 3] = torch.nan
    with pytest.raises(nibble.BadInputError, match="^weight: 1 of 2 blocks have a NaN or an infinity$"):
        nibble.quantize_nf4(weight)
    with pytest.raises(nibble.BadInputError, match="^weight: 1 of 2 rows have a NaN"):
        nibble.quantize_int8(weight)
    decoded = nibble.dequantize_nf4(nibble.quantize_nf4(weight, nonfinite="quantize"))
    assert decoded[1, 3] == 0 and decoded.sum() == 127


def test_double_quantization_makes_no_infinities(cuda, near_infinity):
    weight = torch.from_numpy(near_infinity)
    with pytest.raises(nibble.BadInputError, match="^the weights are so close to the largest fp32 value that double"):
        nibble.quantize_nf4(weight, nested=True)
    assert_same(nibble.quantize_nf4(weight), nibble.quantize_nf4(near_infinity))
    # Values this large are decoded for the check, and some of them are finite.
    large = np.tile(near_infinity, (65, 1)) / 2
    assert_same(nibble.quantize_nf4(torch.from_numpy(large), nested=True), nibble.quantize_nf4(large, nested=True))


def test_parts_of_other_sizes_are_refused(cuda):
    weight = torch.ones(3, 64)
    for quantized, dequantize in (
        (nibble.quantize_nf4(weight), nibble.dequantize_nf4),
        (nibble.quantize_nf4(weight, nested=True), nibble.dequantize_nf4),
        (nibble.quantize_int8(weight), nibble.dequantize_int8),
    ):
        for name, part in parts_of(quantized).items():
            if not isinstance(part, torch.Tensor) or name == "codes":  # which says what shape it is
                continue
            longer = torch.cat([part.flatten(), part.flatten()[:1]])
            have, need = (t.numel() * t.element_size() for t in (longer, part))
            with pytest.raises(nibble.UsageError, match=f"^{name} has {have} bytes, not {need}$"):
                dequantize(dataclasses.replace(quantized, **{name: longer}))


def test_parts_on_another_device_are_refused(cuda, monkeypatch):
    quantized = nibble.quantize_nf4(torch.ones(3, 64))
    marked = _memory.TorchMemory.__init__

    def init(self, value, name):
        marked(self, value, name)
        self.device = "cpu" if name == "absmax" else "cuda:0"

    monkeypatch.setattr(_memory.TorchMemory, "__init__", init)
    with pytest.raises(nibble.UsageError, match="^absmax is on cpu, and packed on cuda:0$"):
        nibble.dequantize_nf4(quantized)


def test_what_the_kernels_refuse_is_an_exception(cuda, monkeypatch):
    monkeypatch.setattr(_memory.TorchMemory, "dtype_number", 7, raising=False)
    with pytest.raises(nibble.UsageError, match="7"):
        nibble.quantize_nf4(torch.ones(3, 64))


@pytest.mark.parametrize(("library", "says"), [
    (None, "^the weight is on a CUDA device, and nibble was built without CUDA$"),
    ("libnibble_cuda_of_tomorrow.so", "libnibble_cuda_of_tomorrow.so cannot be loaded: .*nibble_kernels_version"),
    ("nowhere.so", "nowhere.so cannot be loaded: "),
])  # fmt: skip
def test_libraries_that_do_not_fit(cuda, monkeypatch, library, says):
    if library is None:
        monkeypatch.delenv("NIBBLE_CUDA_LIBRARY")
        monkeypatch.setattr(_cuda._library, "find", lambda *names: None)
    else:
        monkeypatch.setenv("NIBBLE_CUDA_LIBRARY", str(pathlib.Path(LIBRARY).with_name(library)))
    with pytest.raises(nibble.Error, match=says):
        nibble.quantize_nf4(torch.ones(3, 64))


def test_a_library_of_another_version_is_refused(cuda, monkeypatch):
    monkeypatch.setattr(_cuda, "KERNELS_VERSION", 1)
    with pytest.raises(nibble.Error, match=r"has version \d+ of the kernels' interface, this package needs 1$"):
        nibble.quantize_nf4(torch.ones(3, 64))


def test_the_version_is_that_of_the_header():
    header = (pathlib.Path(__file__).parents[3] / "include/nibble/kernels.h").read_text()
    assert f"#define NIBBLE_KERNELS_VERSION {_cuda.KERNELS_VERSION}\n" in header
