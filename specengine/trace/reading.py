"""Reads the trace of the language server: one JSON object a line, a request or an event.

It is lenient: fields may be missing, as in older files, and lines that are none are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec
import platformdirs

from specengine.errors import ConfigError

MAX_BYTES: Final = 256 * 2**20
"""A longer file is refused: it is no trace, whose own limit is far lower."""

PHASES: Final = ("debounce", "context", "queue", "prefill", "draft", "verify", "postprocess")
"""In the order in which a request goes through them; draft and verify take turns."""

SHOWING: Final = frozenset(("shown", "cached", "adopted"))
"""Outcomes of requests that were answered with text."""

UNASKED: Final = "ahead"
"""The trigger of requests that nobody waited for."""


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Request(msgspec.Struct):
    """One request."""

    request: int
    time: Seconds
    """Since 1970."""
    session: str = ""
    document_version: int = -1
    language: str = ""
    trigger: str = ""
    scope: str = ""
    outcome: str = ""
    exit: str = ""
    model: str = ""
    drafter: str = ""
    ms: dict[str, Milliseconds] = {}
    tokens: dict[str, Count] = {}
    steps: Count = 0

    @property
    def total_ms(self) -> float:
        """From receipt of the request to its answer."""
        return self.ms.get("total", 0.0)

    @property
    def has_text(self) -> bool:
        """Whether somebody who asked got text."""
        return self.outcome in SHOWING and self.trigger != UNASKED


class Event(msgspec.Struct):
    """What became of a suggestion."""

    request: int
    time: Seconds
    event: str
    session: str = ""
    language: str = ""
    model: str = ""
    drafter: str = ""
    chars: Count = 0
    num: Count = 0
    after_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


@dataclass
class Trace:
    """The lines of a trace, in the order of their times."""

    requests: list[Request] = field(default_factory=list[Request])
    events: list[Event] = field(default_factory=list[Event])
    num_unreadable: int = 0


def default_path() -> Path:
    """Return where the language server writes when no setting says otherwise."""
    return platformdirs.user_state_path("specengine", appauthor=False) / "trace.jsonl"


def read_trace(path: Path) -> Trace:
    """Return a trace, with that of the file that was renamed to ``*.1`` when this one was begun.

    Raises:  ConfigError when there is no such file or it cannot be read.
    """
    older = path.with_name(path.name + ".1")
    trace = Trace()
    for file in (older, path) if older.is_file() else (path,):
        for line in _lines(file):
            _take(trace, line)
    trace.requests.sort(key=lambda request: request.time)
    trace.events.sort(key=lambda event: event.time)
    return trace


def _lines(path: Path) -> Iterator[bytes]:
    try:
        if not path.is_file():
            raise ConfigError(
                f"there is no trace at {path}.",
                hint="The language server writes one when it answers an editor; the setting "
                "trace.path says where.",
            )
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is longer than {MAX_BYTES} bytes; it is no trace.")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    yield from data.splitlines()


def _take(trace: Trace, line: bytes) -> None:
    if not line.strip():
        return
    try:
        data: object = msgspec.json.decode(line)
        if isinstance(data, dict) and "event" in data:
            trace.events.append(msgspec.convert(data, Event))
        else:
            trace.requests.append(msgspec.convert(data, Request))
    except (msgspec.MsgspecError, RecursionError):  # half a line, or none of ours
        trace.num_unreadable += 1
