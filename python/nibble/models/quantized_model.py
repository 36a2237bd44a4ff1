"""Quantized weights in a transformers model: taken out before it is loaded, put in afterwards.

In between, transformers knows nothing of them: it neither misses them nor initializes them, and what else the
checkpoint has it loads as always.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import torch

from ..checkpoint import open_checkpoint
from ..errors import BadInputError
from ..nn import ExpertWeights, QuantizedWeight
from .destinations import Destination, FindDestination, Unplaceable, destination_finder
from .weights import StoredWeight, find_weights


class QuantizedModel:
    """The weights of a directory that belong to a model which is about to be loaded, on the meta device until then."""

    def __init__(
        self, model: torch.nn.Module, files: list[str] | None, device_map: Any, compute_dtype: torch.dtype | None
    ) -> None:
        self._model = model
        self._directory = str(pathlib.Path(files[0]).parent) if files else model.config._name_or_path
        self._devices = device_map if isinstance(device_map, dict) else {"": device_map or "cpu"}
        self._compute_dtype = compute_dtype
        self._tensors = open_checkpoint(self._directory)
        self._weights = find_weights(self._tensors)
        find = destination_finder(model)
        try:
            self._destinations = {name: self._destination(find, name) for name in self._weights}
            self._check_codes(find)
        except Unplaceable as error:
            raise BadInputError(f"{self._directory}: {error}") from None
        self._taken: dict[tuple[str, str], list[tuple[Destination, StoredWeight]]] = {}
        self._dtypes: dict[tuple[str, str], torch.dtype] = {}
        self.tied: list[str] = []
        """Modules whose weight is that of another one."""

    def take_out(self) -> None:
        for name, destination in self._destinations.items():
            place = (destination.module, destination.leaf)
            self._taken.setdefault(place, []).append((destination, self._weights[name]))
        self._follow_ties()
        for place, pieces in self._taken.items():
            module = self._model.get_submodule(place[0])
            parameter = module._parameters[place[1]]
            self._check(module, parameter, pieces)
            self._dtypes[place] = parameter.dtype
            # Not a parameter any more, but of its shape: transformers' code to initialize models looks at it.
            del module._parameters[place[1]]
            setattr(module, place[1], parameter.detach())
            module._is_hf_initialized = True
        self._check_other_layers()
        if any(pieces[0][0].expert is not None for pieces in self._taken.values()):
            self._use_loop_over_experts()
        self._ignore_parts()

    def put_in(self) -> None:
        for place, pieces in self._taken.items():
            parent, _, name = place[0].rpartition(".")
            module = self._model.get_submodule(place[0])
            delattr(module, place[1])
            if pieces[0][0].expert is not None:
                setattr(module, place[1], self._expert_weights(place, pieces).to(self._device_of(place[0])))
            elif type(module) is torch.nn.Linear or type(module).__name__ == "Conv1D":
                bias = getattr(module, "bias", None)
                layer = pieces[0][1].layer(self._tensors, bias, self._compute_dtype).train(module.training)
                setattr(self._model.get_submodule(parent), name, layer.to(self._device_of(place[0])))
            else:
                weight = QuantizedWeight([pieces[0][1].part(self._tensors)], self._dtypes[place])
                setattr(module, place[1], weight.to(self._device_of(place[0])))

    @property
    def renamed(self) -> str | None:
        """A quantized weight that has another name in the model than in the checkpoint, those of experts aside."""
        return next(
            (name for name, at in self._destinations.items() if at.expert is None and name != f"{at.module}.{at.leaf}"),
            None,
        )

    def summary(self) -> str:
        """How much of the checkpoint is quantized."""
        total = sum(self._tensors.info(name).bytes for name in self._tensors)
        quantized = sum(weight.bytes for weight in self._weights.values())
        return (
            f"{self._directory}: {len(self._weights)} quantized weights with {quantized / 1e9:.3f} GB, "
            f"{100 * quantized / max(total, 1):.1f} % of the bytes"
        )

    def _destination(self, find: FindDestination, name: str) -> Destination:
        found = find(name)
        if found is None:
            raise Unplaceable(f"tensor '{name}': {type(self._model).__name__} has no weight of this name")
        return found

    def _check_codes(self, find: FindDestination) -> None:
        """Refuses codes without the tensors that say what they stand for: transformers would take them for the weights
        themselves. The model may have buffers of integers, but its weights are floating-point numbers."""
        parts = {part for weight in self._weights.values() for part in weight.parts.values()}
        for name in self._tensors:
            info = self._tensors.info(name)
            if not info.dtype.startswith(("I", "U")) or name in parts:
                continue
            at = find(name)
            if at is None:
                continue
            filled = self._model.get_submodule(at.module)._parameters.get(at.leaf)
            if filled is not None and filled.is_floating_point():
                codes = f"tensor '{name}' holds {info.dtype} codes"
                raise BadInputError(f"{info.file}: {codes}, but has no SCB or quant_state")

    def _expert_weights(self, place: tuple[str, str], pieces: list[tuple[Destination, StoredWeight]]) -> ExpertWeights:
        experts: dict[int, dict[int, StoredWeight]] = {}
        for destination, weight in pieces:
            assert destination.expert is not None, "all pieces are of experts if the first is"
            experts.setdefault(destination.expert, {})[destination.piece] = weight
        return ExpertWeights([
            QuantizedWeight(
                [stored.part(self._tensors, self._compute_dtype) for _, stored in sorted(parts.items())],
                self._dtypes[place],
            )
            for _, parts in sorted(experts.items())
        ])  # fmt: skip

    def _check(
        self, module: torch.nn.Module, parameter: torch.Tensor, pieces: list[tuple[Destination, StoredWeight]]
    ) -> None:
        destination, weight = pieces[0]
        what = f"{self._directory}: tensor '{weight.name}'"
        if destination.expert is None:
            shape = tuple(parameter.shape)
            if type(module).__name__ == "Conv1D":  # quantized as the linear layer that it is
                shape = shape[::-1]
            if weight.shape != shape:
                raise BadInputError(f"{what}: is {list(weight.shape)}, the model's weight is {list(shape)}")
            return
        experts, rows, columns = parameter.shape
        found: dict[int, int] = {}
        for at, stored in pieces:
            assert at.expert is not None, "all pieces are of experts if the first is"
            found[at.expert] = found.get(at.expert, 0) + stored.shape[0]
            if stored.shape[1] != columns:
                raise BadInputError(
                    f"{self._directory}: tensor '{stored.name}': is {list(stored.shape)}, the model's experts have "
                    f"{columns} columns"
                )
        if sorted(found) != list(range(experts)) or set(found.values()) != {rows}:
            raise BadInputError(
                f"{what}: the experts of its layer are {len(found)} with {sorted(set(found.values()))} rows, the "
                f"model's are {experts} with {rows}"
            )

    def _check_other_layers(self) -> None:
        """Refuses a weight that is missing although another layer's is quantized: transformers would give it random
        values. The classification head that a base lacks has no other layer, so it stays allowed."""
        others = {}
        for name, at in self._destinations.items():
            place = f"{at.module}.{at.leaf}"
            if at.expert is None and _with_numbers_of(place, name) == name:
                others[_without_numbers(place)] = name
        for needed, _ in self._model.named_parameters():
            other = others.get(_without_numbers(needed))
            if other is None:
                continue
            name = _with_numbers_of(needed, other)
            if name not in self._tensors:
                kind = type(self._model).__name__
                raise BadInputError(f"{self._directory}: tensor '{name}': is missing, {kind} needs it")

    def _follow_ties(self) -> None:
        """A weight that is tied to a quantized one is that one."""
        ties = getattr(self._model, "all_tied_weights_keys", None) or {}
        if not ties and getattr(self._model.config, "tie_word_embeddings", False):
            head = self._model.get_output_embeddings()
            if head is not None:  # else the model may have no embeddings to ask for
                embeddings = self._model.get_input_embeddings()
                ties = {f"{self._name_of(head)}.weight": f"{self._name_of(embeddings)}.weight"}
        for target, source in list(ties.items()):
            place = tuple(source.rpartition(".")[::2])
            if place in self._taken and target != source:
                module, _, leaf = target.rpartition(".")
                if (module, leaf) not in self._taken:
                    self._taken[module, leaf] = self._taken[place]
                    self.tied.append(module)
                ties.pop(target)
        self._declare_other_ties()

    def _declare_other_ties(self) -> None:
        """model.tie_weights() ties what its classes declare, and quantized weights are no parameters."""
        if self.tied and hasattr(self._model, "_tie_or_clone_weights"):  # transformers 4, for an output layer
            self._model._tie_or_clone_weights = _leave_tied
        for name, module in self._model.named_modules():
            if not isinstance(getattr(module, "_tied_weights_keys", None), dict):  # a list in transformers 4
                continue
            prefix = f"{name}." if name else ""
            declared = module.get_expanded_tied_weights_keys()
            others = {
                target: source
                for target, source in declared.items()
                if tuple(f"{prefix}{source}".rpartition(".")[::2]) not in self._taken
            }
            if len(others) < len(declared):
                module._tied_weights_keys = others

    def _name_of(self, module: torch.nn.Module) -> str:
        return next((name for name, other in self._model.named_modules() if other is module), "")

    def _use_loop_over_experts(self) -> None:
        """The other implementations take the weights of all experts as one tensor."""
        for config in {id(m.config): m.config for m in self._model.modules() if hasattr(m, "config")}.values():
            if hasattr(config, "_experts_implementation"):
                config._experts_implementation = "eager"

    def _ignore_parts(self) -> None:
        """transformers says nothing of tensors of the checkpoint that it did not ask for."""
        names = {part for weight in self._weights.values() for part in weight.parts.values()}
        parts = {part for weight in self._weights.values() for part in weight.parts}
        of_int8 = parts & {"SCB", "weight_format"}  # beside the weight; others follow its name, and its renaming
        ends = {part.removeprefix("weight") for part in parts - of_int8}
        names |= {f"{module}.{leaf}{end}" for module, leaf in self._taken for end in ends}
        patterns = {re.sub(r"\d+", r"\\d+", re.escape(name)) + "$" for name in names}
        patterns |= {rf"\.{part}$" for part in of_int8}
        old = self._model._keys_to_ignore_on_load_unexpected
        self._model._keys_to_ignore_on_load_unexpected = (list if old is None else type(old))([*(old or ()), *patterns])

    def _device_of(self, module: str) -> Any:
        while module and module not in self._devices:
            module = module.rpartition(".")[0]
        return self._devices.get(module, "cpu")


def _leave_tied(output_embeddings: torch.nn.Module, input_embeddings: torch.nn.Module) -> None:
    """In place of a method that gives the first the weight of the second, which it has already."""


def _without_numbers(name: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def _with_numbers_of(place: str, name: str) -> str:
    """`name` with the numbers of layers and of experts that `place` has."""
    numbers = (part for part in place.split(".") if part.isdigit())
    return ".".join(next(numbers, part) if part.isdigit() else part for part in name.split("."))
