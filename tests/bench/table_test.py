#!/usr/bin/env python3
"""The bounds in the tables of bench/table.py against published ones.

usage: tests/bench/table_test.py
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from table import lloyd_max, rate_distortion  # noqa: E402

# J. Max, "Quantizing for Minimum Distortion", 1960, table I: the mean square error of so many levels.
MAX_1960 = {1: 1.0, 2: 0.3634, 3: 0.1902, 4: 0.1175, 8: 0.03454, 16: 0.009497}
for levels, error in MAX_1960.items():
    found = lloyd_max(levels) ** 2
    if abs(found - error) > 1e-3 * error:
        sys.exit(f"error: lloyd_max({levels}) ** 2 is {found}, not {error}")

# Of many levels, the mean square error is sqrt(3) pi / 2 = 2.72 times the bound (Panter and Dite, 1951); 32 nearly are.
ratio = lloyd_max(32) ** 2 / rate_distortion(5) ** 2
if not 0.9 * 2.72 < ratio < 2.72:
    sys.exit(f"error: the error of 32 levels is {ratio} times that of rate_distortion(5)")
