"""Every stored part against bitsandbytes itself, bit for bit.

Two deviations are deliberate, and checked against their own definition (stored.py): the last, partial block is
multiplied by the reciprocal like every other, where bitsandbytes' CPU code divides; and absmax values are quantized
to the nearest entry of the map, as on CUDA, where bitsandbytes' CPU code looks them up in a table of 65536 steps.
"""

import json

import bitsandbytes
import bitsandbytes.functional as F
import numpy as np
import pytest
import stored
import torch
from models import DTYPES
from safetensors.torch import save_file

BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)

# Even and odd, blocks that end with the rows and blocks that lie across them, fewer weights than a block.
SHAPES = ((1, 1), (1, 2), (3, 5), (1, 63), (64, 1), (1, 65), (7, 96), (33, 80), (5, 129), (31, 344), (64, 128),
          (3, 4099), (130, 1031))  # fmt: skip


def matrices(dtype):
    """{name: matrix}: random ones of all scales, and those where formulas go wrong."""
    generator = torch.Generator().manual_seed(int(torch.finfo(dtype).bits))

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    result = {}
    for i, shape in enumerate(SHAPES):
        result[f"layers.{i}.proj.weight"] = normal(*shape) * 10.0 ** (i % 6 - 4)
    zero_rows = normal(48, 256)
    zero_rows[3:11] = 0
    zero_rows[20, 64:128] = -0.0
    result["zeros.rows.proj.weight"] = zero_rows
    result["zeros.all.proj.weight"] = torch.zeros(7, 67)
    smallest = torch.finfo(dtype).smallest_normal
    result["subnormal.proj.weight"] = normal(16, 512) * smallest * 0.1
    result["subnormal.absmax.proj.weight"] = normal(300, 64).sign() * smallest  # below 1e-38 in bf16 and fp32? not fp16
    result["outliers.proj.weight"] = normal(64, 64).index_fill(1, torch.tensor([3]), 900.0)
    result["equal.proj.weight"] = torch.full((70, 256), 0.375)  # all absmax values are their mean
    # every threshold, its neighbours, and their negatives; absmax 1 leaves them as they are
    edges = []
    for codec in stored.CODEBOOK:
        values = stored.CODEBOOK[codec][stored.ASCENDING[codec]]
        middle = (values[:-1] + values[1:]) / np.float32(2)
        edges += [middle, np.nextafter(middle, np.float32(9)), np.nextafter(middle, np.float32(-9))]
    edges = np.concatenate(edges)
    edges = np.concatenate([edges, -edges])
    rows = np.zeros((-(-edges.size // 31), 32), np.float32)
    rows[:, 0] = 1
    rows[:, 1:].flat[: edges.size] = edges
    result["thresholds.proj.weight"] = torch.from_numpy(rows)
    return {name: matrix.to(dtype) for name, matrix in result.items()}


@pytest.fixture(scope="module", params=DTYPES)
def source(request, tmp_path_factory):
    weights = matrices(DTYPES[request.param])
    path = tmp_path_factory.mktemp("bytes") / f"{request.param}.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    return path, weights


def same(name, ours, theirs):
    """Equal type, shape and bytes, where `theirs` is a tensor."""
    data = theirs.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    assert ours.shape == tuple(theirs.shape), name
    assert ours.dtype == {torch.uint8: "U8", torch.int8: "I8", torch.float32: "F32"}[theirs.dtype], name
    if ours.data != data:
        a, b = np.frombuffer(ours.data, np.uint8), np.frombuffer(data, np.uint8)
        different = np.flatnonzero(a != b)
        pytest.fail(f"{name}: {different.size} of {a.size} bytes differ, the first at {different[0]}: "
                    f"{a[different[0]]:#x}, bitsandbytes has {b[different[0]]:#x}")  # fmt: skip


def expected_four_bit(weight, codec, blocksize):
    """(packed, absmax) by bitsandbytes for all whole blocks; the last one is by definition."""
    flat = weight.reshape(-1)
    whole = flat.numel() - flat.numel() % blocksize
    packed, absmax = torch.empty(0, dtype=torch.uint8), torch.empty(0)
    if whole:
        packed, state = F.quantize_4bit(flat[:whole], blocksize=blocksize, quant_type=codec)
        packed, absmax = packed.reshape(-1), state.absmax
    if whole < flat.numel():
        codes, largest = stored.four_bit_block(flat[whole:].float().numpy(), codec)
        packed = torch.cat([packed, torch.from_numpy(stored.pack(codes, codec))])
        absmax = torch.cat([absmax, torch.tensor([largest])])
    return packed.reshape(-1, 1), absmax


@pytest.mark.parametrize("blocksize", BLOCK_SIZES)
@pytest.mark.parametrize("double_quant", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize("codec", stored.CODEBOOK)
def test_four_bit(nibble, source, codec, double_quant, blocksize):
    path, weights = source
    options = [] if double_quant else ["--no-double-quant"]
    parts = stored.read(nibble.convert(path, codec, "--tensor", f".*={codec}", "--block-size", blocksize, *options))

    for name, weight in weights.items():
        packed, absmax = expected_four_bit(weight, codec, blocksize)
        # names, shapes and the text of the state are those of bitsandbytes' own packing
        _, state = F.quantize_4bit(weight, blocksize=blocksize, quant_type=codec, compress_statistics=double_quant)
        theirs = {f"{name}.{key}": value for key, value in state.as_dict(packed=True).items()}
        assert {k for k in parts if k.startswith(name)} == {name, *theirs}

        same(name, parts[name], packed)
        same(name, parts[f"{name}.quant_map"], theirs[f"{name}.quant_map"])
        text_name = f"{name}.quant_state.bitsandbytes__{codec}"
        text = parts[text_name].data
        if not double_quant:
            same(name, parts[f"{name}.absmax"], absmax)
            same(name, parts[text_name], theirs[text_name])
            continue

        same(name, parts[f"{name}.nested_quant_map"], theirs[f"{name}.nested_quant_map"])
        offset = stored.nested_offset(absmax.numpy())
        codes, largest = stored.nested(absmax.numpy(), offset, parts[f"{name}.nested_quant_map"].array(np.float32))
        same(name, parts[f"{name}.absmax"], torch.from_numpy(codes))
        same(name, parts[f"{name}.nested_absmax"], torch.from_numpy(largest))
        # the offset is a text, padded with spaces to its greatest length
        state.offset = torch.tensor(offset)
        expected = state.as_dict(packed=True)[f"quant_state.bitsandbytes__{codec}"].numpy().tobytes()
        assert text.rstrip(b" ") == expected
        assert parts[text_name].dtype == "U8" and parts[text_name].shape == (len(text),)
        assert json.loads(text)["nested_offset"] == float(offset)


def test_nested_is_as_near_as_bitsandbytes(nibble, source):
    """Beside the definition: what either library restores is equally far from the absmax values."""
    path, weights = source
    name = "layers.12.proj.weight"
    parts = stored.read(nibble.convert(path, "nf4", "--tensor", ".*=nf4"))
    state = json.loads(parts[f"{name}.quant_state.bitsandbytes__nf4"].data)
    _, theirs = F.quantize_4bit(weights[name], compress_statistics=True, quant_type="nf4")
    _, absmax = expected_four_bit(weights[name], "nf4", 64)
    restored = F.dequantize_blockwise(theirs.absmax, theirs.state2) + theirs.offset
    scale = np.repeat(parts[f"{name}.nested_absmax"].array(np.float32), 256)[: absmax.numel()]
    ours = parts[f"{name}.nested_quant_map"].array(np.float32)[parts[f"{name}.absmax"].array(np.uint8)] * scale
    ours = ours + np.float32(state["nested_offset"])
    error_ours = np.abs(ours - absmax.numpy())
    error_theirs = np.abs(restored.numpy() - absmax.numpy())
    assert np.sqrt((error_ours**2).mean()) <= 1.001 * np.sqrt((error_theirs**2).mean())


def test_int8(nibble, source):
    path, weights = source
    parts = stored.read(nibble.convert(path, "int8", "--tensor", ".*=int8"))
    assert len(parts) == 3 * len(weights)
    for name, weight in weights.items():
        module = name.removesuffix("weight")
        theirs = bitsandbytes.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False).to("cpu")
        same(name, parts[name], theirs.data)
        same(name, parts[module + "SCB"], theirs.SCB)
        same(name, parts[module + "weight_format"], torch.tensor(0, dtype=torch.uint8))


def test_int8_ties_go_to_even(nibble, tmp_path):
    # absmax 127 makes the scale 1; in fp16 halves are common
    row = torch.tensor([[127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -126.5]])
    save_file({"ties.proj.weight": row}, tmp_path / "ties.safetensors")
    parts = stored.read(nibble.convert(tmp_path / "ties.safetensors", "int8", "--tensor", ".*=int8"))
    assert parts["ties.proj.weight"].array(np.int8).tolist() == [127, 0, 2, 2, 0, -2, 126, -126]


def test_bytes_do_not_depend_on_threads_or_memory(nibble, tmp_path, any_codec):
    # 3 million weights in rows that fit nothing: several chunks
    weight = torch.randn(1531, 2053, generator=torch.Generator().manual_seed(1)) * 0.02
    save_file({"large.proj.weight": weight, "small.proj.weight": weight[:3, :7].clone()}, tmp_path / "w.safetensors")
    outputs = [
        nibble.convert(tmp_path / "w.safetensors", any_codec, *options).read_bytes()
        for options in (["--threads", 1], ["--threads", 2], ["--threads", 2, "--max-memory", "64MB"])
    ]
    assert outputs[0] == outputs[1] == outputs[2]
    parts = stored.read(nibble.convert(tmp_path / "w.safetensors", any_codec, *nibble.plain_absmax(any_codec)))
    if any_codec == "int8":
        theirs = bitsandbytes.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False).to("cpu")
        same("large", parts["large.proj.weight"], theirs.data)
        same("large", parts["large.proj.SCB"], theirs.SCB)
    elif any_codec in stored.CODEBOOK:
        packed, absmax = expected_four_bit(weight, any_codec, 64)
        same("large", parts["large.proj.weight"], packed)
        same("large", parts["large.proj.weight.absmax"], absmax)
