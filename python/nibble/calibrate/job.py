"""The calibration of a model on a text, stage by stage."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers

from ..calibration import FORMAT, VERSION
from ..errors import UsageError
from ..model_directory import BadInput, check_directory, read_config, read_text
from ..model_error import kind_of, lines, load_tokenizer, model_config, sequences, vocabulary, window
from . import sensitivity
from .inputs import Inputs, Memory
from .loading import Model, checkpoint_parameters, checkpoint_weights, hash_of, tensor_names, weight_files
from .output import Output
from .products import Products, Weights
from .stack import Stack, Unsuitable

MOST = 0.8  # of the memory that is free: what the weights may take before layers are loaded one at a time


@dataclasses.dataclass
class Options:
    """Those of the command line."""

    model: str
    text: str
    out: str
    second_moments: bool = False
    sensitivities: bool = False
    sequence_length: int | None = None
    sequences: int | None = None
    batch: int = 1
    dtype: str = "auto"
    device: str = "auto"
    layer_by_layer: bool = False
    resume: bool = False
    overwrite: bool = False


class Calibration:
    """`progress(stage, number of the stage, stages, batch, batches)` is called before each batch, and for sensitivities
    with (number of the batch, batches, weight, weights, "weight") before each weight."""

    def __init__(self, options: Options, progress: Callable[..., None]):
        self._options, self._progress = options, progress
        check_directory(options.model)
        self._kind = kind_of(options.model)
        config = read_config(options.model)
        if config.get("quantization_config") is not None:
            raise BadInput(f"{options.model}: is quantized; calibrate the model that it was made from")
        tokenizer = load_tokenizer(options.model)
        if tokenizer is None:
            raise BadInput(f"{options.model}: has no tokenizer")
        self._device = device_of(options.device)
        directory, self._files = pathlib.Path(options.model), weight_files(options.model)
        text = read_text(options.text)
        model_configuration = model_config(options.model)
        length = window(model_configuration, options.sequence_length, "--sequence-length", options.model)
        items = self._items(tokenizer, text, length)
        vocabulary(model_configuration, items, options.model)
        self._batches = batches_of(items, options.batch)
        self._identity = {
            "model": {
                "architecture": (config.get("architectures") or [None])[0],
                "files": {path.name: hash_of(path) for path in (directory / "config.json", *self._files)},
            },
            "text": {
                "sha256": hash_of(pathlib.Path(options.text)),
                "sequences": len(items),
                "sequence_length": length,
                "tokens": sum(map(len, items)),
                "tokens_sha256": hashlib.sha256(json.dumps(items).encode()).hexdigest(),
            },
            "second_moments": options.second_moments,
            "value_inputs": "attended",
            "batch": options.batch,
            "dtype": options.dtype,
            "device": self._device,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }  # fmt: skip
        if options.sensitivities:
            chosen = sensitivity.sample(items)
            self._sample = batches_of(chosen, options.batch)
            self._identity["noise"] = {
                "loss": sensitivity.LOSSES[self._kind],
                "relative_squared_error": sensitivity.NOISE,
                "sequences": len(chosen),
                "tokens": sum(map(len, chosen)),
            }

    def run(self) -> dict[str, Any]:
        """Writes the directory. Returns its manifest."""
        options = self._options
        output = Output(pathlib.Path(options.out), self._identity, options.resume, options.overwrite)
        with contextlib.closing(output), torch.no_grad():
            return self._run(output)

    def _run(self, output: Output) -> dict[str, Any]:
        options = self._options
        size, free = weight_bytes(self._files, options), free_memory(self._device)
        by_layer = options.layer_by_layer or size > MOST * free
        if by_layer and options.sensitivities:
            raise MemoryError(
                f"--sensitivities needs all weights in memory: {size / 1e9:.2f} GB, {free / 1e9:.2f} GB are free"
            )
        try:
            self._model = Model(options.model, self._kind, self._device, options.dtype, by_layer)
            # The value projection of a checkpoint with q, k and v in one is no tensor of it.
            self._own_tensors = set(checkpoint_parameters(self._model.model, self._tensor_names()).values())
            self._stack = Stack(self._model.stack_name, self._model.layers)
            returned = (stage["returned"] for stage in output.stages.values())
            self._stack.returned = [members for members in returned if members is not None]
            layers_alone = by_layer or self._can_run_alone()
            names = stages_of(len(self._stack) if layers_alone else None)
            for number, (stage, index) in enumerate(names):
                if stage not in output.stages:
                    self._stage(output, stage, index, number, len(names))
        except Unsuitable as error:
            raise BadInput(f"{options.model}: its layers can't run one at a time: {error}") from None
        manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION} | self._identity | self._results(output)
        if options.sensitivities:
            manifest["sensitivities"] = self._sensitivities(output, manifest["weights"])
        output.complete(manifest)
        return manifest

    def _items(self, tokenizer: Any, text: str, length: int) -> list[list[int]]:
        """Sequences, or for encoders lines, those of equal length together."""
        path = self._options.text
        if self._kind == "encoder":
            return sorted(lines(tokenizer, text, length, path)[: self._options.sequences], key=len)
        items, tokens = sequences(tokenizer, text, length)
        if not items:
            raise BadInput(f"{path}: has {tokens} tokens, a sequence takes {length}")
        found: list[list[int]] = items[: self._options.sequences]
        return found

    def _can_run_alone(self) -> bool:
        """Whether each layer gives the same by itself, on the first batch."""
        if not len(self._stack):
            return False
        batch, call = self._batches[0], self._call(self._batches[0])
        try:
            self._hidden(batch, self._stack.before(call))
            self._stack.compare(call)
        except Unsuitable:
            return False
        return True

    def _call(self, batch: list[list[int]]) -> Callable[[], Any]:
        tokens = torch.tensor(batch, device=self._device)
        return lambda: self._model.model(tokens)

    def _stage(self, output: Output, stage: str, index: int | None, number: int, stages: int) -> None:
        if index is not None:
            self._model.load_layer(index)
        parameters = self._model.parameters(stage, index)
        if stage == "after":
            parameters = ((n, p) for n, p in parameters if n not in output.stages["before"]["weights"])
        memory = Memory(free_memory("cpu") if self._device == "cpu" else float("inf"))
        inputs = Inputs(self._options.second_moments, memory)
        states = output.new_states() if stage not in ("after", "whole") else None
        with Products(Weights(parameters), inputs, self._own_tensors) as products:
            self._pass_all(output, stage, index, products, states, (number, stages))
        if index is not None:
            self._model.drop_layer(index)
        tensors: dict[str, Any] = {}
        sizes: dict[str, Any] = {}
        for weight, (columns, tokens, statistics) in inputs.finish().items():
            name = input_name(weight)
            sizes[name] = {"columns": columns, "tokens": tokens, "file": f"{stage}.safetensors"}
            tensors |= {f"{name}.{statistic}": value for statistic, value in statistics.items()}
        weights = {weight: input_name(owner) for weight, owner in inputs.of_weight.items()}
        returned = None if index is None else self._stack.returned[index]
        output.save(stage, {"inputs": sizes, "weights": weights, "returned": returned}, tensors, states)

    def _pass_all(
        self, output: Output, stage: str, index: int | None, products: Products, states: Any, number: tuple[int, int]
    ) -> None:
        """All batches through one stage."""
        calls = self._each(stage, number, products)
        if stage == "whole":
            for _, call in calls:
                call()
        elif stage == "before":
            with states.writer() as write:
                for batch, call in calls:
                    write(self._hidden(batch, self._stack.before(call)))
        elif index is not None:
            with states.writer() as write:
                for hidden, (_, call) in zip(self._given(output), calls):
                    write(self._stack.run(index, call, hidden))
        else:
            for hidden, (_, call) in zip(self._given(output), calls):
                self._stack.after(call, hidden)

    def _each(self, stage: str, number: tuple[int, int], products: Products) -> Iterator[tuple[Any, Callable[[], Any]]]:
        for position, batch in enumerate(self._batches):
            self._progress(stage, *number, position, len(self._batches))
            products.begin_call()
            yield batch, self._call(batch)

    def _given(self, output: Output) -> Any:
        for hidden in output.states().read([(len(batch), len(batch[0])) for batch in self._batches]):
            yield hidden.to(self._device)

    @staticmethod
    def _hidden(batch: list[list[int]], hidden: Any) -> Any:
        if tuple(hidden.shape[:2]) != (len(batch), len(batch[0])) or hidden.ndim != 3:
            raise Unsuitable(f"hidden states {list(hidden.shape)} of {len(batch)} sequences of {len(batch[0])} tokens")
        return hidden

    def _results(self, output: Output) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        of_weight: dict[str, str] = {}
        for stage in output.stages.values():
            inputs |= stage["inputs"]
            of_weight |= stage["weights"]
        weights = checkpoint_weights(self._model.model, self._tensor_names(), of_weight)
        if not weights:
            raise BadInput(f"{self._options.model}: no weight of it was multiplied by anything")
        return {"inputs": inputs, "weights": weights}

    def _tensor_names(self) -> dict[str, int]:
        return {name: ndim for path in self._files for name, ndim in tensor_names(path).items()}

    def _sensitivities(self, output: Output, weights: dict[str, Any]) -> dict[str, float]:
        """{tensor of the checkpoint: a}, without those whose noise changes nothing. Tensors that are parts of one
        parameter have equal shares of its a: experts, whose noise is one."""
        parameters = dict(self._model.model.named_parameters())
        of_tensor = checkpoint_parameters(self._model.model, self._tensor_names())
        parts = Counter(of_tensor.values())
        sums = self._losses(output, {of_tensor[name]: parameters[of_tensor[name]] for name in weights})
        samples = sum(sensitivity.samples_of(self._kind, torch.tensor(batch)) for batch in self._sample)
        found = {}
        for name in weights:
            parameter = of_tensor[name]
            share = parts[parameter] if parameters[parameter].ndim == 3 else 1
            value = sums[parameter] / samples / sensitivity.NOISE / share
            if value != 0:
                found[name] = max(value, 0.0)  # rounding can make it negative
        return found

    def _losses(self, output: Output, parameters: dict[str, Any]) -> dict[str, float]:
        """Sums over the sample. After each batch they are saved, and an interrupted run goes on with the next one."""
        stage, total = "sensitivities", len(self._sample)
        done = output.stages.get(stage, {"batches": 0, "sums": dict.fromkeys(parameters, 0.0)})
        sums = dict(done["sums"])
        for number in range(done["batches"], total):
            tokens = torch.tensor(self._sample[number], device=self._device)
            found = sensitivity.losses(self._model.model, self._kind, list(parameters.values()), tokens, number)
            for position, name in enumerate(parameters):
                self._progress(stage, number, total, position, len(parameters), "weight")
                value = next(found)
                if not math.isfinite(value):
                    raise BadInput(f"{self._options.model}: its output is not finite with noise on '{name}'")
                sums[name] += value
            result = {"inputs": {}, "weights": {}, "returned": None, "batches": number + 1, "sums": dict(sums)}
            output.save(stage, result, {}, None)
        return sums


def stages_of(layers: int | None) -> list[tuple[str, int | None]]:
    """[(stage, number of its layer)]"""
    if layers is None:
        return [("whole", None)]
    return [("before", None), *((f"layer-{index:05}", index) for index in range(layers)), ("after", None)]


def batches_of(items: list[list[int]], size: int) -> list[list[list[int]]]:
    """Items of one length each, so that none is padded."""
    batches: list[list[list[int]]] = []
    for item in items:
        if not batches or len(batches[-1]) == size or len(batches[-1][0]) != len(item):
            batches.append([])
        batches[-1].append(item)
    return batches


def input_name(weight: str) -> str:
    return weight.removesuffix(".weight")


def device_of(wanted: str) -> str:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU")
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def weight_bytes(files: list[pathlib.Path], options: Options) -> int:
    """What the weights take in memory. Stored types are taken to have 16 bits."""
    factor = 2 if options.dtype == "float32" else 1
    return factor * sum(path.stat().st_size for path in files)


def free_memory(device: str) -> float:
    """Bytes that this process can still take; of a control group, what its limit leaves."""
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    free = float("inf")
    for line in lines_of("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = 1024.0 * int(line.split()[1])
    limit = "".join(lines_of("/sys/fs/cgroup/memory.max"))
    used = [line.split()[1] for line in lines_of("/sys/fs/cgroup/memory.stat") if line.startswith("anon ")]
    return min(free, float(limit) - float(used[0])) if limit.isdigit() and used else free


def lines_of(path: str) -> list[str]:
    try:
        return pathlib.Path(path).read_text().splitlines()
    except OSError:
        return []
