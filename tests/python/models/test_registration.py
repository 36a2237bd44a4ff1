"""What nibble tells transformers and peft, whichever is imported first."""

import importlib
import subprocess
import sys

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


def test_load_is_the_first_to_import_transformers(tmp_path):
    pytest.importorskip("transformers")
    program = "import sys, nibble; assert 'transformers' not in sys.modules; nibble.load(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "nowhere"], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("nibble.errors."), done.stderr
