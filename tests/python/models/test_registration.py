"""What nibble tells transformers and peft, whichever is imported first."""

import importlib
import sys

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
