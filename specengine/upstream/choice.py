"""Which of several servers gets a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specengine.upstream.server import Server

MAX_BUSIER: Final = 2
"""So many requests more than another a server may have, and still keep its documents."""


def choose(
    servers: Sequence[Server], last: Server | None = None, avoided: Server | None = None
) -> Server | None:
    """Return the server to ask, or None if none may be asked now.

    The one that answered last for this document has its prompt stored, so it stays unless it fails
    or is much busier; else the healthiest, least busy and quickest. ``avoided`` has just failed
    this request: it is asked again only if it is the only one.
    """
    free = [server for server in servers if server.breaker.can_ask]
    free = [server for server in free if server is not avoided] or free
    if not free:
        return None
    best = min(
        free, key=lambda server: (not server.breaker.is_healthy, server.active, server.first_text_s)
    )
    is_kept = last in free and last.breaker.is_healthy and last.active <= best.active + MAX_BUSIER
    return last if last is not None and is_kept else best
