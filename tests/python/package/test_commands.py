"""The commands as functions: reports, progress, the end on demand, and errors with the texts of the command line."""

import errno
import inspect
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import typing
import warnings

import nibble
import numpy as np
import pytest

PROGRAM = pathlib.Path(os.environ.get("NIBBLE", pathlib.Path(__file__).parents[3] / "build/release/nibble"))

pytestmark = pytest.mark.filterwarnings("ignore:(no architecture is given|nothing is (quantized|cast))")


def by_program(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)


# --- what they do -----------------------------------------------------------------------------------------------------


def test_convert_writes_what_the_program_writes(checkpoint, tmp_path):
    report = nibble.convert(checkpoint, tmp_path / "a.safetensors", to="nf4", block_size=32, no_double_quant=True)
    done = by_program("convert", checkpoint, tmp_path / "b.safetensors", "--to", "nf4", "--block-size", 32, "--json",
                      "--no-double-quant")  # fmt: skip
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    expected = json.loads(done.stdout)
    assert report.keys() == expected.keys()


def test_convert_chooses_for_a_size(checkpoint, tmp_path):
    report = nibble.convert(checkpoint, tmp_path / "out.safetensors", advise="20bits", to=["nf4", "int8"])
    advised = nibble.measure(checkpoint, advise="20bits", to=["nf4", "int8"])
    assert report["advice"]["options"] == advised["options"]
    assert report["stored_bytes"] == advised["chosen"]["bytes"] <= advised["max_bytes"]
    with pytest.raises(nibble.Error, match="--to is required"):
        nibble.convert(checkpoint, tmp_path / "new.safetensors")


# Which takes longer to be imported than the program takes for a small file.
def test_the_program_does_not_wait_for_numpy():
    command = [sys.executable, "-c", "import sys, nibble; print('numpy' in sys.modules)"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"


def test_a_list_repeats_an_option(checkpoint, tmp_path):
    out = tmp_path / "out.safetensors"
    nibble.convert(checkpoint, out, to="nf4", skip=["layers.0.*", "nothing|layers.1.*"], tensor=["bias=fp16"])
    with nibble.open(out) as tensors:
        types = {name: array.dtype.name for name, array in tensors.items()}
    assert types == {"layers.0.weight": "float32", "layers.1.weight": "float32", "bias": "float16"}


def test_inspect_measure_and_formats_give_reports(checkpoint, tmp_path, weights):
    nibble.convert(checkpoint, tmp_path / "out.safetensors", to="int8")
    assert {tensor["name"] for tensor in nibble.inspect(checkpoint)["tensors"]} == set(weights)
    [measured] = nibble.measure(checkpoint, tmp_path / "out.safetensors")["tests"]
    assert 38 < measured["quantized"]["sqnr_db"] < 46
    assert {"nf4", "int8"} <= {codec["name"] for codec in nibble.formats()["codecs"]}


def test_measure_has_the_errors_of_outputs(checkpoint, tmp_path, weights, write_checkpoint):
    mean_square = np.exp(np.random.default_rng(1).standard_normal(64)).astype(np.float32)
    stats = tmp_path / "stats"
    stats.mkdir()
    write_checkpoint(stats / "x.safetensors", {"x.mean_square": mean_square, "x.absmax": mean_square})
    manifest = {"format": "nibble.calibration", "version": 1, "second_moments": False,
                "inputs": {"x": {"columns": 64, "tokens": 9, "file": "x.safetensors"}},
                "weights": {"layers.0.weight": ["x"]}}  # fmt: skip
    (stats / "calibration.json").write_text(json.dumps(manifest))
    nibble.convert(checkpoint, tmp_path / "int8.safetensors", to="int8")
    nibble.dequantize(tmp_path / "int8.safetensors", tmp_path / "out.safetensors", to="fp32")
    with nibble.open(tmp_path / "out.safetensors") as tensors:
        errors = tensors["layers.0.weight"] - weights["layers.0.weight"]
    expected = np.sqrt((mean_square * errors**2).sum() / (mean_square * weights["layers.0.weight"] ** 2).sum())
    for test in nibble.measure(checkpoint, tmp_path / "int8.safetensors", to="int8", calibration=stats)["tests"]:
        assert test["quantized"]["output_tensors"] == 1
        assert test["quantized"]["output_rel_rmse"] == pytest.approx(expected, rel=1e-5)
        assert test["quantized"]["output_sqnr_db"] == pytest.approx(-20 * np.log10(expected), rel=1e-5)


def test_dequantize_gives_back_plain_weights(checkpoint, tmp_path, weights):
    nibble.convert(checkpoint, tmp_path / "nf4.safetensors", to="nf4", no_double_quant=True)
    nibble.dequantize(tmp_path / "nf4.safetensors", tmp_path / "plain.safetensors", to="fp32")
    with nibble.open(tmp_path / "plain.safetensors") as tensors:
        assert set(tensors) == set(weights)
        name = "layers.0.weight"
        assert np.array_equal(tensors[name], nibble.dequantize_nf4(nibble.quantize_nf4(weights[name])))


def test_merge_adds_the_update(checkpoint, tmp_path, weights, write_checkpoint):
    adapter, name = tmp_path / "adapter", "layers.0.weight"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    a, b = np.ones((2, 64), np.float32), np.ones((128, 2), np.float32)
    parts = {f"base_model.model.layers.0.lora_{part}.weight": array for part, array in (("A", a), ("B", b))}
    write_checkpoint(adapter / "adapter_model.safetensors", parts)
    nibble.merge(checkpoint, adapter, tmp_path / "plain.safetensors", to="fp32")
    with nibble.open(tmp_path / "plain.safetensors") as tensors:
        np.testing.assert_allclose(tensors[name], weights[name] + 4 / 2 * (b @ a), rtol=1e-6)
    [update] = nibble.merge(checkpoint, adapter, tmp_path / "nf4.safetensors", to="nf4")["updates"]
    assert name in json.dumps(update) and 0.9 < update["cosine"] <= 1


def test_a_path_that_looks_like_an_option_is_a_path(tmp_path, weights, write_checkpoint, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "--to=nf4.safetensors", weights)
    assert len(nibble.inspect("--to=nf4.safetensors")["tensors"]) == 3


def test_warnings_name_the_line_that_called(checkpoint, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nibble.convert(checkpoint, tmp_path / "a.safetensors", to="nf4")
        line = inspect.currentframe().f_lineno - 1
        nibble.run("convert", checkpoint, tmp_path / "b.safetensors", to="nf4")
    assert [(one.filename, one.lineno) for one in caught] == [(__file__, line), (__file__, line + 2)]
    assert str(caught[0].message).startswith("no architecture is given")


# --- progress and the end ---------------------------------------------------------------------------------------------


def test_progress_rises_to_the_total(checkpoint, tmp_path, weights):
    calls = []
    nibble.convert(checkpoint, tmp_path / "out.safetensors", to="bf16", progress=lambda *call: calls.append(call))
    total = sum(array.nbytes for array in weights.values())
    assert calls and all(call[2] == total for call in calls)
    assert [call[1] for call in calls] == sorted(call[1] for call in calls)
    assert calls[-1][1] == total
    assert {call[0] for call in calls} <= {*weights, ""}


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_false_from_progress_cancels(checkpoint, tmp_path, in_a_thread):
    out, raised = tmp_path / "out.safetensors", []

    def convert():
        try:
            nibble.convert(checkpoint, out, to="bf16", progress=lambda *_: False)
        except nibble.Error as error:
            raised.append(error)

    if in_a_thread:
        thread = threading.Thread(target=convert)
        thread.start()
        thread.join()
    else:
        convert()
    assert [type(error) for error in raised] == [nibble.Cancelled]
    assert not out.exists()


def test_false_of_numpy_from_progress_cancels(checkpoint, tmp_path):
    with pytest.raises(nibble.Cancelled):
        nibble.convert(checkpoint, tmp_path / "out", to="bf16", progress=lambda *_: np.False_)


def test_ctrl_c_stops_a_command(checkpoint, tmp_path):
    seen = threading.Event()

    def handle(number, frame):
        seen.set()
        signal.default_int_handler(number, frame)

    def interrupt(*_):
        if not seen.is_set():  # once: a second one would not wait for the command to end
            os.kill(os.getpid(), signal.SIGINT)
        seen.wait(60)  # for the main thread, which waits: a busy machine may not run it for a second
        time.sleep(0.5)  # until it has told the command

    out = tmp_path / "out.safetensors"
    before = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            nibble.convert(checkpoint, out, to="bf16", progress=interrupt, threads=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert "nibble" not in [thread.name for thread in threading.enumerate()], "the command still runs"
    assert not out.exists()


def test_a_cancelled_conversion_is_resumed(checkpoint, tmp_path):
    whole, out, told = tmp_path / "whole.safetensors", tmp_path / "out.safetensors", []
    nibble.convert(checkpoint, whole, to="bf16")
    with pytest.raises(nibble.Cancelled, match="what is finished stays in"):
        nibble.convert(checkpoint, out, to="bf16", progress=lambda *_: told.append(1) or len(told) < 2, threads=1)
    nibble.convert(checkpoint, out, to="bf16", resume=True)
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / ".out.safetensors.nibble").exists()


def test_what_progress_raises_comes_out(checkpoint, tmp_path):
    def fail(*_):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        nibble.convert(checkpoint, tmp_path / "out.safetensors", to="bf16", progress=fail)
    assert not (tmp_path / "out.safetensors").exists()


def test_none_from_progress_goes_on(checkpoint, tmp_path):
    nibble.convert(checkpoint, tmp_path / "out.safetensors", to="bf16", progress=lambda *_: None)
    assert (tmp_path / "out.safetensors").exists()


# --- errors -----------------------------------------------------------------------------------------------------------


def existing(folder):
    path = folder / "there.safetensors"
    path.write_bytes(b"")
    return path


FAILURES = {
    "usage": (nibble.UsageError, lambda path, folder: ("convert", [path, folder / "o.safetensors"], {"to": "nf9"})),
    "no command": (nibble.UsageError, lambda path, folder: ("convrt", [path], {})),
    "no option": (nibble.UsageError, lambda path, folder: ("inspect", [path], {"max_memroy": 1})),
    "bad input": (nibble.BadInputError, lambda path, folder: ("inspect", [existing(folder)], {})),
    "missing": (nibble.BadInputError, lambda path, folder: ("inspect", [folder / "none.safetensors"], {})),
    "exists": (
        nibble.OutputExistsError,
        lambda path, folder: ("convert", [path, existing(folder)], {"to": "bf16"}),
    ),
    "no memory": (nibble.NoSpaceError, lambda path, folder: ("inspect", [path], {"max_memory": 1})),
    "limit": (nibble.DifferenceError, lambda path, folder: ("measure", [path], {"to": "nf4", "min_sqnr": "90"})),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_has_the_text_and_the_code_of_the_program(name, checkpoint, tmp_path):
    kind, make = FAILURES[name]
    command, arguments, options = make(checkpoint, tmp_path)
    words = [command, *arguments, *(f"--{key.replace('_', '-')}={value}" for key, value in options.items())]
    done = by_program(*words, "--json")
    with pytest.raises(kind) as caught:
        nibble.run(command, *arguments, **options)
    text = str(caught.value)
    assert type(caught.value) is kind
    assert caught.value.code == done.returncode
    assert "\n" not in text
    assert done.stderr.splitlines()[-1] == f"error: {text}"
    assert kind is not nibble.OutputExistsError or caught.value.errno == errno.EEXIST


def test_a_path_may_be_bytes(checkpoint, tmp_path):
    assert nibble.inspect(os.fsencode(checkpoint)) == nibble.inspect(checkpoint)
    nibble.measure(checkpoint, to="nf4", html=os.fsencode(tmp_path / "report.html"))
    assert (tmp_path / "report.html").exists()


def test_what_is_no_path_is_a_type_error(checkpoint):
    with pytest.raises(TypeError, match="not NoneType"):
        nibble.convert(checkpoint, None, to="bf16")


def test_a_null_byte_in_a_path_or_an_option_is_refused(checkpoint):
    with pytest.raises(nibble.UsageError, match="^'.*x00junk' has a null byte$"):
        nibble.inspect(f"{checkpoint}\0junk")
    with pytest.raises(nibble.UsageError, match=r"^'--max-memory=1GB\\x00junk' has a null byte$"):
        nibble.inspect(checkpoint, max_memory="1GB\0junk")


@pytest.mark.parametrize("values", [{"a", "b"}, iter(["a"]), np.array(["a"]), {"a": 1}, [["a"]]])
def test_a_value_that_is_no_option_is_refused(checkpoint, tmp_path, values):
    kind = type(values[0] if isinstance(values, list) else values).__name__
    with pytest.raises(nibble.UsageError) as caught:
        nibble.convert(checkpoint, tmp_path / "out", to="nf4", skip=values)
    assert str(caught.value) == f"skip has a {kind}, not a text, a path, a number, or a list of them"


def test_numbers_of_numpy_are_numbers(checkpoint, tmp_path):
    nibble.convert(checkpoint, tmp_path / "out", to="nf4", block_size=np.int64(32), no_double_quant=True)
    with nibble.open(tmp_path / "out") as tensors:
        assert tensors["layers.0.weight.absmax"].shape == (256,)


def test_booleans_of_numpy_are_booleans(checkpoint, tmp_path):
    for double_quant in (np.True_, np.False_):
        nibble.convert(checkpoint, tmp_path / "out", to="nf4", no_double_quant=double_quant, overwrite=np.True_)


def test_where_no_thread_can_be_started(checkpoint, monkeypatch):
    def start(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")  # Python 3.12 says so

    monkeypatch.setattr("threading.Thread.start", start)
    assert nibble.inspect(checkpoint)


def test_a_command_that_is_no_text_is_refused():
    with pytest.raises(nibble.UsageError, match="^the command is a list, not a text$"):
        nibble.run(["convert"], overwrite=True)


def test_true_for_an_option_that_needs_a_value_is_refused(checkpoint, tmp_path):
    for function in (nibble.convert, lambda *given, **options: nibble.run("convert", *given, **options)):
        with pytest.raises(nibble.UsageError, match="^block_size is True, and --block-size needs a value$"):
            function(checkpoint, tmp_path / "out", to="nf4", block_size=True)


def test_a_text_is_no_report():
    with pytest.raises(nibble.UsageError, match="^convert: `nibble` prints a text for these arguments, and no JSON$"):
        nibble.run("convert", help=True)


def test_the_report_comes_with_a_difference(checkpoint):
    with pytest.raises(nibble.DifferenceError) as caught:
        nibble.measure(checkpoint, to="nf4", min_sqnr="90")
    assert caught.value.report["tests"][0]["quantized"]["sqnr_db"] < 90


def test_an_exception_is_one_of_python_too():
    for kind, standard in ((nibble.UsageError, ValueError), (nibble.BadInputError, ValueError),
                           (nibble.ReadWriteError, OSError), (nibble.NoSpaceError, MemoryError),
                           (nibble.OutputExistsError, FileExistsError)):  # fmt: skip
        assert issubclass(kind, nibble.Error) and issubclass(kind, standard)


def test_exceptions_survive_pickling():
    error = nibble.errors.system_error("/a: cannot be read", FileNotFoundError(errno.ENOENT, "no such file"))
    error.__notes__ = ["a note"]
    same = pickle.loads(pickle.dumps(error))
    assert (type(same), str(same), same.errno, same.__notes__) == (type(error), str(error), errno.ENOENT, ["a note"])
    for kind in nibble.errors.KINDS.values():
        assert str(pickle.loads(pickle.dumps(kind("a text")))) == "a text"
    assert pickle.loads(pickle.dumps(nibble.OutputExistsError("/a exists"))).errno == errno.EEXIST


# --- signatures -------------------------------------------------------------------------------------------------------

# What the command line needs and a function does not: its result is a dict.
NOT_IN_PYTHON = {"measure": {"csv"}}


def commands():
    from nibble.commands import list_commands

    return list_commands()


def test_every_command_is_a_function():
    assert {name for name in commands() if callable(getattr(nibble, name, None))} == set(commands())


def test_the_page_names_every_command():
    page = (pathlib.Path(__file__).parents[3] / "docs/python.md").read_text()
    [names] = re.findall(r"## Commands\n\n(.*?) are the commands", page, re.S)
    assert set(re.findall(r"`(?:nibble\.)?(\w+)`", names)) == set(commands())


@pytest.mark.parametrize("name", sorted(commands()))
def test_a_function_has_the_arguments_and_options_of_its_command(name):
    command = commands()[name]
    parameters = inspect.signature(getattr(nibble, name)).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]
    options = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "progress"}
    assert [p.kind is p.VAR_POSITIONAL for p in positional] == [a["repeatable"] for a in command["arguments"]]
    listed = {option["name"].removeprefix("--").replace("-", "_"): option for option in command["options"]}
    assert set(options) == listed.keys() - NOT_IN_PYTHON.get(name, set())
    for key, parameter in options.items():
        option = listed[key]
        assert (parameter.default is parameter.empty) == option["required"], key
        if not option["required"]:
            assert parameter.default is (None if option["takes_value"] else False), key
        assert ("Texts" in parameter.annotation) == option["repeatable"], key
    assert getattr(nibble, name).__doc__
    assert set(typing.get_type_hints(getattr(nibble, name))) == {"return", *(p.name for p in parameters)}
