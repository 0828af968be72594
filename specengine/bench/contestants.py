"""What is measured: somebody who continues a prompt by a number of tokens, alone on the machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Written:
    """One continuation, and what it cost."""

    token_ids: tuple[int, ...]
    num_prompt: int
    """Prompt tokens, all of them read anew."""
    prefill_ms: float
    """Until the first pass that wrote tokens had ended."""
    decode_ms: float
    """From there to the end."""
    num_decoded: int
    """Tokens that were written in that time."""
    passes: int
    """Forward passes in that time."""
    drafted: int
    accepted: int
    draft_ms: float | None = None
    """What drafting took; None where nobody tells."""
    drafts: int = 0
    """Passes with a draft, of the whole text, and"""
    accepted_at: tuple[int, ...] = ()
    """how many of them had their token at each place accepted; empty where nobody tells."""


def added(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return sums by place of lists of several lengths."""
    return tuple(map(sum, itertools.zip_longest(*counts, fillvalue=0)))


class Named(Protocol):
    """What a row of results is about."""

    @property
    def engine(self) -> str:
        """Return the name of the engine."""
        ...

    @property
    def drafter(self) -> str:
        """Return the way of drafting.

        ``none`` is plain decoding, against which the others of the same engine are held.
        """
        ...


class Contestant(Named, Protocol):
    """A way of decoding greedily with one model."""

    def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
        """Continue a prompt by exactly so many tokens; an end token counts as any other."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A contestant that may draft from what it has written before."""

    def forget(self) -> None:
        """Forget it: a prompt must not find the answer of an earlier run."""
        ...


class Peer(Contestant, Protocol):
    """A contestant that says too what it gains from having read a prompt before."""

    def resume_ms(self, prompt_ids: Sequence[int]) -> float:
        """Return how long the first token takes when all but the last of the prompt is stored."""
        ...
