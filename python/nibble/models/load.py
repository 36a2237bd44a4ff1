"""nibble.load(): a transformers model from a directory that nibble or bitsandbytes quantized."""

from __future__ import annotations

import copy
import os
from typing import Any

from ..checkpoint import open_checkpoint
from ..errors import BadInputError, Error, UsageError


def load(
    path: str | bytes | os.PathLike[Any],
    *,
    compute_dtype: Any = None,
    adapter: str | bytes | os.PathLike[Any] | None = None,
    **options: Any,
) -> Any:
    """The model of the architecture that config.json names, with nibble's layers for its quantized weights.

    path: a directory, which may have the model in its `subfolder`, or the name of a model in the local Hugging Face
    cache, of which `revision` may choose a version.
    Quantized tensors are mapped from its files: processes that load the same directory share them. compute_dtype: the
    type in which layers multiply; by default what config.json says. adapter: the directory of a LoRA, which peft puts
    on the model. `options` go to from_pretrained(); those that are fields of the configuration, as use_cache=False,
    change it.

    Raises nibble.BadInputError if a directory is incomplete, damaged or of another tool, or if the adapter is for another
    model, and nibble.UsageError for a device or type that cannot be used.
    """
    import transformers
    import transformers.quantizers.auto  # before nibble's quantizer, which its end may import (registration.py)

    from .quantizer import register

    register()
    _check_compute_dtype(compute_dtype)
    _check_devices(options.get("device_map"))
    directory, quantized = _find(os.fsdecode(path), options)
    stored = _read_config(directory)
    config, options = _take_config(directory, options)
    quantization = _quantization(directory, stored, compute_dtype or _fields(config).get("compute_dtype"))
    if quantization is not None:
        config.quantization_config = quantization
    elif quantized is not None:
        raise BadInputError(
            f"{directory}: config.json has no quantization_config, and '{quantized}' is of a quantized weight"
        )
    model_class = _model_class(directory, stored)
    model = _complete(directory, model_class, {"dtype": "auto", "config": config} | options)
    if adapter is None:
        return model
    from .adapters import put_on

    return put_on(model, os.fsdecode(adapter))


def _find(path: str, options: dict[str, Any]) -> tuple[str, str | None]:
    """The directory of a model, which may be one in the cache of the hub, and a tensor of a quantized weight in it. Takes
    the options that are about the hub."""
    from .weights import QUANT_STATE

    revision, cache = options.pop("revision", None), options.pop("cache_dir", None)
    subfolder = options.pop("subfolder", None)
    if cache is not None:
        raise UsageError("cache_dir is not supported; HF_HUB_CACHE in the environment names another cache")
    if revision is not None and not os.path.isdir(path):
        path = f"{path}@{revision}"
    if os.path.isfile(path):
        raise BadInputError(f"{path}: is a file, not the directory of a model")
    if subfolder and not os.path.isdir(path):
        raise UsageError(f"subfolder: {path} is not a directory")
    path = os.path.join(path, os.fsdecode(subfolder)) if subfolder else path
    with open_checkpoint(path) as tensors:  # first, because what transformers says of a path that has no model is long
        quantized = next((name for name in tensors if QUANT_STATE in name or name.endswith(".SCB")), None)
        file = next((tensors.info(name).file for name in tensors), path)
    return (path if os.path.isdir(path) else os.path.dirname(file)), quantized


def _read_config(directory: str) -> Any:
    import transformers

    from ..model_directory import BadInput, read_config

    if not os.path.isfile(os.path.join(directory, "config.json")):
        raise BadInputError(f"{directory}: has no config.json")
    try:
        read_config(directory)
        return transformers.AutoConfig.from_pretrained(directory)
    except BadInput as error:
        raise BadInputError(str(error)) from None
    except Exception as error:  # of a field of a wrong type, anything
        raise BadInputError(
            f"{directory}: config.json: {' '.join(str(error).partition(chr(10) * 2)[0].split())}"
        ) from error


def _take_config(directory: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The configuration of the model, and the options that are for the model itself. As in from_pretrained(), options
    that are fields of the configuration change it, unless `config` is an object."""
    import transformers

    options = dict(options)
    given, torch_dtype = options.pop("config", None), options.pop("torch_dtype", None)
    if torch_dtype is not None and options.get("dtype") is None:
        options["dtype"] = torch_dtype  # its old name
    if isinstance(given, transformers.PretrainedConfig):
        return copy.deepcopy(given), options
    changes = {name: value for name, value in options.items() if name not in ("dtype", "quantization_config")}
    config, rest = transformers.AutoConfig.from_pretrained(given or directory, return_unused_kwargs=True, **changes)
    return config, {name: value for name, value in options.items() if name in rest or name not in changes}


def _fields(config: Any) -> dict[str, Any]:
    """Those of a configuration's quantization_config; none if it has none."""
    stored = getattr(config, "quantization_config", None) or {}
    fields: dict[str, Any] = stored if isinstance(stored, dict) else stored.to_dict()
    return fields


def _quantization(directory: str, config: Any, compute_dtype: Any) -> dict[str, Any] | None:
    """What the model's configuration has to say so that nibble loads it, or None if it is not quantized."""
    from .quantizer import NibbleConfig

    if getattr(config, "quantization_config", None) is None:
        return None
    stored = _fields(config)
    method = stored.get("quant_method", "bitsandbytes")
    if method not in ("nibble", "bitsandbytes"):
        raise BadInputError(
            f"{directory}: is quantized by {method!r}; nibble loads what nibble or bitsandbytes quantized"
        )
    four_bit = stored.get("bnb_4bit_compute_dtype") if stored.get("load_in_4bit") else None
    try:
        found = NibbleConfig(compute_dtype or stored.get("compute_dtype") or four_bit).to_dict()
    except ValueError as error:
        raise BadInputError(f"{directory}: config.json: {error}") from None
    return found | {"stored": stored} if method == "bitsandbytes" else found


def _model_class(directory: str, stored: Any) -> Any:
    import transformers

    names = stored.architectures or []
    found = getattr(transformers, names[0], None) if names else None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    if not (is_model and getattr(found, "config_class", None)):
        raise BadInputError(
            f"{directory}: config.json names {names or 'no architecture'}, which is not a model of transformers"
        )
    return found


def _complete(path: str, model_class: Any, options: dict[str, Any]) -> Any:
    """from_pretrained(), which gives weights that the directory lacks random values, and says so in a table."""
    wants_info = options.pop("output_loading_info", False)
    options = {"ignore_mismatched_sizes": True} | options
    try:
        model, said = _load_with_info(path, model_class, options)
    except Error:
        raise
    except Exception:
        _check_config(path, model_class, options["config"])
        raise
    if said["missing_keys"]:
        raise BadInputError(
            f"{path}: tensor '{min(said['missing_keys'])}': is missing, {model_class.__name__} needs it"
        )
    for name, found, needed in sorted(said["mismatched_keys"]):
        _check_shape(path, name, found, needed)
    return (model, said) if wants_info else model


def _load_with_info(path: str, model_class: Any, options: dict[str, Any]) -> Any:
    """The model, and what transformers reports about loading it. The from_pretrained() of some classes (Qwen2.5-Omni)
    fails where the inherited one returns more than the model. Those are loaded twice: once for the report alone."""
    import transformers

    inherited = transformers.PreTrainedModel.from_pretrained.__func__
    try:
        return model_class.from_pretrained(path, output_loading_info=True, **options)
    except Exception:
        if model_class.from_pretrained.__func__ is inherited:
            raise
    said = inherited(model_class, path, output_loading_info=True, **options)[1]
    return model_class.from_pretrained(path, **options), said


def _check_config(path: str, model_class: Any, config: Any) -> None:
    """For when loading has failed: whether the model that config.json describes is the reason."""
    import torch

    from ..model_directory import one_line
    from .weights import find_weights

    try:
        with torch.device("meta"):
            needed = model_class(copy.deepcopy(config)).state_dict()
    except Exception as error:  # of a value that makes no sense, anything
        raise BadInputError(f"{path}: config.json: {one_line(error)}") from error
    with open_checkpoint(path) as tensors:
        quantized = find_weights(tensors)
        for name in [name for name in tensors if name in needed and name not in quantized]:
            _check_shape(path, name, tensors.info(name).shape, needed[name].shape)


def _check_shape(path: str, name: str, found: Any, needed: Any) -> None:
    if list(found) != list(needed):
        raise BadInputError(f"{path}: tensor '{name}': is {list(found)}, the model's weight is {list(needed)}")


def _check_compute_dtype(dtype: Any) -> None:
    names = ("float32", "bfloat16", "float16", "float64")
    if dtype is not None and str(dtype).removeprefix("torch.") not in names:
        raise UsageError(f"compute_dtype is {dtype}, not one of {', '.join(names)}")


def _check_devices(device_map: Any) -> None:
    """Refuses devices that torch cannot use."""
    import torch

    from .quantizer import DIVISIONS

    devices = device_map.values() if isinstance(device_map, dict) else [device_map]
    for device in devices:
        if device is None or device in DIVISIONS:
            continue
        name = f"cuda:{device}" if isinstance(device, int) else str(device)
        kind, _, index = name.partition(":")
        if kind == "disk":
            raise UsageError("device_map has disk, from which nibble maps quantized weights to the CPU anyway")
        count = torch.cuda.device_count() if kind == "cuda" else 1
        if kind == "cuda" and (count == 0 or (index.isdigit() and int(index) >= count)):
            raise UsageError(f"device_map has {name}, and there are {count} CUDA devices that torch can use")
        try:
            torch.empty(0, device=name)
        except Exception as error:  # of a device that is not there, anything
            raise UsageError(f"device_map has {name}, which is not a device that torch can use") from error
