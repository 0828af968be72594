"""An engine that answers the HTTP door as a test tells it, and notes what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specengine.decoding.session import Counts
from specengine.engine import Facts, Status
from specengine.errors import RequestError
from specengine.protocol import CancelCause, EngineState, StopReason
from specengine.scheduler import Job, Key, Outcome
from specengine.settings import EngineSettings
from specengine.watch import Watch


def outcome(
    text: str,
    reason: StopReason = StopReason.END_TOKEN,
    cause: CancelCause | None = None,
) -> Outcome:
    """Return the end of a request that wrote a text in as many tokens as it has bytes."""
    counts = Counts(reused=7, prefilled=3, drafted=4, accepted=2, steps=3, prefill_ms=2.0)
    ids = tuple(text.encode())
    return Outcome(text, ids, reason, cause, "suffix", counts, queue_ms=1.0, total_ms=8.0)


@dataclass
class ScriptedEngine:
    """Answers each job by ``script``; without one the test answers the jobs itself."""

    script: Callable[[Job], None] | None = None
    settings: EngineSettings = field(default_factory=EngineSettings)
    state: EngineState = EngineState.READY
    model: str = "tiny"
    facts: Facts | None = None
    watch: Watch = field(default_factory=Watch)
    jobs: list[Job] = field(default_factory=list[Job])
    cancelled: list[tuple[Key, CancelCause]] = field(default_factory=list[tuple[Key, CancelCause]])
    stopped: list[Key] = field(default_factory=list[Key])

    @property
    def status(self) -> Status:
        detail = "tiny is ready" if self.state is EngineState.READY else "reading tiny"
        return Status(self.state, self.model, "suffix", 0.5, detail, active=len(self.jobs))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        if self.script is not None:
            self.script(job)

    def cancel(self, key: Key, cause: CancelCause) -> None:
        self.cancelled.append((key, cause))
        self._end(key, StopReason.CANCELLED, cause)

    def stop(self, key: Key) -> None:
        self.stopped.append(key)
        self._end(key, StopReason.STOPPED, None)

    def _end(self, key: Key, reason: StopReason, cause: CancelCause | None) -> None:
        for job in self.jobs:
            if job.key == key:
                job.on_done(outcome("", reason, cause))


def writes(*pieces: str, reason: StopReason = StopReason.END_TOKEN) -> Callable[[Job], None]:
    """Return a script that writes some pieces and ends."""

    def answer(job: Job) -> None:
        for piece in pieces:
            job.on_text(piece)
        job.on_done(outcome("".join(pieces), reason))

    return answer


def fails(error: RequestError, after: Sequence[str] = ()) -> Callable[[Job], None]:
    """Return a script that fails, after some pieces."""

    def answer(job: Job) -> None:
        for piece in after:
            job.on_text(piece)
        job.on_failed(error)

    return answer
