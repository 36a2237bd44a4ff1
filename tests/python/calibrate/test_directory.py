"""The directory that python -m nibble.calibrate writes: complete or not, and never mistaken for the other."""

import fcntl
import json
import os
import resource
import signal
import time

import nibble.calibration
import pytest
import tiny
from nibble.calibrate import job, output
from nibble.errors import BadInputError

STAGES = ["before", "layer-00000", "layer-00001", "layer-00002", "after"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("model") / "llama", "Llama")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("text") / "text")


OPTIONS = ("--second-moments", "--sequences", 4)


@pytest.fixture(scope="module")
def whole(model, text, tmp_path_factory):
    """The files of a run that was not interrupted."""
    out = tmp_path_factory.mktemp("whole") / "out"
    tiny.calibrated(model, text, out, *OPTIONS)
    return tiny.files(out)


def interrupted_at(monkeypatch, stage, batch):
    def each(self, name, number, inputs, original=job.Calibration._each):
        for position, item in enumerate(original(self, name, number, inputs)):
            if (name, position) == (stage, batch):
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr(job.Calibration, "_each", each)


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_an_interruption(model, text, whole, tmp_path, monkeypatch, stage, batch):
    """What is done stays, and the same command with --resume gives the bytes of a run that was not interrupted."""
    out = tmp_path / "out"
    command = (model, "--text", text, "--out", out, *OPTIONS)
    with monkeypatch.context() as patch:
        interrupted_at(patch, stage, batch)
        line = tiny.fails(130, *command)
        assert line == f"interrupted; the same command with --resume goes on with {out}"
    if stage == "before":
        assert not out.exists()  # nothing to go on with
    else:
        assert list(json.loads((out / "progress.json").read_text())["stages"]) == STAGES[: STAGES.index(stage)]
        states = [path.name for path in out.glob("states-*") if path.suffix != ".partial"]
        assert states == [f"states-{STAGES.index(stage) - 1}"]  # those of the stage before, and no others
        with pytest.raises(BadInputError, match="is not complete"):
            nibble.calibration.open(out)
        line = tiny.fails(6, *command)
        assert line == f"{out}: is not complete (--resume goes on with it, --overwrite begins anew)"
        runs = []
        with monkeypatch.context() as patch:
            patch.setattr(job.Calibration, "_stage", lambda self, o, name, *rest, original=job.Calibration._stage: (
                runs.append(name), original(self, o, name, *rest)))  # fmt: skip
            tiny.calibrated(model, text, out, *OPTIONS, "--resume")
        assert runs == STAGES[STAGES.index(stage) :]
        assert tiny.files(out) == whole


def test_a_crash_between_any_two_files(text, tmp_path, monkeypatch):
    """A process that ends before or after any rename or removal leaves something to go on with, or nothing."""
    model = tiny.save(tmp_path / "model", "Llama", num_hidden_layers=1)
    few = ("--second-moments", "--sequences", 1)
    tiny.calibrated(model, text, tmp_path / "whole", *few)
    whole = tiny.files(tmp_path / "whole")

    class Crash(BaseException):
        pass

    def crashing(function, when, before):
        def call(*arguments, **options):
            calls.append(None)
            if before and len(calls) == when:
                raise Crash
            result = function(*arguments, **options)
            if len(calls) == when:
                raise Crash
            return result

        return call

    when, crashes = 0, 0
    while True:
        when += 1
        for before in (True, False):
            out, calls = tmp_path / f"{when}-{before}", []
            try:
                with monkeypatch.context() as patch:
                    patch.setattr(output.os, "replace", crashing(os.replace, when, before))
                    patch.setattr(output.pathlib.Path, "unlink", crashing(output.pathlib.Path.unlink, when, before))
                    patch.setattr(output.Output, "close", lambda self: os.close(self._lock))
                    tiny.inside(model, "--text", text, "--out", out, *few)
            except Crash:
                crashes += 1
                if not (out / "calibration.json").exists():
                    with pytest.raises(BadInputError):
                        nibble.calibration.open(out)
                    tiny.calibrated(model, text, out, *few, "--resume")
                nibble.calibration.open(out)
                left = {name: content for name, content in tiny.files(out).items() if name in whole}
                assert left == whole  # a complete directory may have progress.json and hidden states beside
        if len(calls) < when:
            break
    assert crashes >= 20


def test_a_killed_process(model, tmp_path):
    text, out = tiny.write(tmp_path / "text", tiny.TEXT * 2), tmp_path / "out"
    command = (model, "--text", text, "--out", out, "--second-moments")
    running = tiny.process(*command)
    end = time.monotonic() + 300
    while not (out / "layer-00000.safetensors").exists() and time.monotonic() < end:
        assert running.poll() is None, running.communicate()
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    with pytest.raises(BadInputError, match="is not complete"):
        nibble.calibration.open(out)
    tiny.calibrated(model, text, out, "--second-moments", "--resume")
    tiny.calibrated(model, text, tmp_path / "again", "--second-moments")
    assert tiny.files(out) == tiny.files(tmp_path / "again")


def test_what_a_run_goes_on_with_must_be_of_the_same(model, text, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupted_at(patch, "layer-00001", 0)
        tiny.fails(130, model, "--text", text, "--out", out, *OPTIONS)
    other = tiny.write(tmp_path / "other", tiny.TEXT + "x")
    longer = tiny.save(tmp_path / "model", "Llama", change=lambda model: model.lm_head.weight.add_(1))
    for what, command in (
        ("text", (model, "--text", other, *OPTIONS)),
        ("text", (model, "--text", text, "--second-moments", "--sequences", 5)),
        ("model", (longer, "--text", text, *OPTIONS)),
        ("second_moments", (model, "--text", text, "--sequences", 4)),
        ("batch", (model, "--text", text, *OPTIONS, "--batch", 2)),
        ("dtype", (model, "--text", text, *OPTIONS, "--dtype", "bfloat16")),
    ):
        line = tiny.fails(6, *command, "--out", out, "--resume")
        assert line == f"{out}: was begun with another '{what}' (--overwrite begins anew)"
    progress = json.loads((out / "progress.json").read_text())
    del progress["identity"]["value_inputs"]  # as versions did whose value projections had plain inputs
    (out / "progress.json").write_text(json.dumps(progress))
    line = tiny.fails(6, model, "--text", text, *OPTIONS, "--out", out, "--resume")
    assert line == f"{out}: was begun with another 'value_inputs' (--overwrite begins anew)"
    for damaged in ("[]", '{"identity": 5}'):
        (out / "progress.json").write_text(damaged)
        assert "was begun with another" in tiny.fails(6, model, "--text", text, *OPTIONS, "--out", out, "--resume")
    (out / "progress.json").write_text("{")
    assert tiny.fails(3, model, "--text", text, *OPTIONS, "--out", out, "--resume").startswith(f"{out}/progress.json: ")


def test_what_is_done_must_still_be_there(model, text, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupted_at(patch, "layer-00001", 0)
        tiny.fails(130, model, "--text", text, "--out", out, *OPTIONS)
    command = (model, "--text", text, "--out", out, *OPTIONS, "--resume")
    done, progress = out / "layer-00000.safetensors", out / "progress.json"
    content, listed = done.read_bytes(), json.loads(progress.read_text())
    done.write_bytes(content[:-1])
    assert tiny.fails(3, *command).startswith(f"{done}: ")
    done.unlink()
    assert tiny.fails(3, *command).startswith(f"{done}: ")
    done.write_bytes(content)
    for damaged in (
        {"stages": [], "states": None},
        {"stages": {"before": {}}, "states": None},
        {"stages": {"before": "inputs"}, "states": None},
        {"stages": {}},
    ):
        progress.write_text(json.dumps({"identity": listed["identity"]} | damaged))
        assert tiny.fails(3, *command) == f"{progress}: does not list the stages that are done"
    progress.write_text(json.dumps(listed))
    tiny.calibrated(model, text, out, *OPTIONS, "--resume")


def test_hidden_states_that_are_too_short(model, text, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupted_at(patch, "layer-00001", 0)
        tiny.fails(130, model, "--text", text, "--out", out, *OPTIONS)
    os.truncate(out / "states-1", 1000)
    line = tiny.fails(4, model, "--text", text, "--out", out, *OPTIONS, "--resume")
    assert line == f"{out}/states-1: is too short"


def test_an_output_that_exists(model, text, whole, tmp_path):
    out = tmp_path / "out"
    command = (model, "--text", text, "--out", out, *OPTIONS)
    tiny.calibrated(model, text, out, "--sequences", 2)
    assert tiny.fails(6, *command) == f"{out}: exists (--overwrite replaces it)"
    assert tiny.fails(6, *command, "--resume") == f"{out}: exists (--overwrite replaces it)"
    tiny.calibrated(model, text, out, *OPTIONS, "--overwrite")
    assert tiny.files(out) == whole
    (out / "mine.txt").write_text("mine")
    for option in ("--overwrite", "--resume"):
        assert tiny.fails(6, *command, option) == f"{out}: exists, and has 'mine.txt', which is not of a calibration"
    assert tiny.files(out) == whole | {"mine.txt": b"mine"}
    assert tiny.fails(2, *command, "--resume", "--overwrite") == "--resume and --overwrite exclude each other"


def test_overwriting_begins_with_the_manifest(model, text, whole, tmp_path, monkeypatch):
    """A crash while the old statistics are removed leaves nothing that looks complete."""
    out, removed = tmp_path / "out", []
    tiny.calibrated(model, text, out, "--sequences", 2)

    def unlink(path, *arguments, original=output.pathlib.Path.unlink, **options):
        removed.append(path.name)
        original(path, *arguments, **options)

    monkeypatch.setattr(output.pathlib.Path, "unlink", unlink)
    tiny.calibrated(model, text, out, *OPTIONS, "--overwrite")
    assert removed[0] == "calibration.json" and "layer-00002.safetensors" in removed


def test_an_output_that_cannot_be(model, text, tmp_path):
    command = (model, "--text", text, "--sequences", 2)
    (tmp_path / "file").write_text("")
    assert tiny.fails(6, *command, "--out", tmp_path / "file") == f"{tmp_path}/file: exists, and is not a directory"
    missing = tmp_path / "missing" / "out"
    assert tiny.fails(4, *command, "--out", missing) == f"{missing}: No such file or directory"


def test_an_output_that_is_being_written(model, text, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    lock = os.open(out, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    command = (model, "--text", text, "--out", out, "--sequences", 2)
    assert tiny.fails(6, *command) == f"{out}: another nibble is writing it"
    os.close(lock)
    assert out.exists() and tiny.inside(*command)[0] == 0


def test_a_directory_that_was_there_stays(model, text, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    interrupted_at(monkeypatch, "before", 0)
    tiny.fails(130, model, "--text", text, "--out", out, *OPTIONS)
    assert tiny.files(out) == {}


@pytest.mark.parametrize("limit, file", [(100, "progress.json"), (10_000, "states-0"),
                                         (30_000, "layer-00000.safetensors")])  # fmt: skip
def test_a_file_that_cannot_be_written(model, text, whole, tmp_path, limit, file):
    """The limit of a file's size, in place of a disk that is full."""
    out = tmp_path / "out"
    few = ("--second-moments", "--sequences", 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        line = tiny.fails(4, model, "--text", text, "--out", out, *few)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert line.startswith(f"{out}/{file}: ") and "File too large" in line
    assert out.exists() == (file == "layer-00000.safetensors")
    tiny.calibrated(model, text, out, *few, "--resume")
    tiny.calibrated(model, text, tmp_path / "again", *few)
    assert tiny.files(out) == tiny.files(tmp_path / "again")


def edited(directory, change):
    path = directory / "calibration.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


INPUT = "model.layers.0.mlp.down_proj"
WEIGHT = f"{INPUT}.weight"


MISFITS = [
    (lambda m: m.update(format="other"), "calibration.json: 'format' is not 'nibble.calibration'"),
    (lambda m: m.update(version=2), "calibration.json: has version 2, this nibble reads 1"),
    (lambda m: m.update(version=True), "calibration.json: has version true, this nibble reads 1"),
    (lambda m: m.update(version=1.0), "calibration.json: has version 1.0, this nibble reads 1"),
    (lambda m: m.pop("second_moments"), "calibration.json: manifest: 'second_moments' is not of type bool"),
    (lambda m: m.update(inputs=[]), "calibration.json: manifest: 'inputs' is not of type dict"),
    (lambda m: m["inputs"].update({INPUT: 5}), "calibration.json: input 'INPUT': 'columns' is not of type int"),
    (lambda m: m["inputs"][INPUT].update(tokens=True), "calibration.json: input 'INPUT': 'tokens' is not of type int"),
    (lambda m: m["inputs"][INPUT].update(tokens=0),
     "calibration.json: input 'INPUT': has 112 columns and 0 tokens, at least 1 of each is needed"),
    (lambda m: m["inputs"][INPUT].update(columns=0),
     "calibration.json: input 'INPUT': has 0 columns and 192 tokens, at least 1 of each is needed"),
    (lambda m: m["inputs"][INPUT].update(file="../a"),
     "calibration.json: input 'INPUT': '../a' is not the name of a file in this directory"),
    (lambda m: m["inputs"][INPUT].update(columns=111),
     "layer-00000.safetensors: tensor 'INPUT.mean_square': is F32 [112], not F32 [111]"),
    (lambda m: m["inputs"][INPUT].update(file="after.safetensors"),
     "after.safetensors: has no tensor 'INPUT.mean_square'"),
    (lambda m: m["weights"].update({WEIGHT: INPUT}),
     "calibration.json: weight 'WEIGHT': is not a list of one or more inputs"),
    (lambda m: m["weights"].update({WEIGHT: []}),
     "calibration.json: weight 'WEIGHT': is not a list of one or more inputs"),
    (lambda m: m["weights"].update({WEIGHT: [5]}),
     "calibration.json: weight 'WEIGHT': an input is neither a name nor null"),
    (lambda m: m["weights"].update({WEIGHT: ["x"]}),
     "calibration.json: weight 'WEIGHT': has the input 'x', which is not listed"),
    (lambda m: m.update(sensitivities=[]), "calibration.json: manifest: 'sensitivities' is not of type dict"),
    (lambda m: m.update(sensitivities={"x": 1}), "calibration.json: sensitivity of 'x': this weight is not listed"),
    *((lambda m, value=value: m.update(sensitivities={WEIGHT: value}),
       "calibration.json: sensitivity of 'WEIGHT': is not a finite number of at least 0")
      for value in (-1, True, "1", None, float("inf"), float("nan"))),
]  # fmt: skip


@pytest.mark.parametrize("change, fact", MISFITS)
def test_a_manifest_that_does_not_fit(whole, tmp_path, change, fact):
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
    nibble.calibration.open(tmp_path)
    edited(tmp_path, change)
    with pytest.raises(BadInputError) as refused:
        nibble.calibration.open(tmp_path)
    assert str(refused.value) == f"{tmp_path}/" + fact.replace("INPUT", INPUT).replace("WEIGHT", WEIGHT)


def test_second_moments_that_are_missing(model, text, tmp_path):
    out = tmp_path / "out"
    tiny.calibrated(model, text, out, "--sequences", 2)
    edited(out, lambda manifest: manifest.update(second_moments=True))
    with pytest.raises(BadInputError, match="has no tensor '.*[.]second_moment'"):
        nibble.calibration.open(out)


def test_directories_that_are_none(tmp_path):
    for path, fact in ((tmp_path / "missing", "is not a directory"), (tmp_path, "No such file or directory")):
        with pytest.raises(BadInputError, match=fact):
            nibble.calibration.open(path)
    for content in ("{", "5", "[" * 100_000, "\xff"):
        (tmp_path / "calibration.json").write_bytes(content.encode("latin1"))
        with pytest.raises(BadInputError, match="calibration.json: "):
            nibble.calibration.open(tmp_path)


def test_a_file_that_is_missing_or_cut(whole, tmp_path):
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
    path = tmp_path / "layer-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadInputError, match="layer-00001.safetensors"):
        nibble.calibration.open(tmp_path)
    path.unlink()
    with pytest.raises(Exception, match="layer-00001.safetensors"):
        nibble.calibration.open(tmp_path)
