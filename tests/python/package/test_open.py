"""nibble.open: the bytes of the files, without a copy, as long as somebody uses them."""

import concurrent.futures
import errno
import gc
import json
import os
import pathlib
import shutil

import nibble
import numpy as np
import pytest
from nibble import _library


def mapping_of(address, path):
    """Whether an address is in a mapping of the file."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        bounds, *_, name = line.split(maxsplit=5)
        begin, end = (int(bound, 16) for bound in bounds.split("-"))
        if begin <= address < end:
            return name == str(path)
    return False


def test_arrays_are_those_of_the_file(checkpoint, weights):
    with nibble.open(checkpoint) as tensors:
        assert list(tensors) == list(weights)
        for name, array in weights.items():
            assert np.array_equal(tensors[name], array)
            assert tensors[name].dtype == array.dtype


def test_an_array_is_mapped_and_not_copied(checkpoint):
    tensors = nibble.open(checkpoint)
    array = tensors["layers.0.weight"]
    assert mapping_of(array.ctypes.data, checkpoint)
    assert tensors["layers.0.weight"].ctypes.data == array.ctypes.data
    assert not array.flags.writeable


def test_opening_maps_nothing(checkpoint):
    tensors = nibble.open(checkpoint)
    assert str(checkpoint) not in pathlib.Path("/proc/self/maps").read_text()
    assert tensors.info("bias").shape == (128,)


def test_an_index_and_the_shards_beside_it(checkpoint, weights, tmp_path):
    shutil.copy(checkpoint, tmp_path / "shard.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, "shard.safetensors")}))
    with nibble.open(index) as tensors:
        assert np.array_equal(tensors["bias"], weights["bias"])


def test_threads_share_one_map(checkpoint):
    for _ in range(50):
        tensors = nibble.open(checkpoint)
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            arrays = list(threads.map(tensors.__getitem__, ["bias"] * 8))
        assert len({array.ctypes.data for array in arrays}) == 1


def test_an_array_outlives_its_checkpoint(checkpoint, weights):
    tensors = nibble.open(checkpoint)
    array = tensors["layers.1.weight"]
    tensors.close()
    del tensors
    gc.collect()
    assert mapping_of(array.ctypes.data, checkpoint)
    assert np.array_equal(array, weights["layers.1.weight"])
    del array
    gc.collect()
    assert str(checkpoint) not in pathlib.Path("/proc/self/maps").read_text()


def test_a_closed_checkpoint_maps_again(checkpoint, weights):
    tensors = nibble.open(checkpoint)
    tensors.close()
    assert np.array_equal(tensors["bias"], weights["bias"])


def test_torch_tensors_are_the_same_memory(checkpoint, weights):
    torch = pytest.importorskip("torch")
    tensors = nibble.open(checkpoint)
    tensor = tensors.torch("layers.0.weight")
    assert mapping_of(tensor.data_ptr(), checkpoint)
    assert tensor.data_ptr() == tensors["layers.0.weight"].ctypes.data
    assert torch.equal(tensor, torch.from_numpy(weights["layers.0.weight"]))
    del tensors
    gc.collect()
    assert torch.equal(tensor, torch.from_numpy(weights["layers.0.weight"]))


def test_what_is_written_stays_in_the_process(checkpoint):
    pytest.importorskip("torch")
    before = checkpoint.read_bytes()
    tensors = nibble.open(checkpoint)
    tensors.torch("bias").fill_(7)
    assert checkpoint.read_bytes() == before
    assert (tensors["bias"] == 7).all(), "arrays of a checkpoint share their memory"


def test_bf16_and_parts_of_quantized_weights(golden):
    torch = pytest.importorskip("torch")
    bf16 = golden.torch("nf4.bfloat16.input")
    assert bf16.dtype == torch.bfloat16
    assert np.array_equal(bf16.view(torch.uint16).numpy(), golden["nf4.bfloat16.input"].view(np.uint16))
    assert golden["nf4.float32"].dtype == np.uint8 and golden["nf4.float32.absmax"].shape == (60,)


def test_an_empty_tensor(tmp_path, write_checkpoint):
    path = write_checkpoint(tmp_path / "in.safetensors", {"empty": np.empty((0, 4), np.float32)})
    assert nibble.open(path)["empty"].shape == (0, 4)


def test_sizes_that_no_array_has(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [0, 2**64 - 1], "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    tensors = nibble.open(path)
    says = f"{path}: tensor 'a': has the shape \\[0, 18446744073709551615\\], which arrays here cannot have"
    with pytest.raises(nibble.UsageError, match=says):
        tensors["a"]
    pytest.importorskip("torch")
    with pytest.raises(nibble.UsageError, match=says):
        tensors.torch("a")


def rewrite(path):
    path.write_bytes(path.read_bytes()[:-8])


def replace(path):
    other = path.with_name("other")
    shutil.copy2(path, other)  # its size and its time are the same
    other.replace(path)


def touch(path):
    os.utime(path, (0, 0))


@pytest.mark.parametrize("change", [rewrite, replace, touch])
@pytest.mark.parametrize("opened", ["the file", "its directory"])
def test_a_file_that_changed_is_refused(checkpoint, change, opened):
    path = checkpoint if opened == "the file" else checkpoint.rename(checkpoint.with_name("model.safetensors"))
    tensors = nibble.open(path if opened == "the file" else path.parent)
    change(path)
    with pytest.raises(nibble.InputChangedError, match=f"^{path}: changed after it was opened$"):
        tensors["bias"]


@pytest.mark.parametrize("change", [rewrite, replace])
@pytest.mark.parametrize("opened", ["the file", "its directory"])
def test_a_file_that_changes_while_it_is_opened_is_refused(checkpoint, change, opened, monkeypatch):
    path = checkpoint if opened == "the file" else checkpoint.rename(checkpoint.with_name("model.safetensors"))
    close = _library.library().nibble_checkpoint_close

    def change_and_close(handle):
        change(path)
        close(handle)

    monkeypatch.setattr(_library.library(), "nibble_checkpoint_close", change_and_close)
    with pytest.raises(nibble.InputChangedError, match=f"^{path}: changed after it was opened$"):
        nibble.open(path if opened == "the file" else path.parent)


def test_what_is_mapped_stays_when_the_file_is_replaced(checkpoint, weights):
    tensors = nibble.open(checkpoint)
    array = tensors["layers.0.weight"]
    replace(checkpoint)
    assert np.array_equal(array, weights["layers.0.weight"])
    assert np.array_equal(tensors["bias"], weights["bias"])


def test_a_relative_path_stays_the_same_file(checkpoint, weights, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    tensors = nibble.open(checkpoint.name)
    monkeypatch.chdir("/")
    assert np.array_equal(tensors["bias"], weights["bias"])
    assert tensors.info("bias").file == checkpoint.name


def test_a_file_that_is_gone_is_refused(checkpoint):
    tensors = nibble.open(checkpoint)
    checkpoint.unlink()
    with pytest.raises(nibble.ReadWriteError, match="cannot be mapped") as caught:
        tensors["bias"]
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("content, says", [(None, "No such file"), (b"", ""), (b"x" * 100, "")])
def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path, content, says):
    path = tmp_path / "in.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(nibble.Error) as caught:
        nibble.open(path)
    assert type(caught.value) is nibble.BadInputError
    assert str(caught.value).startswith(f"{path}: ") and says in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_tensor_is_a_key_error(checkpoint):
    with pytest.raises(KeyError, match="nothing"):
        nibble.open(checkpoint)["nothing"]


def test_a_path_with_a_null_byte_is_refused(checkpoint):
    with pytest.raises(nibble.UsageError) as caught:
        nibble.open(f"{checkpoint}\0junk")
    assert str(caught.value) == f"'{checkpoint}\\x00junk' has a null byte"


@pytest.mark.parametrize("max_memory", ["1GB", -1, 2**64, 1e9, None, True, np.array(1.5e9)])
def test_a_max_memory_that_is_no_number_of_bytes_is_refused(checkpoint, max_memory):
    with pytest.raises(nibble.UsageError) as caught:
        nibble.open(checkpoint, max_memory=max_memory)
    assert str(caught.value) == f"max_memory is {max_memory!r}, not a number of bytes from 0 to 18446744073709551615"


def test_a_max_memory_of_numpy_is_a_number(checkpoint):
    assert list(nibble.open(checkpoint, max_memory=np.int64(10**9)))
