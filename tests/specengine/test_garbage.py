"""A start looks for no garbage, and what is there by then is never looked at again."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from specengine.garbage import nothing_to_collect

with nothing_to_collect():
    assert not gc.isenabled()
    kept = [[] for _ in range(1000)]
assert gc.isenabled()
assert gc.get_freeze_count() > 1000
try:
    with nothing_to_collect():
        raise ImportError
except ImportError:
    assert gc.isenabled()
"""


def test_what_a_start_makes_is_frozen_and_looking_begins_again() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
