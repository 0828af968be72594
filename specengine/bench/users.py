"""How many people an engine serves at once: completions for so many users, in shared passes.

Each user asks for one completion after the other, of prompts of their own, as the scheduler of the
engine runs them; no socket and no editor are between. With one user this is plain decoding.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from specengine.bench.own import OwnEngine
from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.decoding.session import Session
from specengine.drafters.base import DrafterSource
from specengine.errors import RequestError
from specengine.protocol import Complete
from specengine.scheduler import Job, Key, Outcome, Scheduler

USERS: Final = (1, 2, 4, 8)
NUM_TOKENS: Final = 48

OnProgress = Callable[[float, str], None]


class UsersRow(msgspec.Struct, frozen=True):
    """So many users with one drafter."""

    model: str
    precision: str
    drafter: str
    users: int
    completions: int
    tokens_s: float
    """Written for all of them together."""
    against_one: float
    """That, over the same with one user."""
    median_ms: float
    """From a request to its answer."""
    p95_ms: float


@dataclass
class Round:
    """The completions of some users, as they come in."""

    own: OwnEngine
    source: DrafterSource
    texts: Sequence[str]
    each: int
    """Completions of one user."""
    users: int
    clock: Callable[[], float] = time.perf_counter
    milliseconds: list[float] = field(default_factory=list[float])
    num_tokens: int = 0

    def run(self) -> float:
        """Serve all; return the seconds that it took."""
        shape, capacity = self.own.models.target.kv_shape, self.own.settings.context_tokens
        prefixes = PrefixCache(lambda: KVCache(shape, capacity), self.users)
        self._scheduler = Scheduler(
            lambda message: self._session(message, prefixes),
            max_running=self.users,
            max_waiting=self.users,
            target=lambda: self.own.models.target,
            clock=self.clock,
        )
        started = self.clock()
        for user in range(self.users):
            self._ask(user, 0)
        while self._scheduler.has_work:
            self._scheduler.run_once()
        return self.clock() - started

    def _ask(self, user: int, number: int) -> None:
        text = self.texts[(user * self.each + number) % len(self.texts)]
        message = Complete(request=number, document="d", prefix=text, max_tokens=NUM_TOKENS)

        def on_done(outcome: Outcome) -> None:
            self.milliseconds.append(outcome.total_ms)
            self.num_tokens += len(outcome.token_ids)
            if number + 1 < self.each:
                self._ask(user, number + 1)

        def on_failed(error: RequestError) -> None:
            raise error

        key = Key(user, number)
        job = Job(key, message, lambda text: None, on_done, on_failed, self.clock())
        self._scheduler.add(job)

    def _session(self, message: Complete, prefixes: PrefixCache) -> Session:
        prompt = self.own.layout.lay_out(message.prefix, "")
        return self.own.session(prompt, self.source, message.max_tokens, prefixes)


def measure(
    own: OwnEngine,
    drafters: Sequence[str],
    texts: Sequence[str],
    each: int,
    on_progress: OnProgress,
) -> list[UsersRow]:
    """Return a row for each drafter and number of users, ``each`` completions for every user."""
    rows: list[UsersRow] = []
    for at, drafter in enumerate(drafters):
        source, alone = own.source(drafter), 0.0
        Round(own, source, texts, 1, 1).run()  # the first of all is slow
        for number, users in enumerate(USERS):
            on_progress((at + number / len(USERS)) / len(drafters), f"{drafter}, {users} users")
            one = Round(own, source, texts, each, users)
            seconds = one.run()
            speed = one.num_tokens / seconds
            alone = alone or speed
            times = sorted(one.milliseconds)
            rows.append(
                UsersRow(
                    model=own.entry.name,
                    precision=own.models.target.precision,
                    drafter=source.name,
                    users=users,
                    completions=len(times),
                    tokens_s=round(speed, 1),
                    against_one=round(speed / alone, 2),
                    median_ms=round(statistics.median(times)),
                    p95_ms=round(times[min(len(times) - 1, round(0.95 * len(times)))]),
                )
            )
    on_progress(1.0, "done")
    return rows
