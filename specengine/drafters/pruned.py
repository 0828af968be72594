"""Drafts by a draft model that was cut out of the target, token by token.

Source:  Leviathan et al. 2023, arXiv 2211.17192; see ``heads/pruned.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch

from specengine.draft import NOTHING, ROOT, Draft
from specengine.heads.candidates import Candidates
from specengine.heads.head_cache import HeadCache, HeadStore
from specengine.heads.pruned import PrunedNetwork
from specengine.heads.recorded import Guess, Nodes, RecordedDraft, Recording, Start, chain
from specengine.sampling import GREEDY, Sampling

MOST_ROWS: Final = 256
"""Tokens that are read in one go; of a longer prompt the last ones."""
LEAST_CONFIDENCE: Final = 0.12
"""Product of the probabilities of a draft's tokens, below which it ends."""


class PrunedDrafts:
    """Source that owns the network."""

    name = "draft_model"

    def __init__(
        self, network: PrunedNetwork, store: HeadStore, recording: Recording | None = None
    ) -> None:
        """Take how to record a draft where a host would be waited for."""
        self._network, self._store = network, store
        self._recorded: RecordedDraft | None = None
        if recording is not None:
            num_tokens = recording.most_tokens
            guess = Guess(functools.partial(_all_tokens, network, num_tokens), num_tokens)
            self._recorded = RecordedDraft(guess, store, network.norm, recording.recorder)

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> PrunedDrafter:
        """Return a drafter with the rows that an earlier text has left."""
        return PrunedDrafter(self._network, self._store, prompt_ids, self._recorded)


class PrunedDrafter:
    """The draft model on one request. Its passes are short: a draft is one call."""

    def __init__(
        self,
        network: PrunedNetwork,
        store: HeadStore,
        prompt_ids: Sequence[int],
        recorded: RecordedDraft | None = None,
    ) -> None:
        self._network, self._store, self._recorded = network, store, recorded
        self._caches = store.lease(prompt_ids)
        self._read_ids = list(prompt_ids)

    @torch.inference_mode()
    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return a chain, as long as it is sure enough of it."""
        if max_tokens <= 0:
            return NOTHING
        self._read_ids = list(token_ids)
        row = self._read(token_ids)
        if self._recorded is not None:
            found = self._recorded.make(row, len(token_ids), self._caches)
            return found.best(max_tokens, PrunedDrafts.name, LEAST_CONFIDENCE)
        for cache in self._caches:
            cache.make_room(max_tokens)
        committed = [cache.length for cache in self._caches]
        found, node = Candidates(), ROOT
        for at in range(max_tokens):
            probability, place = self._network.logits(row[None]).softmax(-1)[0].max(-1)
            token_id = int(self._network.head.draft_ids[int(place)])
            node = found.add(token_id, node, float(probability))
            if found.confidences[node] < LEAST_CONFIDENCE or at + 1 == max_tokens:
                break
            row = self._run([token_id], [len(token_ids) + at])
        for cache, length in zip(self._caches, committed, strict=True):
            cache.truncate(length)
        return found.best(max_tokens, PrunedDrafts.name, LEAST_CONFIDENCE)

    def close(self) -> None:
        """Leave the rows to the next request."""
        self._store.release(self._caches, self._read_ids)

    def _read(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Read what is new of the text; return the last token's row, [hidden]."""
        # The last token is read again at least: only a pass gives its row.
        known = self._caches[0].positions[-1] + 1 if self._caches[0].length else 0
        start = max(min(known, len(token_ids) - 1), len(token_ids) - MOST_ROWS)
        for cache in self._caches:
            cache.truncate(sum(position < start for position in cache.positions))
        return self._run(list(token_ids[start:]), list(range(start, len(token_ids))))

    def _run(self, token_ids: list[int], positions: list[int]) -> torch.Tensor:
        for cache in self._caches:
            cache.make_room(len(positions))
        attends = [cache.appending(positions) for cache in self._caches]
        rows = self._network.run(torch.tensor(token_ids), torch.tensor(positions), attends)
        return rows[-1]


def _all_tokens(
    network: PrunedNetwork, num_tokens: int, caches: Sequence[HeadCache], start: Start
) -> Nodes:
    def step(at: int, token: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        sees = torch.ones(1, at, dtype=torch.bool, device=row.device)
        attends = [
            cache.drafting(start.lengths[layer : layer + 1], sees)
            for layer, cache in enumerate(caches)
        ]
        return network.run(token, start.position + (at - 1), attends)

    return chain(num_tokens, start, network.logits, step, network.draft_ids)
