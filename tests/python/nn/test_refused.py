"""What the layers refuse, each in one sentence."""

import itertools
import json

import pytest
import torch
from nibble.nn import Linear4bit, LinearInt8


def refused(message, call, error=ValueError):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value).split("Linear4bit:\n\t")[-1].split("LinearInt8:\n\t")[-1]


def edited(layer, **changes):
    """The state dict of a layer with other fields in its quant_state."""
    state = layer.state_dict()
    key = next(name for name in state if "quant_state" in name)
    fields = json.loads(bytes(state[key].tolist())) | changes
    return state | {key: torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)}


def test_arguments():
    linear = torch.nn.Linear(64, 4)
    for message, call in {
        "in_features: is 0, at least 1 is needed": lambda: Linear4bit(0, 4),
        "out_features: is -1, at least 1 is needed": lambda: LinearInt8(4, -1),
        "blocksize: is 48, not one of 32, 64": lambda: Linear4bit(64, 4, blocksize=48),
        "quant_type: is 'nf5', not one of nf4, fp4": lambda: Linear4bit(64, 4, quant_type="nf5"),
        "compute_dtype: is torch.int8, not a floating-point type": lambda: LinearInt8(64, 4, compute_dtype=torch.int8),
        "bias: has the shape [3], not [4]": lambda: Linear4bit(64, 4, bias=torch.zeros(3)),
        "weight: has 128 bytes, and [4, 65] weights need 130": lambda: Linear4bit.from_parts(
            torch.zeros(128, 1, dtype=torch.uint8), torch.ones(5), shape=(4, 65)
        ),
        "weight.absmax: has 3 values of torch.float32, not 4 of torch.float32": lambda: Linear4bit.from_parts(
            torch.zeros(128, 1, dtype=torch.uint8), torch.ones(3), shape=(4, 64)
        ),
        "weight.absmax: has 4 values of torch.float16, not 4 of torch.float32": lambda: Linear4bit.from_parts(
            torch.zeros(128, 1, dtype=torch.uint8), torch.ones(4).half(), shape=(4, 64)
        ),
        "weight.absmax: is not contiguous": lambda: Linear4bit.from_parts(
            torch.zeros(128, 1, dtype=torch.uint8), torch.ones(8)[::2], shape=(4, 64)
        ),
        "weight: is not contiguous": lambda: Linear4bit.from_parts(
            torch.zeros(256, 1, dtype=torch.uint8)[::2], torch.ones(4), shape=(4, 64)
        ),
        "shape: is [256], not two dimensions": lambda: Linear4bit.from_parts(
            torch.zeros(128, 1, dtype=torch.uint8), torch.ones(4), shape=(256,)
        ),
        "blocksize: is 0, not one of 32, 64": lambda: Linear4bit.from_parts(
            torch.zeros(128, 1, dtype=torch.uint8), torch.ones(4), shape=(4, 64), blocksize=0
        ),
        "quant_type: is 'int4', not one of nf4, fp4": lambda: Linear4bit.from_parts(
            torch.zeros(128, 1, dtype=torch.uint8), torch.ones(4), shape=(4, 64), quant_type="int4"
        ),
        "nested: has 1 tensors, not nested_absmax, nested_quant_map, nested_offset": lambda: Linear4bit.from_parts(
            torch.zeros(128, 1, dtype=torch.uint8), torch.zeros(4).byte(), shape=(4, 64), nested=(torch.ones(1),)
        ),
        "weight: has the shape [4], not two dimensions": lambda: LinearInt8.from_parts(
            torch.zeros(4, dtype=torch.int8), torch.ones(4)
        ),
        "weight: is torch.uint8, not torch.int8": lambda: LinearInt8.from_parts(
            torch.zeros(4, 4, dtype=torch.uint8), torch.ones(4)
        ),
        "weight: its SCB has 3 values of torch.float32, not 4": lambda: LinearInt8.from_parts(
            torch.zeros(4, 4, dtype=torch.int8), torch.ones(3)
        ),
        "weight: is not in the state dict": lambda: Linear4bit.from_state({}),
        "layer.SCB: is not in the state dict": lambda: LinearInt8.from_state({"layer.weight": linear.weight}, "layer."),
    }.items():
        refused(message, call)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_codes_cannot_hold(value):
    linear = torch.nn.Linear(64, 4)
    linear.weight.data[1, 1] = value
    refused("weight: has a NaN or an infinity", lambda: Linear4bit.from_linear(linear))
    refused("weight: has a NaN, an infinity or a magnitude of 65520", lambda: LinearInt8.from_linear(linear))


def test_magnitudes_beyond_fp16_are_for_4bit_alone():
    linear = torch.nn.Linear(64, 4)
    linear.weight.data[1, 1] = 65520.0
    Linear4bit.from_linear(linear)
    refused("which fp16 cannot hold", lambda: LinearInt8.from_linear(linear))


def test_states():
    layer = Linear4bit.from_linear(torch.nn.Linear(64, 4))
    good = layer.state_dict()

    def without(name):
        return {key: tensor for key, tensor in good.items() if key != name}

    for message, state in {
        "weight: is not complete, absmax is missing": without("weight.absmax"),
        "weight: is not complete, nested_absmax is missing": without("weight.nested_absmax"),
        "weight: is not complete, nested_quant_map is missing": without("weight.nested_quant_map"),
        "weight: is not complete, quant_map is missing": without("weight.quant_map"),
        "weight: has 0 tensors quant_state": without("weight.quant_state.bitsandbytes__nf4"),
        'Missing key(s) in state_dict: "weight"': without("weight"),
        'Missing key(s) in state_dict: "bias"': without("bias"),
        'Unexpected key(s) in state_dict: "other"': good | {"other": torch.ones(1)},
        "bias: has the shape [5], not [4]": good | {"bias": torch.ones(5)},
        "its quant_state has the shape [8, 64], not [4, 64]": edited(layer, shape=[8, 64]),
        "its quant_state has the shape [256], not two dimensions": edited(layer, shape=[256]),
        "its quant_state has the blocksize 48, not one of 32": edited(layer, blocksize=48),
        "weight.absmax: has 4 values of torch.uint8, not 2": edited(layer, blocksize=128),
        "its quant_state has the quant_type 'nf5'": edited(layer, quant_type="nf5"),
        "its quant_state has the dtype 'int8'": edited(layer, dtype="int8"),
        "its quant_state has the nested_blocksize 64, not 256": edited(layer, nested_blocksize=64),
        "its quant_state has the quant_type 'fp4', not nf4": edited(layer, quant_type="fp4"),
        "its quant_state has the blocksize 64.0, not one of 32": edited(layer, blocksize=64.0),
        "weight.quant_map: has other values than nf4": good | {"weight.quant_map": torch.zeros(16)},
        "its quant_state is not what bitsandbytes writes": good
        | {"weight.quant_state.bitsandbytes__nf4": torch.zeros(3, dtype=torch.uint8)},
        "weight: has the shape [4, 32], not": {"weight": torch.ones(4, 32), "bias": torch.ones(4)},
    }.items():
        refused(message, lambda state=state: Linear4bit(64, 4).load_state_dict(state), RuntimeError)
    refused(
        'Unexpected key(s) in state_dict: "bias"',
        lambda: Linear4bit(64, 4, bias=False).load_state_dict(good),
        RuntimeError,
    )
    int8 = LinearInt8.from_linear(torch.nn.Linear(64, 4)).state_dict()
    for message, state in {
        "weight: is not complete, SCB is missing": {k: t for k, t in int8.items() if k != "SCB"},
        "weight: has the weight_format 1, not 0": int8 | {"weight_format": torch.tensor(1, dtype=torch.uint8)},
        "weight: its weight_format has 2 bytes, not 1": int8 | {"weight_format": torch.zeros(2, dtype=torch.uint8)},
        "weight: has the shape [4, 32], not [4, 64]": int8 | {"weight": int8["weight"][:, :32]},
    }.items():
        refused(message, lambda state=state: LinearInt8(64, 4).load_state_dict(state), RuntimeError)


def test_inputs():
    for kind, compute_dtype in itertools.product((Linear4bit, LinearInt8), (None, torch.float32)):
        layer = kind.from_linear(torch.nn.Linear(64, 4), compute_dtype=compute_dtype)
        refused(
            "x: has the shape [1, 65], and the weight needs 64 columns",
            lambda layer=layer: layer(torch.ones(1, 65)),
            RuntimeError,
        )
        # Mamba2 casts x to the type of its output layer's weight.
        for dtype in (torch.int64, layer.weight.dtype):
            x = torch.ones(1, 64).to(dtype)
            refused(f"x: is {dtype}, not", lambda layer=layer, x=x: layer(x), RuntimeError)
