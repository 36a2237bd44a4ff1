"""Runs two models over one text, window by window, and says how far apart they are. Needs torch and transformers.

REF and one TEST are in memory at a time, with the logits of one batch of windows and a few numbers per scored token:
more windows take more time, not more memory. A pair that doesn't fit can be measured on another machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor

from .layer_error import LayerError
from .model_directory import BadInput, Path, check_pickles, one_line, read_config, read_text
from .token_statistics import TokenStatistics, mean_and_error, percentile

# What can be missing or left over without a change in the hidden states that are compared.
HEADS = ("pooler", "cls.", "classifier", "lm_head", "seq_relationship", "position_ids")
# How the parameters of a layer are called. Whatever else a quantized layer has is its state, such as scales, however the
# tool that quantized it calls them.
PARAMETERS = (".weight", ".bias", "position_ids")
LOCAL = {"local_files_only": True, "trust_remote_code": False}  # a model's own code is not run, and nobody is asked
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "spiece.model", "sentencepiece*.model", "*.tiktoken", "tekken.json")


def quiet() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def model_config(directory: Path) -> Any:
    """transformers' own view of config.json; of models of several parts, that of the text."""
    with bad_input(f"{directory}/config.json"):
        return transformers.AutoConfig.from_pretrained(directory, **LOCAL).get_text_config()


@contextlib.contextmanager
def bad_input(path: Path) -> Iterator[None]:
    """What transformers makes of a file that is not as it expects can be any exception: that is the file's fault."""
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            raise
        raise BadInput(f"{path}: {one_line(error)}") from None


def number(config: Any, name: str, path: Path) -> int | None:
    """A field of a configuration, which may be missing."""
    value = getattr(config, name, None)
    if value is not None and not isinstance(value, int):
        raise BadInput(f"{path}/config.json: '{name}' is not a number")
    return value


def kind_of(directory: Path) -> str:
    """"language model" or "encoder", from the architectures in config.json."""
    config = read_config(directory)
    names = config.get("architectures") or ["a model without 'architectures'"]
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        return "language model"
    if config.get("is_encoder_decoder") or any(name.endswith("ForConditionalGeneration") for name in names):
        raise BadInput(f"{directory}: {names[0]} is neither a language model (...ForCausalLM) nor an encoder")
    return "encoder"


def is_left_out(name: str, heads: Sequence[str]) -> bool:
    """Whether a tensor is a parameter of a head. A quantization state is not: without it, codes are taken for weights."""
    return name.endswith(PARAMETERS) and any(head in name for head in heads)


def load(
    directory: Path, kind: str, device: str, dtype: str, device_map: dict[str, str] | None = None
) -> Any:
    """The model, which must have found every tensor that it needs: a lost quantization state would go unnoticed."""
    auto = transformers.AutoModelForCausalLM if kind == "language model" else transformers.AutoModel
    options: dict[str, Any] = LOCAL | {"dtype": dtype, "output_loading_info": True}
    if device_map is not None:
        options["device_map"] = device_map
    elif torch.cuda.is_available():
        options["device_map"] = {"": device}  # bitsandbytes would choose the GPU by itself
    try:
        with bad_input(directory):
            model, info = auto.from_pretrained(directory, **options)
    except BadInput:
        check_pickles(directory)
        raise
    ignored = HEADS if kind == "encoder" else ()
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs", "conversion_errors"):
        names = [name for name in sorted(map(str, info.get(what) or ())) if not is_left_out(name, ignored)]
        if names:
            raise BadInput(f"{directory}: {what.replace('_', ' ')}: {names[0]}, {len(names)} in all")
    return model.eval()


def out_of_memory(error: BaseException) -> bool:
    """torch has a type of its own for this on GPUs only."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)


def load_tokenizer(directory: Path) -> Any:
    """None if the directory has no tokenizer: then REF's is meant."""
    if not any(True for pattern in TOKENIZER_FILES for _ in pathlib.Path(directory).glob(pattern)):
        return None
    with bad_input(f"{directory}: its tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(directory, **LOCAL)


class Comparison:
    """REF, loaded once, against any number of TESTs. `progress(text)` is called before each batch."""

    def __init__(
        self, reference: Path, text: Path, options: argparse.Namespace, progress: Callable[[str], None]
    ) -> None:
        self._options, self._progress = options, progress
        self.kind = kind_of(reference)
        self._reference_path, self._text_path = reference, text
        self._tokenizer = load_tokenizer(reference)
        if self._tokenizer is None:
            raise BadInput(f"{reference}: has no tokenizer")
        self._text = read_text(text)
        self._config = model_config(reference)
        self._context = window(self._config, self._options.context, "--context", reference)
        self._batches = self._make_batches(self._tokenizer)
        self._vocabulary = vocabulary(self._config, (item for batch in self._batches for item in batch), reference)
        self._model: Any = None

    def _make_batches(self, tokenizer: Any) -> list[list[list[int]]]:
        make = windows if self.kind == "language model" else lines
        items = make(tokenizer, self._text, self._context, self._text_path)
        items = items[: self._options.windows] if self._options.windows else items
        return [items[i : i + self._options.batch] for i in range(0, len(items), self._options.batch)]

    def facts(self) -> dict[str, Any]:
        """What was measured on, for the head of a report."""
        count = sum(map(len, self._batches))
        facts = {"kind": self.kind, "reference": str(self._reference_path), "text": str(self._text_path),
                 "context": self._context, "batch": self._options.batch, "windows": count,
                 "device": self._options.device}  # fmt: skip
        if self.kind == "encoder":
            facts["lines"] = facts.pop("windows")
        return facts

    def run(self, test: Path) -> dict[str, Any]:
        """All figures of one TEST."""
        if (kind := kind_of(test)) != self.kind:
            raise BadInput(f"{test}: is a different kind of model ({kind}) than the reference ({self.kind})")
        tokenizer = load_tokenizer(test)
        if tokenizer is not None and self._make_batches(tokenizer) != self._batches:
            raise BadInput(f"{test}: its tokenizer splits {self._text_path} into other tokens than the reference's")
        config = model_config(test)
        if self.kind == "encoder" and getattr(config, "hidden_size", None) != getattr(self._config, "hidden_size", None):
            raise BadInput(f"{test}: its embeddings are not as wide as the reference's")
        size = number(config, "vocab_size", test)
        if self.kind == "language model" and size != self._vocabulary:
            raise BadInput(f"{test}: its vocabulary has {size} tokens, the reference's has {self._vocabulary}")
        if self._model is None:
            self._model = load(self._reference_path, self.kind, self._options.device, self._options.dtype)
        model = load(test, self.kind, self._options.device, self._options.dtype)
        compare = self._language_models if self.kind == "language model" else self._encoders
        return {"test": str(test), **compare(model, str(test))}

    @torch.inference_mode()
    def _language_models(self, model: Any, name: str) -> dict[str, Any]:
        statistics, layer_error = TokenStatistics(), self._layer_error(model, name)
        for number, batch in enumerate(self._batches):
            self._progress(f"{name}: batch {number + 1} of {len(self._batches)}")
            tokens = torch.tensor(batch, device=self._options.device)
            outputs: dict[str, Tensor] = {}

            def run(which: str, tokens: Tensor = tokens, outputs: dict[str, Tensor] = outputs) -> None:
                chosen = self._model if which == "reference" else model
                outputs[which] = chosen(tokens, use_cache=False).logits

            self._pass(number, layer_error, run, None)
            for which, path in (("reference", self._reference_path), ("test", name)):
                bad = outputs[which].isnan() | outputs[which].isposinf()
                if bad.any():
                    raise BadInput(f"{path}: a logit is not finite in windows {number * self._options.batch} and on")
            first = self._context // 2  # as llama.cpp: what is scored has half a window before it
            before, after = (outputs[which][:, first:-1].flatten(0, 1) for which in ("reference", "test"))
            statistics.add(before, after, tokens[:, first + 1 :].flatten())
        return statistics.summary() | self._layers(layer_error)

    @torch.inference_mode()
    def _encoders(self, model: Any, name: str) -> dict[str, Any]:
        cosines, layer_error = [], self._layer_error(model, name)
        for number, batch in enumerate(self._batches):
            self._progress(f"{name}: batch {number + 1} of {len(self._batches)}")
            inputs = self._tokenizer.pad({"input_ids": batch}, return_tensors="pt").to(self._options.device)
            outputs: dict[str, Tensor] = {}

            def run(which: str, inputs: Any = inputs, outputs: dict[str, Tensor] = outputs) -> None:
                chosen = self._model if which == "reference" else model
                outputs[which] = chosen(**inputs).last_hidden_state

            self._pass(number, layer_error, run, inputs["attention_mask"])
            units = [embeddings(outputs[which], inputs["attention_mask"]) for which in ("reference", "test")]
            if not all(unit.isfinite().all() for unit in units):
                raise BadInput(f"{name}: an embedding is not finite in lines {number * self._options.batch} and on")
            cosines.append((units[0] * units[1]).sum(-1).cpu())
        return {"cosine": cosine_summary(torch.cat(cosines))} | self._layers(layer_error)

    def _layer_error(self, model: Any, name: str) -> LayerError | None:
        if self._options.layer_batches == 0:
            return None
        try:
            return LayerError(self._model, model)
        except ValueError as error:
            raise BadInput(f"{name}: {error}") from None

    def _pass(
        self, number: int, layer_error: LayerError | None, run: Callable[[str], None], mask: Tensor | None
    ) -> None:
        if layer_error is not None and number < self._options.layer_batches:
            layer_error.add(run, mask)
        else:
            run("reference")
            run("test")

    def _layers(self, layer_error: LayerError | None) -> dict[str, Any]:
        return {} if layer_error is None else {"layers": layer_error.summary()}


def window(config: Any, wanted: int | None, option: str, path: Path) -> int:
    """Tokens that run at once: `wanted`, or by default 512, or all positions of the model if it has fewer."""
    names = ("max_position_embeddings", "n_positions")
    most = next(filter(None, (number(config, name, path) for name in names)), None)
    wanted = wanted or min(512, most or 512)
    if most and wanted > most:
        raise BadInput(f"{path}: has {most} positions, {option} is {wanted}")
    return wanted


def vocabulary(config: Any, items: Iterable[list[int]], path: Path) -> int | None:
    """The size of the vocabulary, None if it is unknown. Each token of the items must be in it."""
    size, largest = number(config, "vocab_size", path), max(max(item, default=0) for item in items)
    if size is not None and largest >= size:
        raise BadInput(f"{path}: its tokenizer makes token {largest}, its vocabulary has {size}")
    return size


def windows(tokenizer: Any, text: str, context: int, path: Path) -> list[list[int]]:
    """The windows of sequences(), of which there must be two."""
    cut, tokens = sequences(tokenizer, text, context)
    if len(cut) < 2:
        raise BadInput(f"{path}: has {tokens} tokens, two windows of {context} take {2 * context}")
    return cut


def sequences(tokenizer: Any, text: str, context: int) -> tuple[list[list[int]], int]:
    """The text cut into windows of `context` tokens, a rest left out, and how many tokens it has. If the tokenizer
    starts texts with a token of its own, that replaces each window's first one, as in llama.cpp; a token at the end is
    not added."""
    with long_texts(tokenizer):
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        starts = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    tokens = [tokenizer.bos_token_id, *tokens] if starts else tokens
    cut = [tokens[i : i + context] for i in range(0, len(tokens) - context + 1, context)]
    return [[tokenizer.bos_token_id, *part[1:]] for part in cut] if starts else cut, len(tokens)


def lines(tokenizer: Any, text: str, context: int, path: Path) -> list[list[int]]:
    """The tokens of each line that is not empty, cut off after `context`."""
    texts = [line.strip() for line in text.splitlines() if line.strip()]
    if not texts:
        raise BadInput(f"{path}: has no line with text")
    tokens: list[list[int]] = tokenizer(texts, truncation=True, max_length=context)["input_ids"]
    return tokens


@contextlib.contextmanager
def long_texts(tokenizer: Any) -> Iterator[None]:
    """Without the warning that a text is longer than the model's context: windows are cut from it."""
    before, tokenizer.model_max_length = tokenizer.model_max_length, 1 << 62
    try:
        yield
    finally:
        tokenizer.model_max_length = before


def embeddings(hidden: Tensor, mask: Tensor) -> Tensor:
    """One unit vector per line: the mean over its tokens, in fp64."""
    weights = mask.unsqueeze(-1).double()
    return torch.nn.functional.normalize((hidden.double() * weights).sum(1) / weights.sum(1), dim=1)


def cosine_summary(cosines: Tensor) -> dict[str, Any]:
    """Mean ± standard error, the least and its line (counted from 1, empty ones left out), and what lies between."""
    mean, error = mean_and_error(cosines)
    ordered = cosines.sort().values
    return {"mean": mean, "error": error, "min": ordered[0].item(), "min_line": int(cosines.argmin()) + 1,
            "p1": percentile(ordered, 1.0), "p10": percentile(ordered, 10.0),
            "median": percentile(ordered, 50.0)}  # fmt: skip
