"""Reads one answer: past what was forced, up to a stop string, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from specengine.decoding.stopping import StopStrings
from specengine.protocol import StopReason, TokenCounts
from specengine.upstream.events import Event, Timings, Usage
from specengine.upstream.healing import Forced

MAX_CHARS_PER_TOKEN: Final = 64
"""A server that writes more than so many for each token asked for does not count."""

LENGTH: Final = frozenset(("length", "limit", "max_tokens"))
STOP_STRING: Final = frozenset(("word", "stop_sequence"))
"""llama.cpp and TGI tell it from the model's own end; OpenAI's ``stop`` is both."""

BROKEN_OFF: Final = frozenset(("abort", "error"))
"""The server has given the request up."""


class Reading:
    """What has been read of an answer."""

    def __init__(
        self,
        forced: str,
        stops: tuple[str, ...],
        max_tokens: int,
        on_text: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_misaligned = False
        """It does not begin with the forced text; nothing of it was handed on."""
        self.stop_reason: StopReason | None = None
        """None while it goes on, and at the end of one that was cut off."""
        self.has_text = False
        """Whether something was handed on."""
        self.num_pieces = 0
        """Events with text: tokens, or what one step of a speculating server has accepted."""
        self.first_at_s: float | None = None
        self._forced = Forced(forced)
        self._stops = StopStrings(stops)
        self._chars_left = max_tokens * MAX_CHARS_PER_TOKEN
        self._on_text = on_text
        self._clock = clock
        self._usage: Usage | None = None
        self._timings: Timings | None = None

    def take(self, event: Event) -> bool:
        """Take an event; return whether more is wanted."""
        self._usage, self._timings = event.usage or self._usage, event.timings or self._timings
        if event.text and not self._take_text(event.text):
            return False
        if event.finish is not None:
            return self._finish(event.finish)
        return True

    def end(self) -> None:
        """The server has marked the end, without saying why."""
        if self.stop_reason is None:
            self._finish("stop")

    def counts(self) -> TokenCounts:
        """Return the tokens, as far as the server tells."""
        usage, timings = self._usage or Usage(), self._timings or Timings()
        details = usage.prompt_tokens_details
        reused = (details and details.cached_tokens) or timings.cache_n or 0
        prompt = usage.prompt_tokens or (timings.prompt_n or 0) + (timings.cache_n or 0)
        emitted = usage.completion_tokens or timings.predicted_n or self.num_pieces
        return TokenCounts(
            prompt=prompt,
            reused=reused,
            prefilled=max(0, prompt - reused),
            drafted=timings.draft_n or 0,
            accepted=timings.draft_n_accepted or 0,
            emitted=emitted,
        )

    def _take_text(self, piece: str) -> bool:
        self.num_pieces += 1
        if self.first_at_s is None:
            self.first_at_s = self._clock()
        behind = self._forced.take(piece)
        if behind is None:
            self.is_misaligned = True
            return False
        self._chars_left -= len(piece)
        self._hand_on(self._stops.feed(behind))
        if self._stops.has_met:
            self.stop_reason = StopReason.STOP_STRING
        elif self._chars_left < 0:
            self.stop_reason = StopReason.LENGTH
        return self.stop_reason is None

    def _finish(self, reason: str) -> bool:
        if reason in BROKEN_OFF:
            return False
        if not self._forced.is_met:
            self.is_misaligned = True
            return False
        self._hand_on(self._stops.finish())
        if reason in LENGTH:
            self.stop_reason = StopReason.LENGTH
        elif reason in STOP_STRING:
            self.stop_reason = StopReason.STOP_STRING
        else:
            self.stop_reason = StopReason.END_TOKEN
        return True

    def _hand_on(self, text: str) -> None:
        if text:
            self.has_text = True
            self._on_text(text)
