"""From a text with a hole to the tokens that a model reads and those that it must write.

A hole is cut as a prompt is cut at inference: the tokens before it end at a boundary that no later
text moves, so what is learnt begins with the healed tokens. See ``decoding/forced_text.py``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from specengine.decoding.forced_text import safe_boundary
from specengine.models.tokenizer import Tokenizer
from specengine.train.holes import Hole

SampleLayout: TypeAlias = Literal["plain", "suffix_first", "prefix_first"]

MAX_MIDDLE_TOKENS: Final = 160
PLAIN_TOKENS: Final = 64
"""A plain sample goes on for so many tokens, beyond its hole and without an end."""
CHARS_PER_TOKEN: Final = 6
"""More than code has; what lies further from the hole than this times the tokens is not read."""
SUFFIX_SHARES: Final = (0.1, 0.5)


@dataclass(frozen=True)
class SentinelTexts:
    """Special tokens of the vocabulary that mark the parts from now on.

    The default ones marked issues of a forge in the training of SmolLM2; code has no use for them.
    """

    prefix: str = "<issue_start>"
    suffix: str = "<issue_comment>"
    middle: str = "<issue_closed>"
    end: str = "<|endoftext|>"


@dataclass(frozen=True)
class Sentinels:
    """Ids of the tokens that mark the parts."""

    prefix: int
    suffix: int
    middle: int
    end: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: SentinelTexts) -> Sentinels:
        """Look the texts up.

        Raises:  ConfigError when the tokenizer lacks one.
        """
        names = (texts.prefix, texts.suffix, texts.middle, texts.end)
        return cls(*map(tokenizer.special_id, names))


@dataclass(frozen=True)
class Sample:
    """A row of a batch."""

    token_ids: tuple[int, ...]
    first_learnt: int
    """Index of the first token that the model must write; all from there on are."""
    context: tuple[int, ...]
    """Indices of the tokens before that whose predecessor is text too."""
    layout: SampleLayout
    kind: str
    """Of the hole."""


class SampleMaker:
    """Makes samples for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, sentinels: Sentinels) -> None:
        self._tokenizer = tokenizer
        self._sentinels = sentinels

    def make(
        self,
        text: str,
        hole: Hole,
        layout: SampleLayout,
        max_tokens: int,
        rng: random.Random,
        *,
        plain_tokens: int = PLAIN_TOKENS,
    ) -> Sample | None:
        """Return the sample, or None when its middle is empty or too long to be learnt from.

        With 0 ``plain_tokens`` a plain sample ends where its hole ends.
        """
        window = max_tokens * CHARS_PER_TOKEN
        before = text[max(0, hole.start - window) : hole.start]
        middle, after = text[hole.start : hole.end], text[hole.end : hole.end + window]
        goes_on = layout == "plain" and plain_tokens > 0
        if goes_on:
            middle = (middle + after)[: plain_tokens * CHARS_PER_TOKEN]
        kept, learnt = self._split(before, middle)
        if goes_on:
            learnt = learnt[:plain_tokens]
        elif layout != "plain":
            learnt = (*learnt, self._sentinels.end)
        if not middle.strip() or not learnt or len(learnt) > MAX_MIDDLE_TOKENS:
            return None
        room = max_tokens - len(learnt)
        head = self._head(kept, after, layout, room, rng)
        return Sample((*head, *learnt), len(head), self._context(head), layout, hole.kind)

    def _context(self, head: tuple[int, ...]) -> tuple[int, ...]:
        marks = self._sentinels
        special = {marks.prefix, marks.suffix, marks.middle, marks.end}
        return tuple(
            at for at in range(1, len(head)) if not special.intersection(head[at - 1 : at + 1])
        )

    def _split(self, before: str, middle: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens before the healed boundary, and those from there to the hole's end."""
        words = self._tokenizer.encode_words(before)
        end = safe_boundary(words, self._tokenizer)
        kept = tuple(token_id for token_id, _ in words[:end])
        joined = tuple(self._tokenizer.encode(before + middle))
        if joined[:end] == kept:
            return kept, joined[end:]
        # A last word that is too long is healed by its last token only; what follows may differ.
        healed = b"".join(self._tokenizer.token_bytes(token_id) for token_id, _ in words[end:])
        rest = healed.decode("utf-8", errors="replace") + middle
        return kept, tuple(self._tokenizer.encode(rest))

    def _head(
        self,
        kept: tuple[int, ...],
        after: str,
        layout: SampleLayout,
        room: int,
        rng: random.Random,
    ) -> tuple[int, ...]:
        marks = self._sentinels
        if layout == "plain":
            # Only a token can be continued.
            return _last(kept, room) or (marks.end,)
        room -= 3
        share = rng.uniform(*SUFFIX_SHARES)
        suffix = tuple(self._tokenizer.encode(after))[: int(room * share)]
        prefix = _last(kept, room - len(suffix))
        if layout == "suffix_first":
            return (marks.suffix, *suffix, marks.prefix, *prefix)
        return (marks.prefix, *prefix, marks.suffix, *suffix, marks.middle)


def _last(token_ids: tuple[int, ...], num: int) -> tuple[int, ...]:
    return token_ids[max(0, len(token_ids) - num) :]
