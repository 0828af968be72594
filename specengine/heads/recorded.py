"""Drafts that a device makes by itself.

Where a host launches each kernel, a draft of small passes costs what the launches cost, and a wait
for each token that the host looks at. Here all passes of a draft have fixed shapes and what they
choose stays on the device. They are recorded once for each text's caches, and the host waits once,
for all nodes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specengine.draft import ROOT
from specengine.heads.candidates import Candidates, to_lists
from specengine.heads.head_cache import HeadCache, HeadStore
from specengine.models.graphs import Recorder, Replay
from specengine.models.weights import Product


@dataclass(frozen=True)
class Start:
    """Where a draft begins: tensors of the device that stay in place."""

    row: torch.Tensor
    """[hidden], float32: what guesses the first token."""
    position: torch.Tensor
    """[1], of the first row that is computed."""
    lengths: torch.Tensor
    """[caches]: rows that each holds."""


@dataclass(frozen=True)
class Nodes:
    """What was guessed, each node behind its parent; ``ROOT`` is the parent of the first ones.

    Shapes:  all [N]; the probability is that of the token behind its parent.
    """

    token_ids: torch.Tensor
    parents: torch.Tensor
    probabilities: torch.Tensor

    @classmethod
    def joined(cls, parts: Sequence[Nodes]) -> Nodes:
        """Return the nodes of several levels."""
        return cls(
            torch.cat([part.token_ids for part in parts]),
            torch.cat([part.parents for part in parts]),
            torch.cat([part.probabilities for part in parts]),
        )

    def as_one(self) -> torch.Tensor:
        """Return all as one tensor, [3, N], float64, which holds any token exactly."""
        return torch.stack(
            (self.token_ids.double(), self.parents.double(), self.probabilities.double())
        )


@dataclass(frozen=True)
class Recording:
    """How drafts are recorded."""

    recorder: Recorder
    most_tokens: int
    """Of a draft."""


@dataclass(frozen=True)
class Guess:
    """All passes of a draft, without a look at what comes."""

    make: Callable[[Sequence[HeadCache], Start], Nodes]
    num_rows: int
    """That it writes behind those of a cache."""


Step = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""From the number of a pass, a token [1] and the row that guessed it, [1, hidden], to the row that
guesses the next one, [1, hidden]."""


class RecordedDraft:
    """The drafts of one head; calls must not overlap."""

    def __init__(
        self, guess: Guess, store: HeadStore, like: torch.Tensor, recorder: Recorder
    ) -> None:
        """Record the drafts of all texts that a store keeps, before anybody waits for one.

        ``like`` is a tensor [..., hidden] on the device.
        """
        texts = store.fill()
        self._guess, self._record = guess, recorder
        self._start = Start(
            torch.zeros(like.shape[-1], device=like.device),
            torch.zeros(1, dtype=torch.long, device=like.device),
            torch.zeros(len(texts[0]), dtype=torch.long, device=like.device),
        )
        self._recorded: weakref.WeakKeyDictionary[HeadCache, tuple[Replay, list[torch.Tensor]]]
        self._recorded = weakref.WeakKeyDictionary()
        with torch.inference_mode():
            for caches in texts:
                self.prepare(caches)

    def make(
        self, row: torch.Tensor, position: int, caches: Sequence[HeadCache], go_on: float = 0.0
    ) -> Candidates:
        """Return what is guessed behind a row, [hidden], in the caches of one text.

        Behind a node below a confidence of ``go_on`` nothing is kept. The draft's rows are
        forgotten.
        """
        self._start.row.copy_(row)
        self._start.position.fill_(position)
        for at, cache in enumerate(caches):
            cache.make_room(self._guess.num_rows)
            self._start.lengths[at].fill_(cache.length)  # A kernel: to copy would be to wait.
        self.prepare(caches)
        replay, made = self._recorded[caches[0]]
        replay()
        return _kept(to_lists(made[0].T), go_on)

    def prepare(self, caches: Sequence[HeadCache]) -> None:
        """Record the drafts of a text's caches now, which takes a while, if that is still to do."""
        if caches[0] not in self._recorded:
            self._recorded[caches[0]] = self._recording(caches)

    def _recording(self, caches: Sequence[HeadCache]) -> tuple[Replay, list[torch.Tensor]]:
        # The caches own what is recorded, so that must not own the caches.
        own = [weakref.proxy(cache) for cache in caches]
        made: list[torch.Tensor] = []

        def once() -> None:
            nodes = self._guess.make(own, self._start).as_one()
            if not made:
                made.append(torch.empty_like(nodes))
            made[0].copy_(nodes)

        return self._record(once), made


def _kept(nodes: Sequence[Sequence[float]], go_on: float) -> Candidates:
    found = Candidates()
    places = {ROOT: ROOT}
    for number, (token_id, parent, probability) in enumerate(nodes):
        place = places.get(int(parent))
        if place is None or (place != ROOT and found.confidences[place] < go_on):
            continue
        places[number] = found.add(int(token_id), place, probability)
    return found


def guesses(logits: torch.Tensor, draft_ids: torch.Tensor, num: int) -> tuple[torch.Tensor, ...]:
    """Return the likeliest tokens of some rows and their probabilities, [T, num] each."""
    best = logits.softmax(-1).topk(min(num, logits.shape[-1]))
    return draft_ids[best.indices], best.values


def chain(num: int, start: Start, logits: Product, step: Step, draft_ids: torch.Tensor) -> Nodes:
    """Return the likeliest token of each of ``num`` rows, which each come from the one before.

    ``logits`` gives the scores of rows, and ``draft_ids`` are on the device.
    """
    row, tokens, probabilities = start.row[None], list[torch.Tensor](), list[torch.Tensor]()
    for at in range(num):
        if at:
            row = step(at, tokens[-1], row)
        token, probability = guesses(logits(row), draft_ids, 1)
        tokens.append(token[0])
        probabilities.append(probability[0])
    parents = torch.arange(ROOT, ROOT + num, device=row.device)
    return Nodes(torch.cat(tokens), parents, torch.cat(probabilities))
