"""Several ways of drafting in order of preference: the first that has an idea proposes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import NOTHING, Draft
from specengine.drafters.base import (
    Drafter,
    DrafterSource,
    SharesCache,
    layers_of,
    observers_of,
    show,
)
from specengine.sampling import GREEDY, Sampling


class CompositeDrafts:
    """Source over other sources; its name joins theirs with ``+``."""

    def __init__(self, sources: Sequence[DrafterSource]) -> None:
        self._sources = tuple(sources)
        self.name = "+".join(source.name for source in sources)

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> CompositeDrafter:
        """Return a drafter over one drafter of each source."""
        with contextlib.ExitStack() as started:
            drafters = [_start(source, prompt_ids, sampling, started) for source in self._sources]
            kind = ObservingComposite if layers_of(drafters) else CompositeDrafter
            return kind(drafters, started.pop_all())


class CompositeDrafter:
    """Asks one drafter after the other."""

    def __init__(self, drafters: Sequence[Drafter], started: contextlib.ExitStack) -> None:
        self._drafters = drafters
        self._started = started

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        """Return the first draft that is not empty; wait for one that is not ready."""
        for drafter in self._drafters:
            draft = drafter.propose(token_ids, max_tokens)
            if draft is None or len(draft):
                return draft
        return NOTHING

    def share(self, cache: KVCache) -> None:
        """Hand the request's cache to those that run on it."""
        for drafter in self._drafters:
            if isinstance(drafter, SharesCache):
                drafter.share(cache)

    def close(self) -> None:
        """Close all of them, also when one of them fails to."""
        self._started.close()


class ObservingComposite(CompositeDrafter):
    """Drafters some of which look at what the target has computed."""

    def __init__(self, drafters: Sequence[Drafter], started: contextlib.ExitStack) -> None:
        super().__init__(drafters, started)
        self._observers = observers_of(drafters)
        self.layers = layers_of(drafters)
        """Those that any of them wants to see."""

    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        """Show each of them its layers."""
        for observer in self._observers:
            show(observer, streams, start)


def _start(
    source: DrafterSource,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    started: contextlib.ExitStack,
) -> Drafter:
    drafter = source.start(prompt_ids, sampling)
    started.callback(drafter.close)
    return drafter
