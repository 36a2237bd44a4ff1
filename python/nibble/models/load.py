"""nibble.load(): a transformers model from a directory that nibble or bitsandbytes quantized."""

from __future__ import annotations

import os
from typing import Any

from ..checkpoint import open_checkpoint
from ..errors import BadInputError, UsageError


def load(
    path: str | os.PathLike[str],
    *,
    compute_dtype: Any = None,
    adapter: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """The model of the architecture that config.json names, with nibble's layers for its quantized weights.

    Quantized tensors are mapped from the files: processes that load the same directory share them. compute_dtype: the
    type in which layers multiply; by default what config.json says. adapter: the directory of a LoRA, which peft puts on
    the model. `options` go to from_pretrained().

    Raises nibble.BadInputError if a directory is incomplete, damaged, of another tool, or does not fit to the other one,
    and nibble.UsageError for a device or type that cannot be used.
    """
    import transformers
    import transformers.quantizers.auto  # before nibble's quantizer, which its end may import (registration.py)

    from .quantizer import NibbleConfig, register
    from .weights import QUANT_STATE

    register()
    path = os.fspath(path)
    _check_compute_dtype(compute_dtype)
    _check_devices(options.get("device_map"))
    with open_checkpoint(path) as tensors:  # first, because what transformers says of a path that has no model is long
        quantized = next((name for name in tensors if QUANT_STATE in name or name.endswith(".SCB")), None)
    if not os.path.isdir(path):
        raise BadInputError(f"{path}: is a file, not the directory of a model")
    if not os.path.isfile(os.path.join(path, "config.json")):
        raise BadInputError(f"{path}: has no config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(path)
    except Exception as error:  # of a field of a wrong type, anything
        raise BadInputError(f"{path}: config.json: {' '.join(str(error).partition(chr(10) * 2)[0].split())}") from error
    stored = getattr(config, "quantization_config", None)
    if stored is not None:
        stored = stored if isinstance(stored, dict) else stored.to_dict()
        method = stored.get("quant_method", "bitsandbytes")
        if method not in ("nibble", "bitsandbytes"):
            raise BadInputError(
                f"{path}: is quantized by {method!r}; nibble loads what nibble or bitsandbytes quantized"
            )
        four_bit = stored.get("bnb_4bit_compute_dtype") if stored.get("load_in_4bit") else None
        wanted = compute_dtype or stored.get("compute_dtype") or four_bit
        config.quantization_config = NibbleConfig(wanted).to_dict()
        if method == "bitsandbytes":
            config.quantization_config["stored"] = stored
    elif quantized is not None:
        raise BadInputError(
            f"{path}: config.json has no quantization_config, and '{quantized}' is of a quantized weight"
        )
    names = config.architectures or []
    model_class = getattr(transformers, names[0], None) if names else None
    if model_class is None:
        raise BadInputError(f"{path}: config.json names {names or 'no architecture'}, which transformers does not have")
    model = _complete(path, model_class, {"dtype": "auto", "config": config} | options)
    if adapter is None:
        return model
    from .adapters import put_on

    return put_on(model, os.fspath(adapter))


def _complete(path: str, model_class: Any, options: dict[str, Any]) -> Any:
    """from_pretrained(), which gives weights that the directory lacks random values, and says so in a table."""
    wants_info = options.pop("output_loading_info", False)
    options = {"ignore_mismatched_sizes": True} | options
    model, said = model_class.from_pretrained(path, output_loading_info=True, **options)
    if said["missing_keys"]:
        raise BadInputError(
            f"{path}: tensor '{min(said['missing_keys'])}': is missing, {model_class.__name__} needs it"
        )
    for name, found, needed in sorted(said["mismatched_keys"]):
        raise BadInputError(f"{path}: tensor '{name}': is {list(found)}, the model's weight is {list(needed)}")
    return (model, said) if wants_info else model


def _check_compute_dtype(dtype: Any) -> None:
    names = ("float32", "bfloat16", "float16", "float64")
    if dtype is not None and str(dtype).removeprefix("torch.") not in names:
        raise UsageError(f"compute_dtype is {dtype}, not one of {', '.join(names)}")


def _check_devices(device_map: Any) -> None:
    """Refuses CUDA devices that do not exist. What else there may be, transformers knows."""
    import torch

    devices = device_map.values() if isinstance(device_map, dict) else [device_map]
    for device in devices:
        name = f"cuda:{device}" if isinstance(device, int) else str(device)
        kind, _, index = name.partition(":")
        if kind == "disk":
            raise UsageError("device_map has disk, from which nibble maps quantized weights to the CPU anyway")
        count = torch.cuda.device_count() if kind == "cuda" else 1
        if kind == "cuda" and (count == 0 or (index.isdigit() and int(index) >= count)):
            raise UsageError(f"device_map has {name}, and there are {count} CUDA devices that torch can use")
