"""Drafts by speculative streams: rows through the target's last layers that guess what is next.

Behind the last position that the target has computed stand a few streams. They begin in the middle
of the target, from what that position has there and a learnt embedding each; they see all stored
keys and the streams before them, pass the last layers, whose weights are a little changed for them,
and each guesses the token behind its own position.

In the paper the streams ride in the pass that verifies, one set of them behind every node of the
tree, and the main rows are those of a model that was tuned together with the streams. Here they
follow that pass, in a short one of their own, behind the last accepted token alone; the main rows
never meet the changed weights. So the text stays the untuned target's, bit for bit, and a row of
the target costs what it did; the price is that the last layers are read twice a step.

Source:  Bhendawade et al. 2024, arXiv 2402.11131, sections 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import NOTHING, Draft
from specengine.heads.candidates import from_positions
from specengine.heads.head import Head
from specengine.heads.streaming import change_of, first_of, stream_embeddings
from specengine.models.excerpts import Excerpt, last_layers
from specengine.models.load import TensorReader
from specengine.models.target import Rows, Target
from specengine.sampling import GREEDY, Sampling

BREADTH: Final = 3
LEAST_CONFIDENCE: Final = 0.1


class StreamingDrafts:
    """Source that owns the embeddings and the changed layers."""

    name = "streaming"

    def __init__(self, head: Head, target: Target, reader: TensorReader) -> None:
        """Take a head that fits the target, and the weights that the target was made of.

        Raises:  LoadError for a target on a GPU, and where a tensor is missing or misshapen.
        """
        self._first = first_of(head, target.architecture.num_layers)
        hidden = head.sizes.hidden_size
        self._layers = last_layers(
            target,
            self._first,
            reader,
            change_of(head),
            head.tensor("norm.weight", hidden),
            head.tensor("lm_head.weight", len(head.draft_ids), hidden),
        )
        self._embeddings = stream_embeddings(head)
        self._draft_ids = head.ids()

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> StreamingDrafter:
        """Return a drafter, which waits for the request's cache and the first stream."""
        return StreamingDrafter(self._layers, self._embeddings, self._draft_ids, self._first)


class StreamingDrafter:
    """The streams on one request."""

    def __init__(
        self, layers: Excerpt, embeddings: torch.Tensor, draft_ids: list[int], first: int
    ) -> None:
        self._layers, self._embeddings, self._draft_ids = layers, embeddings, draft_ids
        self.layers = (first,)
        self._shared: KVCache | None = None
        self._last = torch.empty(0)
        """The stream [hidden] of the last computed position, where the others begin."""
        self._position = -1

    def share(self, cache: KVCache) -> None:
        """Run on this cache."""
        self._shared = cache

    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        """Keep the last committed token's stream."""
        (rows,) = (streams[layer] for layer in self.layers)
        self._last, self._position = rows[-1], start + len(rows) - 1

    @torch.inference_mode()
    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return the best tree of what the streams guess; all are rows of one pass."""
        shared = self._shared
        # The next token is chosen, but not computed: streams stand behind the one before it.
        if shared is None or self._position != len(token_ids) - 2:
            return NOTHING
        num_streams = min(len(self._embeddings), max_tokens, shared.capacity - shared.length)
        if num_streams <= 0:
            return NOTHING
        logits = self._run(shared, self._last + self._embeddings[:num_streams])
        return from_positions(
            logits.softmax(-1),
            self._draft_ids,
            max_tokens,
            StreamingDrafts.name,
            LEAST_CONFIDENCE,
            BREADTH,
        )

    def close(self) -> None:
        """Let go of the cache."""
        self._shared = None

    def _run(self, shared: KVCache, streams: torch.Tensor) -> torch.Tensor:
        """Return the scores [streams, Vd], and leave nothing in the cache."""
        num_streams = len(streams)
        view = shared.layers(self.layers[0], self.layers[0] + self._layers.architecture.num_layers)
        rows = Rows([0] * num_streams, view, num_streams, inputs=streams)
        try:
            (logits,) = self._layers.forward_batch([rows])
        finally:
            # Keys of changed weights may be anything, and not all of them are written over.
            view.truncate(shared.length)
            view.wipe(num_streams)
        return logits
