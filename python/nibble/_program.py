"""The command `nibble`: the program in this package."""

import os
import sys

from . import _library


def main() -> None:
    """Becomes the program."""
    program = _library.find("nibble", "NIBBLE")
    if program is None:
        sys.exit("error: this package has no program `nibble`; install nibble again")
    os.execv(program, ["nibble", *sys.argv[1:]])
