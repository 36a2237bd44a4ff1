"""The model, all of it or one layer at a time; its files; which of its parameters a tensor of the checkpoint is."""

from __future__ import annotations

import hashlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import safetensors
import torch
import transformers

from ..layer_error import stack_of
from ..model_directory import BadInput, one_line
from ..model_error import load
from .stack import Unsuitable


def weight_files(directory: str) -> list[pathlib.Path]:
    """What transformers loads: safetensors files if there are any, else torch's own."""
    for pattern in ("*.safetensors", "*.bin"):
        found = sorted(pathlib.Path(directory).glob(pattern))
        if found:
            return found
    raise BadInput(f"{directory}: has no weights (*.safetensors, *.bin)")


def hash_of(path: pathlib.Path) -> str:
    """SHA-256, as hubs show it."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Model:
    """A model whose parameters are in memory, or whose layers come and go (`layer()`)."""

    def __init__(self, directory: str, kind: str, device: str, dtype: str, by_layer: bool):
        self.stack_name: str
        self.layers: Any
        self._arguments = (directory, kind, device, dtype)
        self._device, self.by_layer = device, by_layer
        self.model = self._partial({"": "meta"}) if by_layer else load(*self._arguments)
        found = stack_of(self.model)
        self.stack_name, self.layers = found or ("", torch.nn.ModuleList())
        if by_layer:
            if found is None:
                raise BadInput(f"{directory}: has no list of layers that could be loaded one at a time")
            self.model = self._partial({"": device, self.stack_name: "meta"})
            self.layers = self.model.get_submodule(self.stack_name)
        use_simple_products(self.model)

    def parameters(self, stage: str, index: int | None) -> Iterator[tuple[str, Any]]:
        """Of a layer, or of all that is in no layer (`index` is None); of the whole model for the stage "whole"."""
        prefix = f"{self.stack_name}."
        for name, parameter in self.model.named_parameters():
            inside = name.startswith(prefix) and stage != "whole"
            if name.startswith(f"{prefix}{index}.") if index is not None else not inside:
                yield name, parameter

    def load_layer(self, index: int) -> None:
        """Puts the layer's weights in place."""
        if self.by_layer:
            name = f"{self.stack_name}.{index}"
            loaded = self._partial({"": "meta", name: self._device})
            use_simple_products(loaded)
            self._unloaded, self.layers[index] = self.layers[index], loaded.get_submodule(name)

    def drop_layer(self, index: int) -> None:
        if self.by_layer:
            self.layers[index] = self._unloaded

    def _partial(self, device_map: dict[str, str]) -> Any:
        """transformers' model, with the parameters of some modules. Hooks that would fetch the others are left out."""
        if not hasattr(transformers.modeling_utils, "accelerate_dispatch"):
            raise Unsuitable(f"transformers {transformers.__version__} can't load them so; 5.23 can")
        with mock.patch.object(transformers.modeling_utils, "accelerate_dispatch", lambda *_: None):
            return load(*self._arguments, device_map=device_map)


def use_simple_products(model: Any) -> None:
    """Experts as one product each, in place of one kernel for all of them; and no cache of keys and values."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    for config in (model.config, model.config.get_text_config()):
        config.use_cache = False


def tensor_names(path: pathlib.Path) -> dict[str, int]:
    """{name of a tensor of a file: its number of dimensions}"""
    if path.suffix == ".safetensors":
        with safetensors.safe_open(path, "pt") as file:
            return {name: len(file.get_slice(name).get_shape()) for name in file.keys()}
    try:
        tensors = torch.load(path, map_location="meta", weights_only=True)
        return {name: tensor.ndim for name, tensor in tensors.items()}
    except Exception as error:  # of a damaged pickle, anything
        raise BadInput(f"{path}: {one_line(error)}") from None


def checkpoint_weights(
    model: Any, names: dict[str, int], of_weight: dict[str, str]
) -> dict[str, list[str | None]]:
    """{tensor of the checkpoint: its inputs}, from {parameter, or parameter.expert: input}.

    A fused parameter of the model can be a tensor for each expert in the checkpoint, and the other way round: gate_proj
    and up_proj of expert 3 take what expert 3 of gate_up_proj takes.
    """
    parameters = dict(model.named_parameters())
    found: dict[str, list[str | None]] = {}
    for name, canonical in checkpoint_parameters(model, names).items():
        parameter = parameters[canonical]
        inputs = [of_weight.get(canonical)]
        if parameter.ndim == 3:
            inputs = [of_weight.get(f"{canonical}.{expert}") for expert in range(len(parameter))]
            if names[name] == 2:
                inputs = inputs[expert_of(name) :][:1]
        if any(item is not None for item in inputs):
            found[name] = inputs
    return found


def checkpoint_parameters(model: Any, names: dict[str, int]) -> dict[str, str]:
    """{tensor of the checkpoint: the parameter that it is, or is a part of}. Tied parameters have one name."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    first = {id(parameter): name for name, parameter in reversed(parameters.items())}
    rename = renaming(model)
    found = ((name, parameters.get(rename(name))) for name in sorted(names))
    return {name: first[id(parameter)] for name, parameter in found if parameter is not None}


def expert_of(name: str) -> int:
    """`model.layers.2.mlp.experts.17.up_proj.weight`: 17."""
    return int(re.findall(r"\.(\d+)(?=\.)", name)[-1])


def renaming(model: Any) -> Any:
    """What loading makes of a tensor's name."""
    try:
        from transformers import core_model_loading
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # transformers 4: names differ by the prefix of the base model alone
        renamings, converters, rename_source_key = [], [], None
    else:
        mapping = get_model_conversion_mapping(model)
        renamings = [entry for entry in mapping if isinstance(entry, core_model_loading.WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, core_model_loading.WeightConverter)]
        rename_source_key = core_model_loading.rename_source_key
    known, prefix = model.state_dict(), model.base_model_prefix

    def rename(name: str) -> str:
        candidates = [name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")]
        if rename_source_key is not None:
            candidates.insert(0, rename_source_key(name, renamings, converters, prefix, known)[0])
        return next((candidate for candidate in candidates if candidate in known), "")

    return rename
