"""Drafts by looking back: what followed when a text ended like this before?

Two texts are searched for the end of the request's: the request's own, prompt and output, and the
engine's history. What followed there makes a tree of candidates. The chance of each is learnt from
how often such a candidate was right, by the length of its match and by how many agree; nothing
need be drafted for that, as each committed token is a verdict on all candidates.

Source: Saxena 2023 (prompt lookup decoding); Oliaro et al. 2024, arXiv 2411.04975.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from specengine.draft import NOTHING, ROOT, Draft
from specengine.drafters.history import MAX_BYTES, History
from specengine.drafters.texts import GAP, MAX_MATCH, Text, continuations, match_lens
from specengine.sampling import GREEDY, Sampling

LEAST_CHANCE: Final = 0.05
"""Of a token and all before it; what is less likely is not worth a look."""

MAX_VOICES: Final = 12
"""Places, of the longest matches, whose continuations make the tree."""

LEN_CLASS: Final = (0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7)
"""Matches of these lengths count as equally good."""

MEMORY: Final = 400.0
"""Verdicts on candidates of one class that are remembered; older ones fade."""

LEARNT_FROM: Final = 12.0
"""Verdicts that weigh as much as what is believed before any."""

BELIEFS: Final = (
    (0.25, 0.5, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94),  # nobody else proposes anything
    (0.45, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95, 0.98),  # several agree, and nobody disagrees
    (0.18, 0.28, 0.28, 0.4, 0.4, 0.42, 0.45, 0.6),  # most agree
    (0.1, 0.2, 0.2, 0.2, 0.15, 0.2, 0.2, 0.4),  # few agree
    (0.02, 0.05, 0.04, 0.06, 0.04, 0.08, 0.1, 0.12),  # a much longer match says otherwise
)
"""Chances by how a candidate stands beside others, and by length class, before anything is known.
Measured on what the default model writes; see ``Rates`` for what comes of them."""

NUM_LEN_CLASSES: Final = len(BELIEFS[0])

NUM_CLASSES: Final = 2 * len(BELIEFS) * NUM_LEN_CLASSES

OWN_MEMORY: Final = 40.0
"""Verdicts on a request's likeliest candidates that are remembered, to see how it differs."""

OWN_PRIOR: Final = 6.0
"""Right ones, and expected ones, before any."""


@dataclass
class Rates:
    """How often candidates of each class were right; shared by all requests of an engine."""

    rights: list[float] = field(
        default_factory=lambda: [LEARNT_FROM * belief for row in 2 * BELIEFS for belief in row]
    )
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
        self.history: Final = History(max_bytes)
        self.rates = Rates()

    def learn(self, token_ids: Sequence[int]) -> None:
        """Take a text into the history: another file of the workspace, for one."""
        self.history.learn(token_ids)

    def forget(self) -> None:
        """Forget all texts."""
        self.history.forget()

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> SuffixDrafter:
        """Return the drafter of a request; it reads the prompt at the first proposal."""
        return SuffixDrafter(self.history, self.rates)


class Voice(NamedTuple):
    """One place of an earlier text and what followed it."""

    match_len: int
    is_own: int
    token_ids: list[int]


@dataclass
class Candidate:
    """A token that may come next at some node."""

    token_id: int
    class_at: int
    chance: float
    """That it comes, if its node does."""
    depth: int
    """How many tokens there are up to it."""
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
        tail, own, history = self._text.tail, self._text.ids, self._history
        own_places, places = self._text.places(tail), history.find(tail)
        own_lens, lens = match_lens(own, own_places, tail), match_lens(history.ids, places, tail)
        # Of equally long matches first the own ones, and of these the most recent.
        voices = [(match_len, 1, number) for number, match_len in enumerate(own_lens.tolist())]
        voices += [(match_len, 0, number) for number, match_len in enumerate(lens.tolist())]
        voices.sort(reverse=True)
        del voices[MAX_VOICES:]
        own_at = [number for _, is_own, number in voices if is_own]
        at = [number for _, is_own, number in voices if not is_own]
        own_rows = iter(continuations(own, own_places[own_at], num_tokens, len(own)).tolist())
        rows = iter(continuations(history.ids, places[at], num_tokens, history.end).tolist())
        return [
            Voice(match_len, is_own, next(own_rows if is_own else rows))
            for match_len, is_own, _ in voices
        ]

    def _grow(self, voices: list[Voice], max_tokens: int) -> Draft:
        """Return a draft of the likeliest paths, of those that any voice knows."""
        self._candidates = self._followers(voices, 0)
        token_ids: list[int] = []
        parents: list[int] = []
        chances: list[float] = []
        heap = [(-each.chance, number, ROOT, each) for number, each in enumerate(self._candidates)]
        heapq.heapify(heap)
        number = len(heap)
        while heap and len(token_ids) < max_tokens:
            negative, _, parent, candidate = heapq.heappop(heap)
            if -negative < LEAST_CHANCE:
                break
            node = len(token_ids)
            token_ids.append(candidate.token_id)
            parents.append(parent)
            chances.append(-negative)
            if candidate.depth < max_tokens:
                candidate.followers = self._followers(candidate.voices, candidate.depth)
                for each in candidate.followers:
                    number += 1
                    heapq.heappush(heap, (negative * each.chance, number, node, each))
        if not token_ids:
            return NOTHING
        return Draft(tuple(token_ids), tuple(parents), SuffixDrafts.name, chances=tuple(chances))

    def _followers(self, voices: list[Voice], depth: int) -> list[Candidate]:
        """Return what comes at a depth by those voices that were right up to there."""
        groups: dict[int, list[Voice]] = {}
        for voice in voices:
            token_id = voice.token_ids[depth]
            if token_id in groups:
                groups[token_id].append(voice)
            elif token_id != GAP:
                groups[token_id] = [voice]
        if not groups:
            return []
        # Voices come longest match first.
        serious = (voices[0].match_len + depth) / 2 - depth
        counts = {
            token_id: sum([voice.match_len >= serious for voice in group])
            for token_id, group in groups.items()
        }
        total = sum(counts.values())
        trust = self._right / self._expected
        found: list[Candidate] = []
        for token_id, group in groups.items():
            match_len = min(group[0].match_len + depth, MAX_MATCH)
            is_own = any(voice.is_own for voice in group)
            at = _class_of(match_len, is_own, _stand(counts[token_id], total))
            chance = min(self._rates.chance(at) * trust, 0.98)
            found.append(Candidate(token_id, at, chance, depth + 1, group))
        if len(found) > 1:
            found.sort(key=_chance_of, reverse=True)
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


def _class_of(match_len: int, is_own: bool, stand: int) -> int:
    """Return the class of a candidate, by its longest match and who proposes it.

    Those that the request's own text proposes are told apart from those of the history alone.
    """
    return (is_own * len(BELIEFS) + stand) * NUM_LEN_CLASSES + LEN_CLASS[match_len]


def _chance_of(candidate: Candidate) -> float:
    return candidate.chance
