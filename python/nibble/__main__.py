"""python -m nibble [--json]: which nibble this is, what it found on this machine, and why it does without the rest."""

import argparse
import json

from .diagnosis import diagnose, lines

parser = argparse.ArgumentParser(prog="python -m nibble", description="What nibble found on this machine.")
parser.add_argument("--json", action="store_true", help="print one JSON object")
as_json = parser.parse_args().json
facts = diagnose()
print(json.dumps(facts, indent=2) if as_json else "\n".join(lines(facts)))
