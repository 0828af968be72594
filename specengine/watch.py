"""Whether drafting goes as it should, and what is switched off because it does not.

Three things are watched for each drafter: whether it still makes decoding faster than passes
without drafts, whether it raises errors, and whether as many of its tokens are accepted as used to
be. The first switches it off for a while, the second for good; the third raises an alarm. What
fails a check of its own is switched off until the process ends. It knows no engine: whoever owns it
tells it what happened and asks what is off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from specengine.decoding.session import Drafting

logger = logging.getLogger(__name__)

Kind = Literal["drafter", "precision", "model"]

WINDOW_TOKENS: Final = 400.0
"""The recent past, in tokens: each one counts 1/400 less than the next."""

LONG_TOKENS: Final = 8_000.0
"""The long run."""

MIN_TOKENS: Final = 300.0
"""Nothing is judged on fewer."""

SLOWER: Final = 0.9
"""A drafter whose speed is below this share of plain decoding's is switched off."""

PAUSE_S: Final = 600.0
"""After so long a drafter that was too slow is tried again; twice as long each further time."""

MAX_PAUSE_S: Final = 4 * 3600.0

MAX_FAILURES: Final = 3
"""Requests in a row on which a drafter may fail."""

DRIFTED: Final = 0.5
"""Alarm below this share of the acceptance in the long run,"""

RECOVERED: Final = 0.75
"""over above this one."""


@dataclass(frozen=True)
class SwitchedOff:
    """One thing that is not used, and why."""

    kind: Kind
    name: str
    reason: str
    at: float
    """Seconds since 1970."""
    until: float | None
    """When it is tried again, on the watch's own clock; None is never."""


@dataclass
class Pace:
    """Tokens and milliseconds of the recent past."""

    tokens: float = 0.0
    ms: float = 0.0

    def note(self, tokens: float, ms: float) -> None:
        """Add some; what is older counts less."""
        kept = 1 - min(tokens / WINDOW_TOKENS, 1)
        self.tokens = self.tokens * kept + tokens
        self.ms = self.ms * kept + ms

    @property
    def ms_per_token(self) -> float:
        """Return what a token takes; 0 where nothing is known."""
        return self.ms / self.tokens if self.tokens else 0.0


@dataclass
class Share:
    """Which share of drafted tokens is accepted, over some window."""

    window: float
    drafted: float = 0.0
    accepted: float = 0.0

    def note(self, drafted: float, accepted: float) -> None:
        """Add some; what is older counts less."""
        kept = 1 - min(drafted / self.window, 1)
        self.drafted = self.drafted * kept + drafted
        self.accepted = self.accepted * kept + accepted

    @property
    def rate(self) -> float:
        """Return the share."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass
class Acceptance:
    """How well one drafter guesses."""

    recent: Share = field(default_factory=lambda: Share(WINDOW_TOKENS))
    long_run: Share = field(default_factory=lambda: Share(LONG_TOKENS))
    pace: Pace = field(default_factory=Pace)
    has_drifted: bool = False
    num_pauses: int = 0
    num_failures: int = 0


class Watch:
    """What happened and what is off; safe to use from several threads."""

    def __init__(
        self,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_change`` is called when something was switched off or on, or an alarm changed."""
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self._plain = Pace()
        self._drafters: dict[str, Acceptance] = {}
        self._off: dict[tuple[Kind, str], SwitchedOff] = {}

    @property
    def switched_off(self) -> list[SwitchedOff]:
        """Return what is off now."""
        with self._lock:
            return [off for off in self._off.values() if not self._is_over(off)]

    @property
    def alarms(self) -> list[str]:
        """Return the drafters whose acceptance has drifted."""
        with self._lock:
            return [name for name, known in self._drafters.items() if known.has_drifted]

    @property
    def acceptance(self) -> Mapping[str, tuple[float, float]]:
        """Return for each drafter the acceptance of the recent past and of the long run."""
        with self._lock:
            return {
                name: (known.recent.rate, known.long_run.rate)
                for name, known in self._drafters.items()
                if known.long_run.drafted
            }

    @property
    def summary(self) -> str:
        """Return in one line what is off and why; empty where nothing is."""
        return "; ".join(f"{off.kind} {off.name} is off: {off.reason}" for off in self.switched_off)

    def is_off(self, kind: Kind, name: str) -> bool:
        """Whether something must not be used now."""
        with self._lock:
            off = self._off.get((kind, name))
            return off is not None and not self._is_over(off)

    def is_broken(self, kind: Kind, name: str) -> bool:
        """Whether something has failed its check, so that it is off for good."""
        with self._lock:
            off = self._off.get((kind, name))
            return off is not None and off.until is None

    def usable(self, drafters: str) -> str:
        """Return names joined by ``+`` without those that are off."""
        parts = [part for part in drafters.split("+") if not self.is_off("drafter", part)]
        return "+".join(parts) or "none"

    def allowed(self, drafters: str) -> str:
        """Return names joined by ``+`` without those that are off for good: a request's own wish.

        Whoever asks for a slow drafter by its name, to measure it for one, gets it.
        """
        parts = [part for part in drafters.split("+") if not self.is_broken("drafter", part)]
        return "+".join(parts) or "none"

    def switch_off(
        self, kind: Kind, name: str, reason: str, *, pause_s: float | None = None
    ) -> None:
        """Let something not be used: for good, or for a while."""
        until = None if pause_s is None else self._clock() + pause_s
        with self._lock:
            self._off[kind, name] = SwitchedOff(kind, name, reason, time.time(), until)
        again = "" if pause_s is None else f"; it is tried again in {pause_s:.0f} s"
        logger.warning("%s %s is switched off: %s%s", kind, name, reason, again)
        self._on_change()

    def note(self, by_drafter: Mapping[str, Drafting]) -> None:
        """Take in how many tokens a request had accepted, as ``Counts.by_drafter`` tells it."""
        is_news = False
        with self._lock:
            for name, told in by_drafter.items():
                if name:
                    known = self._drafters.setdefault(name, Acceptance())
                    known.recent.note(told.drafted, told.accepted)
                    is_news |= self._note_drift(name, known)
                    known.long_run.note(told.drafted, told.accepted)
        if is_news:
            self._on_change()

    def note_pace(self, by_drafter: Mapping[str, Drafting]) -> None:
        """Take in what a request's tokens took; not for drafters that see to that themselves."""
        slow: list[tuple[str, str, float]] = []
        with self._lock:
            for name, told in by_drafter.items():
                if name == "":
                    self._plain.note(told.timed_tokens, told.verify_ms)
                    continue
                known = self._drafters.setdefault(name, Acceptance())
                known.pace.note(told.timed_tokens, told.draft_ms + told.verify_ms)
                if reason := self._too_slow(known):
                    slow.append((name, reason, _next_pause(known)))
        for name, reason, pause_s in slow:
            self.switch_off("drafter", name, reason, pause_s=pause_s)

    def note_failure(self, drafters: str) -> None:
        """Take in that drafters raised an error while a request was answered."""
        with self._lock:
            known = self._drafters.setdefault(drafters, Acceptance())
            known.num_failures += 1
            is_over = known.num_failures == MAX_FAILURES
        if is_over:
            reason = f"it failed on {MAX_FAILURES} requests in a row; the log has the errors"
            for part in drafters.split("+"):
                self.switch_off("drafter", part, reason)

    def note_success(self, drafters: str) -> None:
        """Take in that drafters raised no error while a request was answered."""
        with self._lock:
            if drafters in self._drafters:
                self._drafters[drafters].num_failures = 0

    def _note_drift(self, name: str, known: Acceptance) -> bool:
        """Raise or end the alarm of a drafter; return whether that is news."""
        recent, long_run = known.recent, known.long_run
        if long_run.drafted < 3 * MIN_TOKENS or recent.drafted < MIN_TOKENS:
            return False
        had_drifted = known.has_drifted
        bound = RECOVERED if had_drifted else DRIFTED
        known.has_drifted = recent.rate < bound * long_run.rate
        if known.has_drifted == had_drifted:
            return False
        logger.warning(
            "acceptance of drafter %s %s: %.0f %% of late, %.0f %% in the long run",
            name,
            "has dropped" if known.has_drifted else "has recovered",
            100 * recent.rate,
            100 * long_run.rate,
        )
        return True

    def _too_slow(self, known: Acceptance) -> str:
        plain, own = self._plain, known.pace
        if min(plain.tokens, own.tokens) < MIN_TOKENS:
            return ""
        if own.ms_per_token * SLOWER <= plain.ms_per_token:
            return ""
        return (
            f"{own.ms_per_token:.1f} ms a token with its drafts, "
            f"{plain.ms_per_token:.1f} ms without"
        )

    def _is_over(self, off: SwitchedOff) -> bool:
        return off.until is not None and self._clock() >= off.until


def _next_pause(known: Acceptance) -> float:
    """Return how long a drafter pauses now; when it is tried again, it is judged anew."""
    pause_s = min(PAUSE_S * 2**known.num_pauses, MAX_PAUSE_S)
    known.num_pauses += 1
    known.pace = Pace()
    return pause_s
