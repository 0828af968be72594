"""One request on its way through servers, and the last word on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from specengine.errors import SpecEngineError
from specengine.protocol import (
    CancelCause,
    Chunk,
    Complete,
    Done,
    PhaseTimes,
    StopReason,
    TokenCounts,
)
from specengine.upstream.done import UpstreamDone
from specengine.upstream.reading import Reading
from specengine.upstream.server import Facts, Server


@dataclass
class Run:
    """One request and what has come of it."""

    message: Complete
    started_s: float
    answers: asyncio.Queue[Chunk | Done | SpecEngineError] = field(
        default_factory=lambda: asyncio.Queue[Chunk | Done | SpecEngineError]()
    )
    pieces: list[str] = field(default_factory=list[str])
    server: Server | None = None
    """Where it went last, with what that is, when, and what has come from there."""
    facts: Facts | None = None
    sent_s: float = 0.0
    reading: Reading | None = None
    is_over: bool = False

    @property
    def has_text_from_server(self) -> bool:
        """Whether some of the text has come from a server upstream."""
        return self.reading is not None and self.reading.has_text

    def write(self, text: str) -> None:
        """Hand text on."""
        if not self.is_over:
            self.pieces.append(text)
            self.answers.put_nowait(Chunk(self.message.request, text))

    def finish(self, answer: Done | SpecEngineError) -> None:
        """Hand the last word on, once."""
        if not self.is_over:
            self.is_over = True
            self.answers.put_nowait(answer)

    def done(self, now_s: float, reason: StopReason, cause: CancelCause | None = None) -> Done:
        """Return the last word, with what is known so far."""
        reading, server, facts = self.reading, self.server, self.facts
        sent_s = now_s if reading is None else self.sent_s
        first_s = now_s if reading is None or reading.first_at_s is None else reading.first_at_s
        return UpstreamDone(
            request=self.message.request,
            text="".join(self.pieces),
            token_ids=(),
            stop_reason=reason,
            cause=cause,
            model=facts.short_model if facts else "",
            drafter=f"upstream:{facts.kind or 'server'}@{server.name}" if facts and server else "",
            steps=reading.num_pieces if reading else 0,
            tokens=reading.counts() if reading else TokenCounts(),
            ms=PhaseTimes(
                queue=(sent_s - self.started_s) * 1000,
                prefill=(first_s - sent_s) * 1000,
                verify=(now_s - first_s) * 1000,
                total=(now_s - self.started_s) * 1000,
            ),
            counters=tuple(server.counters.items()) if server else (),
        )
