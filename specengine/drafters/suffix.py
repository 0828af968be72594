"""Drafts by looking back: what followed when a text ended like this before?

Two texts are searched for the end of the request's: the request's own, prompt and output, and the
engine's history. What followed there makes a tree of candidates. The chance of each is learnt from
how often such a candidate was right, by the length of its match and by how many agree; nothing
need be drafted for that, as each committed token is a verdict on all candidates.

Source: Saxena 2023 (prompt lookup decoding); Oliaro et al. 2024, arXiv 2411.04975.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from specengine.draft import NOTHING, ROOT, Draft
from specengine.drafters.history import MAX_BYTES, History
from specengine.drafters.texts import GAP, MAX_MATCH, Text, continuations, match_lens
from specengine.sampling import GREEDY, Sampling

LEAST_CHANCE: Final = 0.05
"""Of a token and all before it; what is less likely is not worth a look."""

MAX_VOICES: Final = 16
"""Places, of the longest matches, whose continuations make the tree."""

LEN_CLASS: Final = (0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7)
"""Matches of these lengths count as equally good."""

MEMORY: Final = 400.0
"""Verdicts on candidates of one class that are remembered; older ones fade."""

LEARNT_FROM: Final = 12.0
"""Verdicts that weigh as much as what is believed before any."""

BELIEFS: Final = (0.15, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85)
"""Chances by length class, before anything is known."""


class Kind(NamedTuple):
    """What else tells candidates apart."""

    is_own: bool
    """Whether the request's own text proposes it too, not only the history."""
    stand: int
    """0 alone, 1 several agree, 2 most agree, 3 few agree, 4 a much longer match says otherwise."""


STANDS: Final = (0.9, 1.0, 0.7, 0.3, 0.15)
"""Factors of the beliefs, by stand."""

NUM_CLASSES: Final = 2 * len(STANDS) * len(BELIEFS)

OWN_MEMORY: Final = 40.0
"""Verdicts on a request's likeliest candidates that are remembered, to see how it differs."""

OWN_PRIOR: Final = 6.0
"""Right ones, and expected ones, before any."""


@dataclass
class Rates:
    """How often candidates of each class were right; shared by all requests of an engine."""

    rights: list[float] = field(default_factory=lambda: [LEARNT_FROM * x for x in _beliefs()])
    totals: list[float] = field(default_factory=lambda: [LEARNT_FROM] * NUM_CLASSES)

    def chance(self, at: int) -> float:
        """Return the chance of a candidate of a class."""
        return self.rights[at] / self.totals[at]

    def note(self, at: int, *, is_right: bool) -> None:
        """Take in a verdict."""
        if self.totals[at] > MEMORY:
            self.rights[at] *= 1 - 1 / MEMORY
            self.totals[at] *= 1 - 1 / MEMORY
        self.rights[at] += is_right
        self.totals[at] += 1


class SuffixDrafts:
    """Source of suffix drafters, which share a history in memory."""

    name = "suffix"

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.history = History(max_bytes)
        self.rates = Rates()

    def learn(self, token_ids: Sequence[int]) -> None:
        """Take a text into the history: another file of the workspace, for one."""
        self.history.learn(token_ids)

    def forget(self) -> None:
        """Forget all texts."""
        self.history = History(self.history.max_bytes)

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> SuffixDrafter:
        """Return the drafter of a request; it reads the prompt at the first proposal."""
        return SuffixDrafter(self.history, self.rates)


class Voice(NamedTuple):
    """One place of an earlier text and what followed it."""

    match_len: int
    is_own: bool
    token_ids: list[int]


@dataclass
class Candidate:
    """A token that may come next at some node."""

    token_id: int
    class_at: int
    chance: float
    """That it comes, if its node does."""
    voices: list[Voice]
    followers: list[Candidate] = field(default_factory=list["Candidate"])
    """Likeliest first; none where nobody has looked."""


class SuffixDrafter:
    """The text of one request."""

    def __init__(self, history: History, rates: Rates) -> None:
        self._history = history
        self._rates = rates
        self._text = Text()
        self._candidates: list[Candidate] = []
        """Those of the last proposal, to be judged by what came."""
        self._right = self._expected = OWN_PRIOR

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return the likeliest tree of candidates that follow ``token_ids``."""
        num_known = len(self._text)
        new_ids = token_ids[num_known:]
        if num_known:
            self._judge(new_ids)
        self._text.extend(new_ids)
        self._candidates = []
        if max_tokens <= 0 or not token_ids:
            return NOTHING
        return self._grow(self._voices(max_tokens), max_tokens)

    def close(self) -> None:
        """Leave the text to the history."""
        self._history.learn(self._text.token_ids)

    def _voices(self, num_tokens: int) -> list[Voice]:
        """Return the places of the longest matches, longest first, with what followed them."""
        tail, own, known = self._text.tail, self._text.ids, self._history.ids
        own_places, known_places = self._text.places(tail), self._history.find(tail)
        lens = np.concatenate(
            [match_lens(own, own_places, tail), match_lens(known, known_places, tail)]
        )
        if not len(lens):
            return []
        num_own = len(own_places)
        # Of equally long matches first the own ones, and of these the most recent.
        rank = np.arange(len(lens)) + np.where(np.arange(len(lens)) < num_own, 1000, 0)
        best = np.argsort(-(lens * 10_000 + rank))[:MAX_VOICES]
        is_own = best < num_own
        rows = np.empty((len(best), num_tokens), np.int32)
        rows[is_own] = continuations(own, own_places[best[is_own]], num_tokens)
        rows[~is_own] = continuations(known, known_places[best[~is_own] - num_own], num_tokens)
        return [
            Voice(*each)
            for each in zip(lens[best].tolist(), is_own.tolist(), rows.tolist(), strict=True)
        ]

    def _grow(self, voices: list[Voice], max_tokens: int) -> Draft:
        """Return a draft of the likeliest paths, of those that any voice knows."""
        self._candidates = self._followers(voices, 0)
        token_ids: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        heap = [
            (-each.chance, number, ROOT, 1, each) for number, each in enumerate(self._candidates)
        ]
        heapq.heapify(heap)
        number = len(heap)
        while heap and len(token_ids) < max_tokens:
            negative, _, parent, depth, candidate = heapq.heappop(heap)
            if -negative < LEAST_CHANCE:
                break
            node = len(token_ids)
            token_ids.append(candidate.token_id)
            parents.append(parent)
            chances.append(-negative)
            if depth < max_tokens:
                candidate.followers = self._followers(candidate.voices, depth)
                for each in candidate.followers:
                    number += 1
                    heapq.heappush(heap, (negative * each.chance, number, node, depth + 1, each))
        if not token_ids:
            return NOTHING
        return Draft(tuple(token_ids), tuple(parents), SuffixDrafts.name, chances=tuple(chances))

    def _followers(self, voices: list[Voice], depth: int) -> list[Candidate]:
        """Return what comes at a depth by those voices that were right up to there."""
        groups: dict[int, list[Voice]] = {}
        for voice in voices:
            groups.setdefault(voice.token_ids[depth], []).append(voice)
        groups.pop(GAP, None)
        if not groups:
            return []
        # Voices come longest match first, so the first of a group has its longest.
        serious = (max(group[0].match_len for group in groups.values()) + depth) / 2
        num_serious = {
            token_id: sum(voice.match_len + depth >= serious for voice in group)
            for token_id, group in groups.items()
        }
        total = sum(num_serious.values())
        trust = self._right / self._expected
        found: list[Candidate] = []
        for token_id, group in groups.items():
            stand = _stand(num_serious[token_id], total)
            is_own = any(voice.is_own for voice in group)
            at = _class_of(min(group[0].match_len + depth, MAX_MATCH), Kind(is_own, stand))
            chance = min(self._rates.chance(at) * trust, 0.98)
            found.append(Candidate(token_id, at, chance, group))
        found.sort(key=lambda candidate: -candidate.chance)
        return found

    def _judge(self, token_ids: Sequence[int]) -> None:
        """Learn from what came which candidates were right."""
        candidates = self._candidates
        for token_id in token_ids:
            if not candidates:
                return
            best = candidates[0]
            fade = 1 - 1 / OWN_MEMORY
            self._right = self._right * fade + (best.token_id == token_id)
            self._expected = self._expected * fade + self._rates.chance(best.class_at)
            right = None
            for candidate in candidates:
                is_right = candidate.token_id == token_id
                self._rates.note(candidate.class_at, is_right=is_right)
                if is_right:
                    right = candidate
            candidates = right.followers if right is not None else []


def _stand(num_serious: int, total: int) -> int:
    if num_serious == 0:
        return 4
    if num_serious == total:
        return 0 if total == 1 else 1
    return 2 if 2 * num_serious >= total else 3


def _class_of(match_len: int, kind: Kind) -> int:
    return (kind.is_own * len(STANDS) + kind.stand) * len(BELIEFS) + LEN_CLASS[match_len]


def _beliefs() -> Iterator[float]:
    for _ in range(2):
        for factor in STANDS:
            yield from (factor * belief for belief in BELIEFS)
