"""Who runs next: the newest request of each document, one forward pass at a time.

A pass takes other requests along where the target can; they share its rows, and each gets the bits
that it would have alone. The scheduler knows no thread and no socket. Its owner calls ``run_once``
as long as ``has_work``; between two calls requests are added, cancelled and stopped, so each of
these is seen within one forward pass.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from specengine.decoding.session import WHOLE, Counts, Share
from specengine.errors import EngineBusy, InternalFault, RequestError
from specengine.models.target import Rows
from specengine.protocol import (
    CancelCause,
    Complete,
    PhaseTimes,
    StopReason,
    TokenCounts,
    TokenLogprobs,
)
from specengine.trouble import log_trouble

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Key:
    """A request of a client; both numbers are the server's business."""

    client: int
    request: int


class Running(Protocol):
    """What the scheduler needs of a session; ``decoding.session.Session`` is one."""

    @property
    def stop_reason(self) -> StopReason | None:
        """Return why it has ended by itself, or None."""
        ...

    @property
    def counts(self) -> Counts:
        """Return its tokens and times."""
        ...

    @property
    def drafter_name(self) -> str:
        """Return who drafts, for the trace."""
        ...

    @property
    def written_ids(self) -> tuple[int, ...]:
        """Return the committed tokens after the prompt."""
        ...

    @property
    def num_healed_bytes(self) -> int:
        """Return how many of their bytes stand before the cursor already."""
        ...

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Return one for each of them, if that was asked for."""
        ...

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Return further completions, if they were asked for."""
        ...

    @property
    def most_rows(self) -> int:
        """Return how many rows its next pass has at most."""
        ...

    def prepare(self, share: Share = WHOLE) -> Rows | None:
        """Return what the target must compute next; None when a draft model worked instead."""
        ...

    def take(self, logits: torch.Tensor) -> str:
        """Go on after the pass; return the text it added."""
        ...

    def finish_text(self) -> str:
        """Return the rest of an incomplete character."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


@dataclass(frozen=True)
class Outcome:
    """How a request ended."""

    text: str
    token_ids: tuple[int, ...]
    stop_reason: StopReason
    cause: CancelCause | None
    drafter: str
    """Empty for a request that never started."""
    counts: Counts
    queue_ms: float
    total_ms: float
    logprobs: tuple[TokenLogprobs, ...] = ()
    alternatives: tuple[str, ...] = ()
    num_healed_bytes: int = 0
    """So many bytes of the tokens stand before the cursor, and are not in the text."""

    @property
    def tokens(self) -> TokenCounts:
        """Return where its tokens went."""
        counts = self.counts
        return TokenCounts(
            prompt=counts.reused + counts.prefilled,
            reused=counts.reused,
            prefilled=counts.prefilled,
            drafted=counts.drafted,
            accepted=counts.accepted,
            emitted=counts.emitted,
        )

    @property
    def ms(self) -> PhaseTimes:
        """Return where its time went."""
        counts = self.counts
        return PhaseTimes(
            queue=self.queue_ms,
            prefill=counts.prefill_ms,
            draft=counts.draft_ms,
            verify=counts.verify_ms,
            total=self.total_ms,
        )

    @property
    def drafting(self) -> str:
        """Return how many drafts each drafter has made, and why there was none in other passes."""
        by_drafter = self.counts.by_drafter.items()
        numbers = {name: told.drafts for name, told in by_drafter if told.drafts}
        return ", ".join(
            f"{what} {number}" for what, number in (numbers | self.counts.undrafted).items()
        )

    @property
    def line(self) -> str:
        """Return it in one line for the log, without any text."""
        tokens = self.tokens
        return (
            f"{self.cause or self.stop_reason}, {tokens.prompt} prompt tokens of which "
            f"{tokens.reused} reused, {tokens.emitted} written in {self.counts.steps} steps, "
            f"{tokens.drafted} drafted ({self.drafting or 'no drafts'}), "
            f"{tokens.accepted} accepted, "
            f"{self.queue_ms:.0f} ms waiting, {self.total_ms:.0f} ms in all"
        )


@dataclass
class Job:
    """A request with the ways to answer it. Exactly one of the last two is called, once."""

    key: Key
    message: Complete
    on_text: Callable[[str], None]
    on_done: Callable[[Outcome], None]
    on_failed: Callable[[RequestError], None]
    received_at: float
    started_at: float | None = None
    session: Running | None = None
    texts: list[str] = field(default_factory=list[str])


class Batcher(Protocol):
    """What the scheduler needs of a target."""

    @property
    def batch_rows(self) -> int:
        """Return how many rows of several sequences a pass can take; 0 if it takes one only."""
        ...

    def forward_batch(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        """Compute one pass for several sequences."""
        ...


class Scheduler:
    """Waiting and running jobs."""

    def __init__(
        self,
        new_session: Callable[[Complete], Running],
        *,
        max_running: int,
        max_waiting: int,
        target: Callable[[], Batcher],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._new_session = new_session
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._target = target
        self._clock = clock
        self._waiting: list[Job] = []
        self._running: list[Job] = []

    @property
    def has_work(self) -> bool:
        """Whether ``run_once`` would do anything."""
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        """Return the number of requests that have not started."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Return the number of requests that have started."""
        return len(self._running)

    def add(self, job: Job) -> None:
        """Take a request in; older ones of the same client and document end as superseded.

        So do those that look ahead, whoever's they are, unless it looks ahead itself.
        """
        for old in self._jobs():
            is_same = old.message.document == job.message.document
            is_in_the_way = old.message.is_ahead and not job.message.is_ahead
            if is_in_the_way or (old.key.client == job.key.client and is_same):
                self._cancel(old, CancelCause.SUPERSEDED)
        if len(self._waiting) >= self._max_waiting:
            self._tell(job.on_failed, EngineBusy(f"{self._max_waiting} requests wait already."))
            return
        self._waiting.append(job)

    def cancel(self, key: Key, cause: CancelCause) -> None:
        """End a request early; one that has ended already is left alone."""
        for job in self._jobs():
            if job.key == key:
                self._cancel(job, cause)

    def cancel_client(self, client: int, cause: CancelCause) -> None:
        """End all requests of a client."""
        for job in self._jobs():
            if job.key.client == client:
                self._cancel(job, cause)

    def cancel_all(self, cause: CancelCause) -> None:
        """End all requests."""
        for job in self._jobs():
            self._cancel(job, cause)

    def fail_all(self, error: RequestError) -> None:
        """End all requests with an error."""
        for job in self._jobs():
            self._fail(job, error)

    def stop(self, key: Key) -> None:
        """End a request with what it has written."""
        for job in self._jobs():
            if job.key == key:
                self._end(job, StopReason.STOPPED, None)

    def run_once(self) -> None:
        """Make one forward pass for the request whose turn it is, and for those that fit beside."""
        self._admit()
        if self._running:
            self._advance(self._next_together())

    def _next_together(self) -> list[Job]:
        """Return who runs in this pass. They move to the back; new ones have come at the front."""
        number = max(1, self._target().batch_rows)
        together, left = self._running[:number], self._running[number:]
        self._running = [*left, *together]
        return together

    def _jobs(self) -> list[Job]:
        return [*self._running, *self._waiting]

    def _admit(self) -> None:
        num_new = 0
        while len(self._running) < self._max_running and (job := self._next_waiting()) is not None:
            self._waiting.remove(job)
            # In front of those that run, behind those that are newer.
            self._running.insert(num_new, job)
            num_new += 1
            job.started_at = self._clock()
            try:
                job.session = self._new_session(job.message)
            except RequestError as error:
                self._fail(job, error)
                num_new -= 1
            except Exception:
                self._fault(job)
                num_new -= 1

    def _next_waiting(self) -> Job | None:
        """Return the newest that is waited for; else, if nothing runs, one that looks ahead."""
        for job in reversed(self._waiting):
            if not job.message.is_ahead:
                return job
        return self._waiting[-1] if self._waiting and not self._running else None

    def _advance(self, jobs: Sequence[Job]) -> None:
        prepared: list[tuple[Job, Rows]] = []
        num_left = self._target().batch_rows
        # Those who want least are asked first: what they leave is for prompts.
        for at, job in enumerate(sorted(jobs, key=_most_rows)):
            share = Share(num_left // (len(jobs) - at), len(jobs)) if len(jobs) > 1 else WHOLE
            if (rows := self._prepare(job, share)) is not None:
                prepared.append((job, rows))
                num_left -= len(rows.token_ids)
        if prepared:
            self._pass(prepared)

    def _prepare(self, job: Job, share: Share) -> Rows | None:
        assert job.session is not None
        try:
            return job.session.prepare(share)
        except Exception:
            self._fault(job)
            return None

    def _pass(self, prepared: Sequence[tuple[Job, Rows]]) -> None:
        try:
            logits = self._target().forward_batch([rows for _, rows in prepared])
        except Exception:
            if len(prepared) == 1:
                self._fault(prepared[0][0])
                return
            log_trouble(logger, f"a pass for {len(prepared)} requests failed; each runs alone")
            for one in prepared:
                self._pass([one])
            return
        for (job, _), own in zip(prepared, logits, strict=True):
            self._take(job, own)

    def _take(self, job: Job, logits: torch.Tensor) -> None:
        assert job.session is not None
        try:
            text = job.session.take(logits)
            reason = job.session.stop_reason
        except Exception:
            self._fault(job)
            return
        self._emit(job, text)
        if reason is not None:
            self._end(job, reason, None)

    def _emit(self, job: Job, text: str) -> None:
        if text:
            job.texts.append(text)
            self._tell(job.on_text, text)

    def _cancel(self, job: Job, cause: CancelCause) -> None:
        self._end(job, StopReason.CANCELLED, cause)

    def _end(self, job: Job, reason: StopReason, cause: CancelCause | None) -> None:
        if reason is not StopReason.CANCELLED and job.session is not None:
            self._emit(job, job.session.finish_text())
        self._remove(job)
        self._tell(job.on_done, self._outcome(job, reason, cause))

    def _outcome(self, job: Job, reason: StopReason, cause: CancelCause | None) -> Outcome:
        now, session = self._clock(), job.session
        started = now if job.started_at is None else job.started_at
        return Outcome(
            text="".join(job.texts),
            token_ids=() if session is None else session.written_ids,
            stop_reason=reason,
            cause=cause,
            drafter="" if session is None else session.drafter_name,
            counts=Counts() if session is None else session.counts,
            queue_ms=(started - job.received_at) * 1000,
            total_ms=(now - job.received_at) * 1000,
            logprobs=() if session is None else session.logprobs,
            alternatives=() if session is None else session.alternatives,
            num_healed_bytes=0 if session is None else session.num_healed_bytes,
        )

    def _fail(self, job: Job, error: RequestError) -> None:
        self._remove(job)
        self._tell(job.on_failed, error)

    def _fault(self, job: Job) -> None:
        log_trouble(logger, f"request {job.key.request} of client {job.key.client} failed")
        self._fail(job, InternalFault("the engine failed on this request.", hint="See its log."))

    def _remove(self, job: Job) -> None:
        jobs = self._running if job in self._running else self._waiting
        jobs.remove(job)
        try:
            if job.session is not None:
                job.session.close()
        except Exception:
            log_trouble(logger, f"request {job.key.request} did not close cleanly")

    def _tell(self, listener: Callable[[T], None], what: T) -> None:
        """Answer a request; a listener with a bug must not end the others' requests."""
        try:
            listener(what)
        except Exception:
            log_trouble(logger, "an answer could not be delivered")


def _most_rows(job: Job) -> int:
    assert job.session is not None
    return job.session.most_rows
