"""One record for each request: a JSON line in a file, and a line in the editor's log.

It holds names, counts and times, never source text. It knows no request in progress.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from specengine.protocol import Done, TokenCounts
from specengine.upstream.done import UpstreamDone

logger = logging.getLogger(__name__)

LEAST_SHOWN_MS: Final = 0.5
"""Phases below it are left out of the readable line."""

DRAFTED: Final = "spec_decode_num_draft_tokens_total"
ACCEPTED: Final = "spec_decode_num_accepted_tokens_total"

_DO_NOT_WAIT: Final[int] = getattr(os, "O_NONBLOCK", 0)
"""Else opening a pipe would wait for its reader, and the whole server with it."""


class Outcome(StrEnum):
    """What became of a request."""

    SHOWN = "shown"
    CACHED = "cached"
    ADOPTED = "adopted"
    EMPTY = "empty"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    ERROR = "error"


class Milliseconds(msgspec.Struct):
    """Time by phase; prefill, draft and verify are the engine's own.

    ``queue`` is the wait for a connection and then the engine's own queue.
    """

    debounce: float = 0.0
    context: float = 0.0
    queue: float = 0.0
    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    postprocess: float = 0.0
    total: float = 0.0
    """From receipt of the request to its answer."""


class TraceRecord(msgspec.Struct):
    """What is known of one request; the field names are stable."""

    request: int
    time: float
    """Seconds since the epoch when the request came."""
    session: str = ""
    """Of the language server; requests are counted in it."""
    document_version: int = -1
    language: str = ""
    trigger: str = ""
    """invoked, automatic, or ahead: what a shown suggestion was gone on with, unasked."""
    scope: str = ""
    """What the cursor asked for: line, statement, block or blocks."""
    outcome: Outcome = Outcome.ERROR
    exit: str = ""
    """The named reason for the outcome."""
    model: str = ""
    drafter: str = ""
    drafting: str = ""
    """How many drafts each drafter has made, and why there was none in other passes."""
    ms: Milliseconds = msgspec.field(default_factory=Milliseconds)
    tokens: TokenCounts = msgspec.field(default_factory=TokenCounts)
    steps: int = 0
    late_steps: int = 0
    """Of these, passes at most that ended when nobody wanted them any more."""
    upstream: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """What a server upstream counts of its own speculation, for all its users, by vLLM's names."""

    def take_engine_part(self, done: Done) -> None:
        """Copy what the engine counted and measured."""
        self.model, self.drafter, self.drafting = done.model, done.drafter, done.drafting
        self.tokens, self.steps = done.tokens, done.steps
        self.ms.queue += done.ms.queue
        self.ms.prefill = done.ms.prefill
        self.ms.draft, self.ms.verify = done.ms.draft, done.ms.verify
        if isinstance(done, UpstreamDone):
            self.upstream = dict(done.counters)


class TraceEvent(msgspec.Struct):
    """What became of a suggestion; a line of its own, which has ``event``."""

    session: str
    request: int
    """The one that showed the suggestion first, of this session."""
    time: float
    event: str
    """shown, accepted, partly_accepted, or kept: compared some time after it was accepted."""
    language: str
    model: str
    drafter: str
    chars: int
    """Of the suggestion; of what was accepted, for ``kept``."""
    num: int = 0
    """Characters that were accepted, or that are still there."""
    after_s: float = 0.0
    """From showing to accepting, or from accepting to comparing."""


def default_path() -> Path:
    """Return where the trace goes when no setting says otherwise."""
    return platformdirs.user_state_path("specengine", appauthor=False) / "trace.jsonl"


def encode_record(record: TraceRecord) -> bytes:
    """Return the JSON line of a record; times are rounded to microseconds."""
    rounded = {name: round(value, 3) for name, value in msgspec.structs.asdict(record.ms).items()}
    data = {**msgspec.structs.asdict(record), "ms": rounded, "time": round(record.time, 3)}
    return msgspec.json.encode(data) + b"\n"


def readable(record: TraceRecord) -> str:
    """Return the record as one line for people; what is zero is left out."""
    reason = f" ({record.exit})" if record.exit != record.outcome else ""
    scope = f" {record.scope}" if record.scope else ""
    # A look ahead bears the number of the request whose suggestion it goes on from.
    number = f"{'behind ' if record.trigger == 'ahead' else ''}#{record.request}"
    asked = f"{number} v{record.document_version} {record.language} {record.trigger}{scope}"
    line = f"{asked}: {record.outcome}{reason} {record.ms.total:.0f} ms"
    spent = msgspec.structs.asdict(record.ms).items()
    phases = [f"{name} {ms:.0f}" for name, ms in spent if name != "total" and ms >= LEAST_SHOWN_MS]
    if phases:
        line += f" [{', '.join(phases)}]"
    tokens = record.tokens
    if record.steps:
        line += f" {tokens.emitted} tokens in {record.steps} steps"
        line += f", accepted {tokens.accepted}/{tokens.drafted}"
        line += f", reused {tokens.reused}/{tokens.prompt}"
    if drafted := record.upstream.get(DRAFTED):
        line += f", the server accepts {record.upstream.get(ACCEPTED, 0) / drafted:.0%}"
    return line


def readable_event(event: TraceEvent) -> str:
    """Return what became of a suggestion as one line for people."""
    what = event.event.replace("_", " ")
    line = f"suggestion {event.request} {what}"
    if event.event == "shown":
        return f"{line}: {event.chars} characters"
    return f"{line}: {event.num} of {event.chars} characters after {event.after_s:.1f} s"


@dataclass
class TraceLog:
    """Appends records. Several language servers may write the same file."""

    path: Path | None
    """None writes no file."""
    max_bytes: int
    on_line: Callable[[str], None] | None = None
    """Called with the readable line of each record."""
    _has_failed: bool = field(default=False, repr=False)

    session: str = field(default_factory=lambda: secrets.token_hex(4))
    """Tells the lines of one language server from those of others."""

    def write(self, record: TraceRecord) -> None:
        """Write one record; a file that cannot be written is reported once and then left alone."""
        record.session = self.session
        self._write(readable(record), encode_record(record))

    def write_event(self, event: TraceEvent) -> None:
        """Write what became of a suggestion."""
        rounded = msgspec.structs.replace(
            event, session=self.session, time=round(event.time, 3), after_s=round(event.after_s, 3)
        )
        self._write(readable_event(event), msgspec.json.encode(rounded) + b"\n")

    def _write(self, shown: str, line: bytes) -> None:
        if self.on_line is not None:
            self.on_line(shown)
        if self.path is None or self._has_failed:
            return
        try:
            _append(self.path, line, self.max_bytes)
        except (OSError, ValueError) as error:  # ValueError: a null character in the path
            self._has_failed = True
            logger.warning("trace file %s cannot be written, so it is off: %s", self.path, error)


def _append(path: Path, line: bytes, max_bytes: int) -> None:
    # Opened for each line: another server may have renamed the file in the meantime.
    descriptor = _open(path)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no regular file")
        is_full = found.st_size + len(line) > max_bytes and found.st_size > 0
        if not is_full:
            os.write(descriptor, line)
    finally:
        os.close(descriptor)
    if is_full:
        path.replace(path.with_name(path.name + ".1"))
        _append(path, line, max_bytes)


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _DO_NOT_WAIT
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o600)
