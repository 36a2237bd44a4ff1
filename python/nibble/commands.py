"""The commands of `nibble` as functions that return the JSON of --json.

A keyword is an option: `block_size=32` is `--block-size 32`, `overwrite=True` is `--overwrite`, a list repeats the
option, and None or False leave it out. The texts of errors are those of the command line.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import inspect as inspection
import json
import numbers
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, Union

from . import _library
from .errors import DifferenceError, UsageError, error_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Path = Union[str, "os.PathLike[str]"]
Progress = Callable[[str, int, int], Any]
Texts = Union[str, Sequence[str]]
Arguments = ParamSpec("Arguments")


def arguments_of(command: str, options: dict[str, Any]) -> list[str]:
    """Keywords as options of the command line."""
    arguments = []
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        if (numpy := sys.modules.get("numpy")) and isinstance(value, numpy.bool_):
            value = bool(value)
        if value is None or value is False:
            continue
        if value is True:
            if option in _options_with_values(command):
                raise UsageError(f"{name} is True, and {option} needs a value")
            arguments.append(option)
        elif isinstance(value, (list, tuple)):
            arguments += [f"{option}={text_of(one, name)}" for one in value]
        else:
            arguments.append(f"{option}={text_of(value, name)}")
    return arguments


def text_of(value: Any, name: str) -> str:
    if isinstance(value, (bytes, os.PathLike)):
        return os.fsdecode(value)
    if not isinstance(value, (str, numbers.Number)):
        raise UsageError(f"{name} has a {type(value).__name__}, not a text, a path, a number, or a list of them")
    return str(value)


@functools.cache
def _options_with_values(command: str) -> set[str]:
    """Empty if there is no such command, which is for the library to say."""
    known = list_commands().get(command, {"options": []})["options"]
    return {option["name"] for option in known if option["takes_value"]}


class Job:
    """One run of a command: what it is told and what it tells."""

    def __init__(self, arguments: Sequence[str], progress: Progress | None):
        self.arguments = [_library.bytes_of(argument) for argument in arguments]
        self.progress = progress
        self.cancel = ctypes.c_int(0)
        self.ended = threading.Event()
        self.notes: list[str] = []
        self.raised: BaseException | None = None
        self.code = 0
        self.message = ""
        self.text = ""

    def run(self) -> None:
        _running.add(self)
        try:
            if not _this_thread_ends():
                self.call_library()
        finally:
            _running.discard(self)
            self.ended.set()
        if _this_thread_ends():
            sys.exit()  # without a word, as Python would end it

    def call_library(self) -> None:
        library = _library.library()
        listener = _library.Listener(
            note=_library.NoteFunction(lambda _, line: self.notes.append(line.decode(errors="replace"))),
            cancel=ctypes.pointer(self.cancel),
        )
        if self.progress is not None:
            listener.progress = _library.ProgressFunction(self.advance)
        argv = (ctypes.c_char_p * len(self.arguments))(*self.arguments)
        out = ctypes.c_void_p()
        try:
            self.code = library.nibble_command(len(self.arguments), argv, ctypes.byref(listener), ctypes.byref(out))
            self.message = _library.message() if self.code != 0 else ""
        finally:
            self.text = _library.take_text(out)

    def advance(self, _: Any, tensor: bytes, done: int, total: int) -> int:
        try:
            assert self.progress is not None  # it is called only if there is one
            answer = self.progress(tensor.decode(errors="replace"), done, total)
            numpy = sys.modules.get("numpy")  # whoever returns its False has imported it
            return 1 if answer is False or (numpy and isinstance(answer, numpy.bool_) and not answer) else 0
        except BaseException as error:  # ctypes would print it and go on
            self.raised = error
            return 1

    def run_interruptibly(self) -> None:
        """On a thread of its own: Python handles Ctrl-C between two instructions of the main thread, and a call into a
        library is one of them, however long it takes."""
        failure: list[BaseException] = []
        began, ended = threading.Event(), threading.Event()

        def work() -> None:
            began.set()
            try:
                self.run()
            except BaseException as error:
                failure.append(error)
            finally:
                ended.set()

        # join() would not do: before Python 3.13, an interrupted one takes the thread for ended, and the next one
        # returns while the command still runs.
        thread = threading.Thread(target=work, name="nibble")
        try:
            thread.start()
            ended.wait()
        except BaseException as error:
            if isinstance(error, RuntimeError) and thread.ident is None:  # Python 3.12 starts no thread while it ends
                return self.run()
            self.cancel.value = 1
            if began.wait(1):  # else start() was interrupted before there was a thread
                ended.wait()
            raise
        finally:
            if ended.is_set():
                thread.join()
        if failure:
            raise failure[0]


_running: set[Job] = set()
_python_ends = False


def _this_thread_ends() -> bool:
    return _python_ends and threading.current_thread().daemon


def _end_running(max_seconds: float = 10) -> None:
    """Python does not wait for daemon threads. It unwinds the stack of one that takes the GIL after the end, and that
    aborts the process if the stack leads through libnibble, which calls `progress`. So commands are cancelled before
    the end, and waited for. A callback that never returns must not keep the process, hence the limit."""
    global _python_ends
    _python_ends = True
    running = list(_running)
    for job in running:
        job.cancel.value = 1
    deadline = time.monotonic() + max_seconds
    for job in running:
        job.ended.wait(max(0, deadline - time.monotonic()))


atexit.register(_end_running)
os.register_at_fork(after_in_child=_running.clear)  # the child has no other threads


def run(command: str, *arguments: Path, progress: Progress | None = None, **options: Any) -> dict[str, Any]:
    """Runs a command of `nibble` and returns its JSON.

    `progress` is called with the current tensor, the bytes of weights that are done, and their total, from one thread
    at a time; while merge hashes the adapter, with the current file, the bytes that are hashed, and their total. If it
    returns False, the command stops, and Cancelled is raised; if it raises, the command stops as well, and run() raises
    that. Ctrl-C stops the command, too. A command that is stopped leaves no output behind; `resume=True` goes on with
    what a conversion had finished.
    """
    return _run(command, arguments, progress, options)


def _run(command: str, arguments: Sequence[Path], progress: Progress | None, options: dict[str, Any]) -> dict[str, Any]:
    """run() without its signature. A warning names the line that called the caller of this function."""
    if not isinstance(command, str):
        raise UsageError(f"the command is a {type(command).__name__}, not a text")
    words = [command, *arguments_of(command, options), "--", *map(os.fsdecode, arguments)]
    job = Job(words, progress)
    job.run_interruptibly() if threading.current_thread() is threading.main_thread() else job.run()
    if job.raised is not None:
        raise job.raised
    report: dict[str, Any] = json.loads(job.text) if job.text.startswith("{") else {}
    if job.code != 0:
        error = error_of(job.code, job.message)
        if isinstance(error, DifferenceError):
            error.report = report
        raise error
    if not report:
        raise UsageError(f"{command}: `nibble` prints a text for these arguments, and no JSON")
    for note in job.notes:
        warnings.warn(note.removeprefix("warning: "), stacklevel=3)
    return report


def list_commands() -> dict[str, Any]:
    """All commands with their arguments and options, from libnibble itself."""
    out = ctypes.c_void_p()
    _library.check(_library.library().nibble_list_commands(ctypes.byref(out)))
    commands: dict[str, Any] = json.loads(_library.take_text(out))
    return commands


# --- options, each in one place. False or None stands for what the program does without it. --------------------------


class Quantization(TypedDict, total=False):
    """What is quantized, and how."""

    block_size: int | None
    no_double_quant: bool
    absmax: str | None
    calibration: Path | None
    compensate: bool
    compute_dtype: str | None
    nonfinite: str | None
    error_report: str | None
    tensor: Texts | None
    skip: Texts | None
    no_default_skips: bool
    embeddings: str | None
    lm_head: str | None
    experts: str | None
    allow_nibble_only: bool


class Output(TypedDict, total=False):
    """What is written."""

    on_overflow: str | None
    max_shard_size: str | int | None
    keep_shards: bool
    overwrite: bool
    resume: bool
    dry_run: bool


class Comparison(TypedDict, total=False):
    """What is measured, and what is too large an error."""

    to: Texts | None
    advise: str | None
    calibration: Path | None
    allow_nibble_only: bool
    worst: int | None
    html: Path | None
    max_rmse: Texts | None
    min_sqnr: Texts | None
    min_cosine: Texts | None


class Resources(TypedDict, total=False):
    """What a run may take, and whom it tells how far it is."""

    max_memory: str | int | None
    threads: int | None
    progress: Progress | None


class Convert(Quantization, Output, Resources, total=False):
    to: Texts | None
    advise: str | None
    device: str | None


class Dequantize(Output, Resources, total=False):
    pass


class Merge(Quantization, Output, Resources, total=False):
    pass


class Measure(Comparison, Resources, total=False):
    pass


def signature_of(declaration: Callable[..., Any]) -> inspection.Signature:
    """The signature with a keyword for each option of `**options: Unpack[Class]`, for calls and for help()."""
    signature = inspection.signature(declaration)
    parameters: list[inspection.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is not inspection.Parameter.VAR_KEYWORD:
            parameters.append(parameter)
            continue
        options = globals()[parameter.annotation.removeprefix("Unpack[").removesuffix("]")]
        for name, annotation in options.__annotations__.items():
            text = annotation.__forward_arg__
            default = False if text == "bool" else None
            parameters.append(
                inspection.Parameter(name, inspection.Parameter.KEYWORD_ONLY, default=default, annotation=text)
            )
    return signature.replace(parameters=parameters)


def command(declaration: Callable[Arguments, dict[str, Any]]) -> Callable[Arguments, dict[str, Any]]:
    """Makes a command of a function without a body: its name, its arguments, its keywords are those of the command."""
    signature = signature_of(declaration)

    @functools.wraps(declaration)
    def call(*given: Arguments.args, **keywords: Arguments.kwargs) -> dict[str, Any]:
        bound = signature.bind(*given, **keywords)
        arguments: list[Path] = []
        options: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspection.Parameter.POSITIONAL_ONLY:
                arguments.append(value)
            elif kind is inspection.Parameter.VAR_POSITIONAL:
                arguments += value
            else:
                options[name] = value
        return _run(declaration.__name__, arguments, options.pop("progress", None), options)

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    call.__annotations__["return"] = signature.return_annotation
    return call


# --- commands ---------------------------------------------------------------------------------------------------------


@command
def convert(source: Path, output: Path, /, **options: Unpack[Convert]) -> dict[str, Any]:
    """Converts a checkpoint: quantizes its linear layers, or casts all weights. It needs `to` or `advise`; what was
    chosen for a size is "advice" in the report. `nibble convert --help` explains the options.

    >>> nibble.convert("Llama-3.1-8B", "Llama-3.1-8B-nf4", to="nf4", progress=lambda name, done, total: print(done))
    >>> nibble.convert("Llama-3.1-8B", "Llama-3.1-8B-5.5", advise="5.5bits", calibration="STATS")["advice"]["options"]
    """


@command
def dequantize(source: Path, output: Path, /, *, to: str, **options: Unpack[Dequantize]) -> dict[str, Any]:
    """Turns a quantized checkpoint back into plain weights. `nibble dequantize --help` explains the options.

    >>> nibble.dequantize("Llama-3.1-8B-nf4", "Llama-3.1-8B-bf16", to="bf16")
    """


@command
def merge(base: Path, adapter: Path, output: Path, /, *, to: str, **options: Unpack[Merge]) -> dict[str, Any]:
    """Merges a LoRA adapter of peft into its base, plain or quantized. `nibble merge --help` explains the options. If the
    result is quantized, "updates" in the report says for each tensor how much of its update is left.

    >>> nibble.merge("Llama-3.1-8B-nf4", "adapter", "merged-nf4", to="nf4")["updates"][0]["cosine"]
    """


@command
def measure(reference: Path, /, *tests: Path, **options: Unpack[Measure]) -> dict[str, Any]:
    """Measures the error of a conversion, tensor by tensor. `nibble measure --help` explains the options.

    Raises DifferenceError, which has the report, if a tensor breaks a limit.
    """


@command
def inspect(checkpoint: Path, /, *, max_memory: str | int | None = None) -> dict[str, Any]:
    """Lists the stored tensors of a checkpoint, quantized or not. Reads headers only."""


@command
def formats() -> dict[str, Any]:
    """Lists codecs with their options, containers and CPU targets."""
