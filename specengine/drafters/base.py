"""What every way of drafting has in common.

A ``DrafterSource`` lives as long as the engine and owns what requests share (a draft model, an
index). A ``Drafter`` lives for one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import Draft
from specengine.sampling import GREEDY, Sampling


class Drafter(Protocol):
    """Guesses how the text of one request goes on. A wrong guess costs time, never text."""

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        """Return a draft that continues ``token_ids``, of at most ``max_tokens``.

        ``token_ids`` are prompt and committed tokens. They only grow from call to call. A drafter
        makes at most one forward pass a call, so that a cancel is seen after it, or a whole draft
        where each pass would wait for the host; None says that the draft is not ready, and asks to
        be called again with the same arguments.
        """
        ...

    def close(self) -> None:
        """Give back what the request held; called once, also after a cancel."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A drafter that looks at what the target has computed of the text."""

    layers: tuple[int, ...]
    """How many layers the streams have passed that it wants to see, ascending; see ``Tap``."""

    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        """See the residual streams of committed tokens, from position ``start`` on.

        Called once after each pass of the target, in order. What a stored prefix has saved from
        being computed is not seen. ``streams`` are [T, hidden], by how many layers they passed.
        """
        ...


@runtime_checkable
class SharesCache(Protocol):
    """A drafter that runs layers of the target over what the request has stored."""

    def share(self, cache: KVCache) -> None:
        """Take the request's cache, for as long as the request lasts.

        Called once, before the first ``propose``. A drafter may write behind its rows, where the
        next pass of the target writes too; rows and length stay as they are.
        """
        ...


@runtime_checkable
class KnowsOthers(Protocol):
    """A drafter that drafts less where others pay for its rows."""

    def among(self, num_requests: int) -> None:
        """Take in how many requests share the coming pass; called before each ``propose``."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A drafter that learns from what its drafts come to."""

    def verified(self, draft: Draft, num_accepted: int, ms: float | None) -> None:
        """See how much of the last proposal was accepted, and how long that took.

        Called once for each proposal that was verified, ``draft`` being what of it was. ``ms`` is
        None where the pass read a part of the prompt, too, or was shared with other requests.
        """
        ...


class DrafterSource(Protocol):
    """Starts drafters."""

    name: str
    """As in ``--drafter`` and in the trace."""

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Drafter:
        """Return the drafter of a new request, whose tokens are chosen as ``sampling`` says."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A source that drafts from what it has seen."""

    def learn(self, token_ids: Sequence[int]) -> None:
        """Take in a text that nobody asks to be continued, such as another file."""
        ...

    def forget(self) -> None:
        """Forget all texts."""
        ...


def observers_of(drafters: Sequence[Drafter]) -> list[Observer]:
    """Return those that look at the target's residual streams."""
    return [drafter for drafter in drafters if isinstance(drafter, Observer)]


def layers_of(drafters: Sequence[Drafter]) -> tuple[int, ...]:
    """Return the layers whose streams any of several drafters wants to see, ascending."""
    wanted = [observer.layers for observer in observers_of(drafters)]
    return tuple(sorted({layer for layers in wanted for layer in layers}))


def show(observer: Observer, streams: Mapping[int, torch.Tensor], start: int) -> None:
    """Let a drafter see those streams that it wants to see."""
    observer.observe({layer: streams[layer] for layer in observer.layers}, start)
