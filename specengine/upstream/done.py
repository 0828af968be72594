"""The last word on a request that a server upstream has answered."""

from __future__ import annotations

from specengine.protocol import Done


class UpstreamDone(Done, frozen=True, tag="done"):
    """``Done`` with what only a server upstream tells; it crosses no wire."""

    counters: tuple[tuple[str, float], ...] = ()
    """Of the server's own speculation, for all its users, as last read; see ``counters.py``."""
