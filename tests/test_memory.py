"""Memory of this process: what it has now, and the most it ever had."""

import subprocess
import sys

import numpy as np

MEGABYTE = 1 << 20


GROW_AND_SHRINK = """
import numpy as np
from restd.memory import peak_bytes, resident_bytes
before = resident_bytes()
block = np.ones(128 << 20, np.uint8)
grown = resident_bytes()
del block
print(grown - before, resident_bytes() - before, peak_bytes() - before)
"""


def test_what_was_freed_stays_in_the_peak():
    # in a process of its own: a process that already freed much memory may reuse it instead of growing
    child = subprocess.run([sys.executable, "-c", GROW_AND_SHRINK], capture_output=True, text=True, check=True)
    grown, shrunk, peak = map(int, child.stdout.split())
    assert grown >= 120 * MEGABYTE
    assert shrunk < 64 * MEGABYTE
    assert peak >= 120 * MEGABYTE


def test_the_peak_does_not_count_what_the_parent_had():
    block = np.ones(256 * MEGABYTE, np.uint8)
    code = "from restd.memory import peak_bytes; print(peak_bytes())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(child.stdout) < block.nbytes // 2
