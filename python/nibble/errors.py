"""What nibble raises. Each exception stands for an exit code of the command line and has its one-line text."""

from __future__ import annotations

import errno
from typing import Any


class Error(Exception):
    """A failure of nibble; by itself, of a kind that has no class of its own: a bug, or a library that cannot be loaded.

    The text is one line that names the thing, the fact and the limit.
    """

    code: int = 1
    """The exit code of `nibble` for this kind of failure."""


class UsageError(Error, ValueError):
    """An option or argument that makes no sense, or a rule that matches nothing."""

    code = 2


class BadInputError(Error, ValueError):
    """Not a checkpoint, damaged, or something that nibble refuses."""

    code = 3


class ReadWriteError(Error, OSError):
    """The operating system refused to read or write."""

    code = 4

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {**self.__dict__, "errno": self.errno}  # which OSError leaves out


class NoSpaceError(Error, MemoryError):
    """Not enough memory or disk space, found before the first byte was written."""

    code = 5


class OutputExistsError(Error, FileExistsError):
    """The output exists, or another nibble is writing it."""

    code = 6

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.errno = errno.EEXIST


class InputChangedError(Error):
    """The input changed while it was read."""

    code = 7


class DifferenceError(Error):
    """A tensor breaks a limit of `measure`."""

    code = 8

    report: dict[str, Any] | None = None
    """What `measure` has found."""


class Cancelled(Error):
    """The progress callback returned False. No output has appeared."""

    code = 130


KINDS = {
    kind.code: kind
    for kind in (
        Error,
        UsageError,
        BadInputError,
        ReadWriteError,
        NoSpaceError,
        OutputExistsError,
        InputChangedError,
        DifferenceError,
        Cancelled,
    )
}


def error_of(code: int, text: str) -> Error:
    """The exception for a result of libnibble."""
    return KINDS.get(code, Error)(text)


def system_error(text: str, cause: Exception) -> ReadWriteError:
    """The exception for what Python could not read or write, with the `errno` of the cause if that has one."""
    error = ReadWriteError(text)
    error.errno = getattr(cause, "errno", None)
    return error
