"""Drafts by looking back: what followed the last time the text ended like this?

An index from short runs of tokens to the places where they ended, over prompt and output, grows
token by token; nothing is scanned twice. Among the places of the longest indexed run the one with
the longest match wins, and of equals the most recent, which for code is the better guess.

Source: the idea is Saxena 2023 (prompt lookup decoding) and Oliaro et al. 2024, arXiv 2411.04975.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specengine.draft import NOTHING, Draft
from specengine.sampling import GREEDY, Sampling

RUN_LENS: Final = (4, 2, 1)
"""Lengths of indexed runs, longest first."""

MAX_PLACES: Final = 16
"""Most recent places of a run that are compared."""

MAX_MATCH: Final = 64
"""Longer matches are not told apart."""


class SuffixDrafts:
    """Source of suffix drafters; requests share nothing."""

    name = "suffix"

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> SuffixDrafter:
        """Return a drafter whose index holds the prompt at the first proposal."""
        return SuffixDrafter()


class SuffixDrafter:
    """The index of one request."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return what followed the best earlier match of the end of ``token_ids``."""
        self._extend(token_ids)
        place = self._best_place()
        if place is None or max_tokens <= 0:
            return NOTHING
        return Draft.chain(self._continuation(place, max_tokens), SuffixDrafts.name)

    def close(self) -> None:
        """Do nothing: the index goes with the object."""

    def _extend(self, token_ids: Sequence[int]) -> None:
        # A run is indexed once a token follows it: its place is that token's position.
        known = self._token_ids
        for token_id in token_ids[len(known) :]:
            for run_len in RUN_LENS:
                if len(known) >= run_len:
                    run = tuple(known[-run_len:])
                    self._places.setdefault(run, []).append(len(known))
            known.append(token_id)

    def _best_place(self) -> int | None:
        for run_len in RUN_LENS:
            if len(self._token_ids) >= run_len:
                places = self._places.get(tuple(self._token_ids[-run_len:]), [])
                recent = places[: -MAX_PLACES - 1 : -1]
                if recent:
                    return max(recent, key=self._match_len)
        return None

    def _match_len(self, place: int) -> int:
        ids, end = self._token_ids, len(self._token_ids)
        limit = min(place, MAX_MATCH)
        length = 0
        while length < limit and ids[place - 1 - length] == ids[end - 1 - length]:
            length += 1
        return length

    def _continuation(self, place: int, max_tokens: int) -> list[int]:
        # Past the end of the text the draft goes on with itself: a loop repeats.
        ids = self._token_ids
        period = len(ids) - place
        return [ids[place + offset % period] for offset in range(max_tokens)]
