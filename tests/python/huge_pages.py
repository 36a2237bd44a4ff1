"""Whether the system was asked for huge pages."""

import os
import re

import pytest


def asked_for_huge_pages(address):
    """Whether it was for the memory at an address. Skips the test if the system has no huge pages."""
    if not os.path.exists("/sys/kernel/mm/transparent_hugepage"):
        pytest.skip("this system has no huge pages")
    is_here = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                is_here = int(place[1], 16) <= address < int(place[2], 16)
            elif is_here and line.startswith("VmFlags:"):
                return " hg" in line
    raise LookupError(f"{address:x} is not in memory")
