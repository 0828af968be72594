"""Drafts by modules that each predict one token further than the one before.

Source:  multi-token prediction, DeepSeek-V3, arXiv 2412.19437, section 2.2; Gloeckle et al. 2024,
    arXiv 2404.19737.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch

from specengine.draft import NOTHING, ROOT, Draft
from specengine.drafters.feature_drafter import FeatureDrafter
from specengine.heads.candidates import Candidates
from specengine.heads.features import FeatureNetwork
from specengine.heads.head_cache import HeadCache
from specengine.heads.recorded import Guess, Nodes, Start, chain

NAME: Final = "mtp"
LEAST_CONFIDENCE: Final = 0.12
"""Product of the probabilities of a draft's tokens, below which it ends."""


class MtpDrafter(FeatureDrafter):
    """The modules on one request."""

    @torch.inference_mode()
    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return a chain with a token of each module, as long as they are sure enough."""
        row = self._reader.read(token_ids) if max_tokens > 0 else None
        if row is None:
            return NOTHING
        if self._recorded is not None:
            found = self._recorded.make(row, len(token_ids) - 2, self._reader.caches)
            return found.best(max_tokens, NAME, LEAST_CONFIDENCE)
        for cache in self._reader.caches:
            cache.make_room(1)
        found = Candidates()
        node, position = ROOT, len(token_ids) - 2
        for module in range(min(self._network.num_modules, max_tokens)):
            if module:
                row = self._step(module, found.token_ids[node], row, position)
            probability, place = self._network.logits(row[None]).softmax(-1)[0].max(-1)
            token_id = int(self._network.head.draft_ids[int(place)])
            node = found.add(token_id, node, float(probability))
            if found.confidences[node] < LEAST_CONFIDENCE:
                break
        return found.best(max_tokens, NAME, LEAST_CONFIDENCE)

    @classmethod
    def guess(cls, network: FeatureNetwork, most_tokens: int) -> Guess:
        """Return a pass of each module."""
        num_modules = min(network.num_modules, most_tokens)
        return Guess(functools.partial(_all_modules, network, num_modules), 1)

    def _step(self, module: int, token_id: int, row: torch.Tensor, position: int) -> torch.Tensor:
        cache = self._reader.caches[module]
        committed = cache.length
        made = self._network.run(
            torch.tensor([token_id]),
            row[None],
            torch.tensor([position]),
            cache.appending([position]),
            module,
        )
        cache.truncate(committed)
        return made[0]


def _all_modules(
    network: FeatureNetwork, num_modules: int, caches: Sequence[HeadCache], start: Start
) -> Nodes:
    own = torch.ones(1, 1, dtype=torch.bool, device=start.row.device)

    def step(module: int, token: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        attend = caches[module].drafting(start.lengths[module : module + 1], own)
        return network.run(token, row, start.position, attend, module)

    return chain(num_modules, start, network.logits, step, network.draft_ids)
