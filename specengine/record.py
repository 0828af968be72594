"""One request that has ended, for whoever counts, shows or exports requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from specengine.decoding.session import Drafting
from specengine.errors import RequestError
from specengine.protocol import PhaseTimes, TokenCounts
from specengine.scheduler import Job, Outcome

NO_DRAFTS: Mapping[str, Drafting] = {}


@dataclass(frozen=True)
class Record:
    """What is known of it. The texts are source code: they are shown to their owner or dropped."""

    ended_at: float
    """Seconds since 1970."""
    client: int
    """As in ``Key``."""
    result: str
    """A stop reason, the cause of a cancel, or the code of an error."""
    drafter: str
    """Empty for a request that never started."""
    ms: PhaseTimes
    tokens: TokenCounts
    steps: int = 0
    by_drafter: Mapping[str, Drafting] = field(default_factory=lambda: NO_DRAFTS)
    prefix: str = field(default="", repr=False)
    text: str = field(default="", repr=False)

    @classmethod
    def of(cls, job: Job, end: Outcome | RequestError) -> Record:
        """Return the record of a job that has just ended."""
        if isinstance(end, RequestError):
            total_ms = (time.perf_counter() - job.received_at) * 1000
            ms = PhaseTimes(total=total_ms)
            return cls(
                time.time(),
                job.key.client,
                end.code,
                "",
                ms,
                TokenCounts(),
                prefix=job.message.prefix,
            )
        return cls(
            ended_at=time.time(),
            client=job.key.client,
            result=end.cause or end.stop_reason,
            drafter=end.drafter,
            ms=end.ms,
            tokens=end.tokens,
            steps=end.counts.steps,
            by_drafter=end.counts.by_drafter,
            prefix=job.message.prefix,
            text=end.text,
        )
