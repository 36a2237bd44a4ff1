"""quantize_nf4() and its like: bitsandbytes' bytes on numpy arrays and torch tensors, and wrong arguments."""

import dataclasses

import nibble
import numpy as np
import pytest
from huge_pages import asked_for_huge_pages
from nibble._memory import memory_of

torch = pytest.importorskip("torch")

KINDS = ["numpy", "torch"]


def of_kind(array, kind):
    return array if kind == "numpy" else torch.from_numpy(np.array(array))


def to_numpy(array):
    return array.numpy() if isinstance(array, torch.Tensor) else array


# Of torch, which does not ask for them as numpy does. More than 32 MiB, which malloc maps alone.
def test_large_weights_are_dequantized_to_huge_pages():
    weight = torch.zeros(2304, 4096)
    for quantized, dequantize in (
        (nibble.quantize_nf4(weight), nibble.dequantize_nf4),
        (nibble.quantize_int8(weight), nibble.dequantize_int8),
    ):
        assert asked_for_huge_pages(dequantize(quantized).data_ptr() + weight.nbytes // 2)


# --- the bytes of bitsandbytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("format", ["nf4", "fp4"])
def test_four_bits_are_those_of_bitsandbytes(golden, format, dtype, kind):
    weight = of_kind(golden[f"{format}.{dtype}.input"], kind)
    quantized = getattr(nibble, f"quantize_{format}")(weight)
    assert type(quantized.packed) is type(weight)
    assert np.array_equal(to_numpy(quantized.packed), golden[f"{format}.{dtype}"])
    assert np.array_equal(to_numpy(quantized.absmax), golden[f"{format}.{dtype}.absmax"])
    assert (quantized.format, quantized.blocksize, quantized.shape, quantized.dtype) == (format, 64, (40, 96), dtype)


@pytest.mark.parametrize("format", ["nf4", "fp4"])
@pytest.mark.parametrize("blocksize", [32, 256, 4096])
def test_bf16_and_other_blocksizes(golden, format, blocksize):
    weight = golden.torch(f"{format}.{blocksize}.input")
    assert weight.dtype == torch.bfloat16
    quantized = getattr(nibble, f"quantize_{format}")(weight, blocksize=blocksize)
    assert np.array_equal(quantized.packed.numpy(), golden[f"{format}.{blocksize}"])
    assert np.array_equal(quantized.absmax.numpy(), golden[f"{format}.{blocksize}.absmax"])


def test_double_quantization(golden):
    quantized = nibble.quantize_nf4(golden.torch("nf4.nested.input"), nested=True)
    assert quantized.nested and quantized.absmax is None
    assert np.array_equal(quantized.packed.numpy(), golden["nf4.nested"])
    assert np.array_equal(quantized.absmax_codes.numpy(), golden["nf4.nested.absmax"])
    assert np.array_equal(quantized.nested_absmax.numpy(), golden["nf4.nested.nested_absmax"])
    assert np.array_equal(quantized.nested_codebook.numpy(), golden["nf4.nested.nested_quant_map"])
    # By its definition, in fp32.
    absmax = quantized.nested_codebook[quantized.absmax_codes.int()]
    absmax = absmax * quantized.nested_absmax.repeat_interleave(256)[: len(absmax)] + quantized.nested_offset
    plain = dataclasses.replace(quantized, absmax=absmax, absmax_codes=None, nested_absmax=None, nested_codebook=None,
                                nested_offset=None)  # fmt: skip
    assert torch.equal(nibble.dequantize_nf4(quantized), nibble.dequantize_nf4(plain))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["nf4", "fp4"])
def test_dequantize_is_codebook_times_absmax(golden, format, kind):
    codes, absmax, codebook = (golden[f"{format}.float32{part}"] for part in ("", ".absmax", ".quant_map"))
    weight = nibble.FourBit(format=format, blocksize=64, shape=(40, 96), dtype="float32",
                            packed=of_kind(codes, kind), absmax=of_kind(absmax, kind))  # fmt: skip
    nibbles = np.stack([codes.ravel() >> 4, codes.ravel() & 15], 1).ravel()
    expected = (codebook[nibbles] * np.repeat(absmax, 64)).reshape(40, 96)
    dequantize = getattr(nibble, f"dequantize_{format}")
    assert np.array_equal(to_numpy(dequantize(weight)), expected)
    assert np.array_equal(to_numpy(dequantize(weight, dtype="float16")), expected.astype(np.float16))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_int8_is_that_of_bitsandbytes(golden, dtype, kind):
    quantized = nibble.quantize_int8(of_kind(golden[f"int8.{dtype}.input"], kind))
    codes, absmax = golden[f"int8.{dtype}"], golden[f"int8.{dtype}.SCB"]
    assert np.array_equal(to_numpy(quantized.codes), codes)
    assert np.array_equal(to_numpy(quantized.absmax), absmax)
    decoded = to_numpy(nibble.dequantize_int8(quantized, dtype="float32"))
    np.testing.assert_allclose(decoded, codes * (absmax[:, None].astype(np.float64) / 127), rtol=2**-22)


def test_a_view_with_gaps_is_quantized_as_its_copy(golden):
    weight = golden["nf4.float32.input"]
    for view in (weight.T, weight[::2], np.broadcast_to(weight[:1], (4, 96))):
        expected = nibble.quantize_nf4(np.ascontiguousarray(view))
        assert np.array_equal(nibble.quantize_nf4(view).packed, expected.packed)
        assert np.array_equal(nibble.quantize_nf4(torch.from_numpy(np.array(weight)).T).packed.numpy(),
                              nibble.quantize_nf4(np.ascontiguousarray(weight.T)).packed)  # fmt: skip


# As z.conj().imag has. torch._neg_view() makes such a tensor without gaps, which needs no copy to have none.
def test_signs_that_torch_has_yet_to_change(golden):
    weight = torch.from_numpy(np.array(golden["nf4.float32.input"]))
    assert torch._neg_view(weight).is_neg()
    for quantize, dequantize in (
        (nibble.quantize_nf4, nibble.dequantize_nf4),
        (nibble.quantize_int8, nibble.dequantize_int8),
    ):
        assert torch.equal(dequantize(quantize(torch._neg_view(weight))), dequantize(quantize(-weight)))
    quantized = nibble.quantize_nf4(weight)
    same = dataclasses.replace(quantized, absmax=torch._neg_view(-quantized.absmax))
    assert torch.equal(nibble.dequantize_nf4(same), nibble.dequantize_nf4(quantized))
    one = torch.tensor([1 + 2j]).conj().imag
    assert nibble.dequantize_nf4(nibble.quantize_nf4(one)) == -2


def test_an_array_that_is_not_aligned_is_copied(golden):
    weight = golden["nf4.float32.input"]
    unaligned = np.frombuffer(b"x" + weight.tobytes(), np.uint8)[1:].view(np.float32).reshape(weight.shape)
    assert not unaligned.flags.aligned
    assert memory_of(unaligned, "weight").pointer % 4 == 0
    assert memory_of(weight, "weight").pointer == weight.ctypes.data
    assert np.array_equal(nibble.quantize_nf4(unaligned).packed, golden["nf4.float32"])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (1, 1, 65), (7, 13)])
@pytest.mark.parametrize("kind", KINDS)
def test_any_shape_comes_back(shape, kind):
    weight = of_kind(np.random.default_rng(0).standard_normal(shape, dtype=np.float32), kind)
    for nested in (False, True):
        assert nibble.dequantize_nf4(nibble.quantize_nf4(weight, nested=nested)).shape == shape


def test_any_number_of_threads_gives_the_same_bytes():
    weight = np.random.default_rng(0).standard_normal(1_000_001).astype(np.float32)
    one = nibble.quantize_nf4(weight, nested=True, threads=1)
    for threads in (0, 2, 5):
        other = nibble.quantize_nf4(weight, nested=True, threads=threads)
        assert np.array_equal(one.packed, other.packed) and np.array_equal(one.absmax_codes, other.absmax_codes)
        assert np.array_equal(one.nested_absmax, other.nested_absmax) and one.nested_offset == other.nested_offset


def test_integers_of_numpy_are_integers():
    quantized = nibble.quantize_nf4(WEIGHT, blocksize=np.int64(32), threads=np.uint8(1))
    assert np.array_equal(quantized.absmax, np.ones(4))
    weight = dataclasses.replace(quantized, blocksize=np.int32(32), shape=(np.int64(2), np.int64(64)))
    assert np.array_equal(nibble.dequantize_nf4(weight, threads=np.int64(1)), WEIGHT)
    int8 = nibble.quantize_int8(WEIGHT, threads=np.int64(1))
    assert np.array_equal(nibble.dequantize_int8(int8, threads=np.int64(1)), WEIGHT)


# --- not finite -------------------------------------------------------------------------------------------------------


def test_a_nan_is_refused_or_counts_as_zero():
    weight = np.ones((2, 64), np.float32)
    weight[1, 3] = np.nan
    with pytest.raises(nibble.BadInputError, match="^weight: 1 of 2 blocks have a NaN or an infinity$"):
        nibble.quantize_nf4(weight)
    decoded = nibble.dequantize_nf4(nibble.quantize_nf4(weight, nonfinite="quantize"))
    assert decoded[1, 3] == 0 and (np.delete(decoded[1], 3) == 1).all()
    with pytest.raises(nibble.BadInputError, match="^weight: 1 of 2 rows have a NaN"):
        nibble.quantize_int8(weight)
    with pytest.raises(nibble.UsageError, match="^nonfinite is 'keep', neither 'error' nor 'quantize'$"):
        nibble.quantize_nf4(weight, nonfinite="keep")


def test_double_quantization_makes_no_infinities(near_infinity):
    with pytest.raises(nibble.BadInputError, match="^the weights are so close to the largest fp32 value that double"):
        nibble.quantize_nf4(near_infinity, nested=True)
    assert nibble.dequantize_nf4(nibble.quantize_nf4(near_infinity))[0, 0] == near_infinity[0, 0]


# --- wrong arguments: one sentence each -------------------------------------------------------------------------------


def refused(says, function, *arguments, **keywords):
    with pytest.raises(nibble.UsageError) as caught:
        function(*arguments, **keywords)
    assert str(caught.value) == says


WEIGHT = np.ones((2, 64), np.float32)


def test_wrong_types():
    refused("weight is of float64, not of float32, float16 or bfloat16", nibble.quantize_nf4, WEIGHT.astype(float))
    refused("weight is of int32, not of float32, float16 or bfloat16", nibble.quantize_int8, torch.ones(2, 2).int())
    refused("weight is of type list, neither a numpy array nor a torch tensor", nibble.quantize_nf4, [1.0])
    refused("weight is of type NoneType, neither a numpy array nor a torch tensor", nibble.quantize_int8, None)
    refused("weight is of float32 in the byte order of other processors", nibble.quantize_nf4, WEIGHT.astype(">f4"))
    refused("dtype is float64, not float32, float16 or bfloat16", nibble.dequantize_nf4, nibble.quantize_nf4(WEIGHT),
            dtype="float64")  # fmt: skip


@pytest.mark.parametrize("dtype", ["", 0, False])
def test_a_type_that_is_none(dtype):
    says = f"dtype is {dtype}, not float32, float16 or bfloat16"
    refused(says, nibble.dequantize_nf4, nibble.quantize_nf4(WEIGHT), dtype=dtype)
    refused(says, nibble.dequantize_int8, nibble.quantize_int8(WEIGHT), dtype=dtype)


@pytest.mark.parametrize("blocksize", [0, 16, 48, 8192, -64, 64.0, "64", None, 2**40])
def test_wrong_blocksizes(blocksize):
    refused(f"blocksize is {blocksize}, not one of 32, 64, ..., 4096", nibble.quantize_nf4, WEIGHT, blocksize=blocksize)
    weight = dataclasses.replace(nibble.quantize_nf4(WEIGHT), blocksize=blocksize)
    refused(f"blocksize is {blocksize}, not one of 32, 64, ..., 4096", nibble.dequantize_nf4, weight)


@pytest.mark.parametrize("threads", [-1, 2**32, 1.5, "2", None])
def test_wrong_threads(threads):
    says = f"threads is {threads}, not a number from 0 to 4294967295"
    refused(says, nibble.quantize_nf4, WEIGHT, threads=threads)
    refused(says, nibble.quantize_int8, WEIGHT, threads=threads)
    refused(says, nibble.dequantize_nf4, nibble.quantize_nf4(WEIGHT), threads=threads)
    refused(says, nibble.dequantize_int8, nibble.quantize_int8(WEIGHT), threads=threads)


def test_wrong_shapes():
    refused("weight has 1 dimensions, int8 needs 2: [rows, columns]", nibble.quantize_int8, np.ones(3, np.float32))
    quantized = nibble.quantize_nf4(WEIGHT)
    refused("packed has 64 bytes, not 96", nibble.dequantize_nf4, dataclasses.replace(quantized, shape=(3, 64)))
    refused("absmax has 4 bytes, not 8", nibble.dequantize_nf4,
            dataclasses.replace(quantized, absmax=quantized.absmax[:1]))  # fmt: skip
    refused("shape is (-2, -64), not a tuple of sizes", nibble.dequantize_nf4,
            dataclasses.replace(quantized, shape=(-2, -64)))  # fmt: skip
    refused("shape is (18446744073709551616,), which exceeds 64 bits", nibble.dequantize_nf4,
            dataclasses.replace(quantized, shape=(2**64,)))  # fmt: skip
    int8 = nibble.quantize_int8(WEIGHT)
    refused("absmax has 4 bytes, not 8", nibble.dequantize_int8, dataclasses.replace(int8, absmax=int8.absmax[:1]))
    refused("codes has 1 dimensions, int8 needs 2: [rows, columns]", nibble.dequantize_int8,
            dataclasses.replace(int8, codes=int8.codes.ravel()))  # fmt: skip


def test_wrong_parts():
    quantized = nibble.quantize_nf4(WEIGHT)
    refused("the weight is nf4, not fp4", nibble.dequantize_fp4, quantized)
    refused("packed is of int32, not of uint8", nibble.dequantize_nf4,
            dataclasses.replace(quantized, packed=quantized.packed.astype(np.int32)))  # fmt: skip
    refused("absmax and packed are not both numpy arrays or both torch tensors", nibble.dequantize_nf4,
            dataclasses.replace(quantized, absmax=torch.from_numpy(quantized.absmax)))  # fmt: skip
    refused("absmax is of type NoneType, neither a numpy array nor a torch tensor", nibble.dequantize_nf4,
            dataclasses.replace(quantized, absmax=None))  # fmt: skip
    refused("the weight is of type ndarray, not a nibble.FourBit", nibble.dequantize_nf4, WEIGHT)
    refused("the weight is of type FourBit, not a nibble.Int8", nibble.dequantize_int8, quantized)


def test_tensors_without_elements_of_their_own():
    with pytest.raises(nibble.UsageError, match="weight has the layout torch.sparse_coo, not torch.strided"):
        nibble.quantize_nf4(torch.ones(4, 64).to_sparse())
    with torch._subclasses.FakeTensorMode(), pytest.raises(nibble.UsageError, match="weight has no memory"):
        nibble.quantize_nf4(torch.ones(4, 64))


def test_wrong_devices():
    refused("weight is on meta, neither on the CPU nor on a CUDA device", nibble.quantize_nf4,
            torch.ones(2, 64, device="meta"))  # fmt: skip
