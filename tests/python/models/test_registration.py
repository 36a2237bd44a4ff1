"""What nibble tells transformers and peft, whichever is imported first."""

import importlib
import subprocess
import sys
import types

import pytest

from nibble.models import registration


def test_modules_that_are_there_and_modules_that_come_later(monkeypatch):
    import colorsys  # noqa: F401

    registered = []
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(registration, "WAITING", {"colorsys": "first", "wave": "second"})
    monkeypatch.setattr(registration, "_register", registered.append)
    finders = len(sys.meta_path)
    for _ in range(2):
        registration.register_when_imported()
    assert len(sys.meta_path) == finders + 1
    assert set(registered) == {"colorsys"}
    registered.clear()
    importlib.import_module("wave")
    assert registered == ["wave"] and len(sys.meta_path) == finders


@pytest.mark.parametrize("error", [ImportError("no torch"), AttributeError("no such function")])
@pytest.mark.parametrize("there", [False, True])
def test_what_cannot_be_registered_does_not_keep_the_module_from_being_imported(monkeypatch, error, there):
    def register():
        raise error

    monkeypatch.delitem(sys.modules, "wave", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(registration, "WAITING", {"wave": "quantizer"})
    monkeypatch.setitem(sys.modules, "nibble.models.quantizer", types.SimpleNamespace(register=register))
    if there:
        importlib.import_module("wave")
    with pytest.warns(UserWarning, match=f"^wave goes without nibble: {error}$"):
        registration.register_when_imported()
        importlib.import_module("wave")


def test_load_is_the_first_to_import_transformers(tmp_path):
    pytest.importorskip("transformers")
    program = "import sys, nibble; assert 'transformers' not in sys.modules; nibble.load(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "nowhere"], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("nibble.errors."), done.stderr
