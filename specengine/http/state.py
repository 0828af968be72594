"""What the door tells about the engine: its health, its numbers, and all that the page shows."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from specengine.http.asking import HTTP_CLIENT, Answering
from specengine.journal import Journal
from specengine.protocol import EngineState

STATUS_WORDS = {
    EngineState.READY: "ok",
    EngineState.LOADING: "loading model",
    EngineState.FAILED: "error",
}
"""As llama.cpp's server says it, whose clients look for ``ok``."""


def health(engine: Answering) -> tuple[int, Mapping[str, object]]:
    """Return status and body of ``/health``: 200 where a request is answered without loading."""
    status, watch = engine.status, engine.watch
    body = {
        "status": STATUS_WORDS[status.state],
        "model": status.model,
        "drafter": status.drafter,
        "detail": status.detail,
        "progress": status.progress,
        "active": status.active,
        "waiting": status.waiting,
        "switched_off": [
            {"kind": off.kind, "name": off.name, "reason": off.reason, "since": off.at}
            for off in watch.switched_off
        ],
        "alarms": [
            {"drafter": name, "acceptance_recent": recent, "acceptance_long_run": long_run}
            for name, (recent, long_run) in watch.acceptance.items()
            if name in watch.alarms
        ],
    }
    return (200 if status.state is EngineState.READY else 503), body


def page_state(engine: Answering, journal: Journal) -> Mapping[str, object]:
    """Return all that the page shows."""
    _, known = health(engine)
    facts = engine.facts
    return {
        "now": time.time(),
        "health": known,
        "acceptance": {
            name: {"recent": recent, "long_run": long_run}
            for name, (recent, long_run) in engine.watch.acceptance.items()
        },
        "facts": None if facts is None else msgspec.to_builtins(facts),
        "num_slots": engine.settings.slots,
        "context_tokens": engine.settings.context_tokens,
        "process_bytes": resident_bytes(),
        "http_client": HTTP_CLIENT,
        "journal": journal.state(),
    }


def resident_bytes() -> int:
    """Return how much memory this process has; 0 where no file of Linux's kind tells it."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
