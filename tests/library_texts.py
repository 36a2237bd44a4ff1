#!/usr/bin/env python3
"""No text of the library names an option, an argument or a command of the command line: a text says the fact, and a
Remedy says what helps (include/nibble/remedy.hpp). Prints those that do.

    tests/library_texts.py          checks the sources
    tests/library_texts.py --test   checks that such a text would be found
"""

import pathlib
import re
import sys

FOLDERS = ["core", "formats", "include", "kernels", "quant"]
SUFFIXES = {".cpp", ".hpp", ".h", ".cu"}
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')
WORD = re.compile(
    r"(?<![\w-])--[a-z]|\b(?:IN|OUT|REF|TEST)\b|\bnibble (?:convert|dequantize|merge|inspect|measure|formats|completion)\b"
)
# By file: options of another program.
ALLOWED = {"formats/checkpoint.cpp": ["--revision"]}


def wrong_texts(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        code = line.split("//")[0]
        for literal in LITERAL.findall(code):
            for word in WORD.finditer(literal):
                if not any(literal.startswith(name, word.start()) for name in ALLOWED.get(path, [])):
                    yield f"{path}:{number}: {literal} says what only the command line has"


def main():
    if sys.argv[1:] == ["--test"]:
        planted = (
            'count("a", --b);  // "--c"\nfail("more memory; see --max-memory");\nfail("x --revision y");\n'
            'fail("INPUT of nibble");\nfail("OUT \'{}\': is empty");\nfail("see nibble formats");\n'
        )
        assert [text.split(":")[1] for text in wrong_texts("core/a.cpp", planted)] == ["2", "3", "5", "6"]
        assert [text.split(":")[1] for text in wrong_texts("formats/checkpoint.cpp", planted)] == ["2", "5", "6"]
        return
    root = pathlib.Path(__file__).resolve().parent.parent
    found = []
    for folder in FOLDERS:
        for path in sorted(path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES):
            found += wrong_texts(path.relative_to(root).as_posix(), path.read_text())
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
