"""Files of results that are written line by line, and what lines of programs say."""

import json
import re

MAX_FILE_BYTES, MAX_STEP_BYTES = 6 << 20, 1 << 20  # of a file of results, and of one step's text in it


class File:
    """A file of results that is written line by line, and stays small."""

    def __init__(self, path):
        self.file = open(path, "a", buffering=1, encoding="utf-8")
        self.left = MAX_FILE_BYTES - path.stat().st_size
        self.step_left = MAX_STEP_BYTES

    def begin_step(self):
        self.step_left = MAX_STEP_BYTES

    def write(self, line, always=False):
        size = len(line.encode(errors="replace")) + 1
        if always or size <= min(self.left, self.step_left):
            self.file.write(line + "\n")
            self.left -= size
            self.step_left -= size
        elif self.step_left > 0:
            self.file.write("... the rest of this step is left out: too long\n")
            self.step_left = 0

    def close(self):
        self.file.close()


def read_lines(path):
    """The JSON lines of a file; a line that was cut off is none."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def json_object(line):
    if line.startswith("{"):
        try:
            value = json.loads(line)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None
    return None


def names_in(text):
    """One name a line; of GoogleTest's list the suites, which end with a dot."""
    lines = [line.split("#")[0].rstrip() for line in text]
    suites = [line[:-1] for line in lines if re.fullmatch(r"[\w/]+\.", line)]
    return suites or [line for line in lines if re.fullmatch(r"[\w.:/<>,-]+", line)]
