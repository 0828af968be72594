"""Traces for tests."""

from __future__ import annotations

import json
from pathlib import Path

from specengine.trace.reading import Event, Request, Trace


def request(number: int, time: float = 1000.0, total: float = 10.0, **facts: object) -> Request:
    """Return a request that the engine answered."""
    made = Request(number, time, "s", language="python", trigger="automatic", outcome="shown")
    made.drafter, made.model, made.steps = "suffix", "m", 4
    made.ms = {"prefill": total / 2, "verify": total / 4, "total": total}
    made.tokens = {"emitted": 12}
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def event(number: int, what: str, num: int = 0, chars: int = 10, time: float = 1000.0) -> Event:
    """Return what became of a suggestion."""
    return Event(number, time, what, "s", "python", "m", "auto", chars, num)


def trace(*lines: Request | Event) -> Trace:
    """Return a trace of these lines."""
    requests = [line for line in lines if isinstance(line, Request)]
    return Trace(requests, [line for line in lines if isinstance(line, Event)])


def write(path: Path, *lines: dict[str, object] | str) -> Path:
    """Write lines to a file."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(text + "\n" for text in texts))
    return path
