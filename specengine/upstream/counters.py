"""What a server counts of its own speculation, read from its ``/metrics``.

The names are vLLM's behind its prefix; llama.cpp, SGLang and our own engine have the same or like
ones. They are of the whole server, so they tell of all its users.
"""

from __future__ import annotations

import re
from typing import Final

MAX_METRICS_BYTES: Final = 4 * 2**20

COUNTERS: Final = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)
"""Summed over their labels."""

GAUGES: Final = ("spec_accept_length", "spec_accept_rate")
"""SGLang's."""

_SAMPLE: Final = re.compile(
    rf"^\w+:({'|'.join(COUNTERS + GAUGES)})(?:\{{[^\n]*\}})? ([0-9.eE+-]+)(?: \d+)?$",
    re.ASCII | re.MULTILINE,
)


def read_counters(text: str) -> dict[str, float]:
    """Return those that a page of metrics has, by name without the server's prefix."""
    found: dict[str, float] = {}
    for name, number in _SAMPLE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        found[name] = found.get(name, 0.0) + value if name in COUNTERS else value
    return found
