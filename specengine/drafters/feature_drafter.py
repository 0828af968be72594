"""What drafters over a feature network share: rows of one text, kept in step with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from specengine.draft import Draft
from specengine.heads.features import FeatureNetwork
from specengine.heads.head_cache import HeadStore
from specengine.heads.reader import Reader
from specengine.heads.recorded import Guess, RecordedDraft, Recording
from specengine.sampling import GREEDY, Sampling


class FeatureDrafter:
    """A network on one request. Its passes are short: a draft is one call."""

    def __init__(
        self,
        network: FeatureNetwork,
        store: HeadStore,
        prompt_ids: Sequence[int],
        recorded: RecordedDraft | None = None,
    ) -> None:
        self._network, self._recorded = network, recorded
        self._reader = Reader(network, store, prompt_ids)
        self.layers = tuple(sorted(set(network.head.layers)))

    @classmethod
    def guess(cls, network: FeatureNetwork, most_tokens: int) -> Guess | None:
        """Return all passes of the longest draft in fixed shapes, where there are several."""
        return None

    @torch.inference_mode()
    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        """Take the streams of committed tokens."""
        self._reader.observe(streams, start)

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return the draft of the kind."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the rows to the next request."""
        self._reader.close()


class FeatureDrafts:
    """Source that owns the network."""

    def __init__(
        self,
        name: str,
        drafter: type[FeatureDrafter],
        network: FeatureNetwork,
        store: HeadStore,
        recording: Recording | None = None,
    ) -> None:
        """Take how to record a draft where a host would be waited for."""
        self.name = name
        self._drafter, self._network, self._store = drafter, network, store
        self._recorded: RecordedDraft | None = None
        if recording is None:
            return
        guess = drafter.guess(network, recording.most_tokens)
        if guess is not None:
            self._recorded = RecordedDraft(guess, store, network.norm, recording.recorder)

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> FeatureDrafter:
        """Return a drafter with the rows that an earlier text has left."""
        return self._drafter(self._network, self._store, prompt_ids, self._recorded)
