"""Drafts by the target's own first layers, which an exit reads.

They run over the request's own cache: what is stored there serves the draft too, so that nothing
must be caught up with. Drafted rows stand behind the committed ones, where the pass that verifies
writes over them with the same numbers.

Source:  LayerSkip, Elhoushi et al. 2024, arXiv 2404.16710, section 4.3. There the verifying pass
    goes on from the drafted rows; here it begins anew, as it does for every other drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import NOTHING, ROOT, Draft
from specengine.heads.candidates import Candidates, to_lists
from specengine.heads.head import Head
from specengine.heads.layer_skip import exit_norm, exit_output
from specengine.models.excerpts import Excerpt, first_layers
from specengine.models.target import Target
from specengine.sampling import GREEDY, Sampling

BREADTH: Final = 2
"""Guesses for each position: the first is gone on from, the others cost a row."""
LEAST_CONFIDENCE: Final = 0.12
"""Of a node that is worth a row."""
LEAST_TO_GO_ON: Final = 0.3
"""Of a node that is worth a pass of the first layers."""


class LayerSkipDrafts:
    """Source that owns the exit; the layers are the target's."""

    name = "layer_skip"

    def __init__(self, head: Head, target: Target) -> None:
        """Take a head that fits the target.

        Raises:  LoadError for a target on a GPU, and where a tensor is missing.
        """
        (num_layers,) = head.layers
        self._layers = first_layers(target, num_layers, exit_norm(head), exit_output(head))
        self._draft_ids, self._depth = head.ids(), head.depth

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> LayerSkipDrafter:
        """Return a drafter, which waits for the request's cache."""
        return LayerSkipDrafter(self._layers, self._draft_ids, self._depth)


class LayerSkipDrafter:
    """The first layers on one request."""

    def __init__(self, layers: Excerpt, draft_ids: list[int], depth: int) -> None:
        self._layers, self._draft_ids, self._depth = layers, draft_ids, depth
        self._shared: KVCache | None = None
        self._making: _Making | None = None
        """The draft that is being made."""

    def share(self, cache: KVCache) -> None:
        """Run on this cache."""
        self._shared = cache

    @torch.inference_mode()
    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        """Return what the first layers think, when they are no longer sure or have said enough.

        A pass adds one token to the draft, and beside it the next likeliest one.
        """
        shared = self._shared
        if shared is None:
            return NOTHING
        max_tokens = min(max_tokens, shared.capacity - len(token_ids))
        if max_tokens <= 0:
            return NOTHING
        making = self._making
        if making is None or making.num_tokens != len(token_ids):
            making = _Making(shared.layers(0, self._layers.architecture.num_layers), token_ids)
        self._making = making
        self._step(making)
        if making.depth < min(self._depth, max_tokens) and making.is_sure:
            return None
        self._making = None
        return making.found.best(max_tokens, LayerSkipDrafts.name, LEAST_CONFIDENCE)

    def close(self) -> None:
        """Let go of the cache."""
        self._shared = self._making = None

    def _step(self, making: _Making) -> None:
        logits = self._layers.forward(making.pending, making.view, num_logits=1)
        best = logits[0].softmax(-1).topk(min(BREADTH, len(self._draft_ids)))
        (values,), (places,) = to_lists(best.values[None]), to_lists(best.indices[None])
        guesses = [self._draft_ids[int(place)] for place in places]
        making.add(guesses, values)


class _Making:
    """A draft as far as it is made."""

    def __init__(self, view: KVCache, token_ids: Sequence[int]) -> None:
        self.view = view
        """Rows of the first layers, drafted ones among them; its length is not the request's."""
        self.num_tokens = len(token_ids)
        """Of the text that the draft continues."""
        self.pending = list(token_ids[view.length :])
        """What the first layers must read next."""
        self.found = Candidates()
        self.depth = 0
        self._last = ROOT

    @property
    def is_sure(self) -> bool:
        """Whether it is worth another pass."""
        return self.found.confidences[self._last] >= LEAST_TO_GO_ON

    def add(self, guesses: Sequence[int], probabilities: Sequence[float]) -> None:
        """Take guesses for the next token, the likeliest first."""
        nodes = [
            self.found.add(token_id, self._last, probability)
            for token_id, probability in zip(guesses, probabilities, strict=True)
        ]
        self._last, self.depth = nodes[0], self.depth + 1
        self.pending = [guesses[0]]
