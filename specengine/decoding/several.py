"""Several completions of one prompt, one after the other: the second finds the prompt read.

The first one is streamed as if it were alone; the others are gathered until all are there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from specengine.decoding.session import WHOLE, Counts, Session, Share
from specengine.models.target import Rows
from specengine.protocol import StopReason, TokenLogprobs


class Several:
    """What the scheduler runs instead of one session."""

    def __init__(self, start: Callable[[int], Session], number: int) -> None:
        """Start the first; ``start`` returns the session of an alternative by its number."""
        assert number >= 1
        self._start, self._number = start, number
        self._first = self._current = start(0)
        self._counts = [self._first.counts]
        self._texts = [""]
        self.stop_reason: StopReason | None = None
        """That of the first one, once all have ended."""

    @property
    def alternatives(self) -> tuple[str, ...]:
        """Return the texts of all but the first, as far as they are written."""
        return tuple(self._texts[1:])

    @property
    def counts(self) -> Counts:
        """Return those of all together."""
        total = Counts()
        for counts in self._counts:
            total.add(counts)
        return total

    @property
    def drafter_name(self) -> str:
        """Return that of the first."""
        return self._first.drafter_name

    @property
    def written_ids(self) -> tuple[int, ...]:
        """Return those of the first."""
        return self._first.written_ids

    @property
    def num_healed_bytes(self) -> int:
        """Return that of the first."""
        return self._first.num_healed_bytes

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Return those of the first."""
        return self._first.logprobs

    @property
    def most_rows(self) -> int:
        """Return how many rows the next pass has at most."""
        return self._current.most_rows

    def prepare(self, share: Share = WHOLE) -> Rows | None:
        """Return what the target must compute next; see ``Session.prepare``."""
        return self._current.prepare(share)

    def take(self, logits: torch.Tensor) -> str:
        """Go on after the pass; return the text that it added to the first one."""
        text = self._current.take(logits)
        is_first = self._current is self._first
        has_ended = self._current.stop_reason is not None
        if has_ended:
            text += self._current.finish_text()
        self._texts[-1] += text
        if has_ended:
            self._go_on()
        return text if is_first else ""

    def finish_text(self) -> str:
        """Return what the first one held back, if somebody else has ended it."""
        return self._first.finish_text() if self._first.stop_reason is None else ""

    def close(self) -> None:
        """Give everything back; may be called twice."""
        self._current.close()

    def _go_on(self) -> None:
        self._current.close()
        if len(self._texts) == self._number:
            self.stop_reason = self._first.stop_reason
            return
        self._current = self._start(len(self._texts))
        self._counts.append(self._current.counts)
        self._texts.append("")
