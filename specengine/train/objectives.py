"""What each kind of head is trained for, on the streams of the target.

All learn the target's own next-token distribution, over the head's vocabulary, at the positions
where they will be asked: a wrong guess of a likely token costs less than one of an unlikely one.

Shapes, here and below:  B rows of T tokens, Vd tokens of the head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F

from specengine.heads.block import Attend, weigh
from specengine.heads.features import FeatureNetwork
from specengine.heads.head import Head
from specengine.heads.medusa import MedusaNetwork
from specengine.heads.pruned import PrunedNetwork
from specengine.models.weights import Product
from specengine.train.heads_self import LastLayers, exit_logits, pass_streams
from specengine.train.streams import Shard

DEPTH_WEIGHT: Final = 0.8
"""Of each depth in the loss, times that of the one before: what is drafted further is used less."""
NUM_ANCHORS: Final = 24
"""Places of a row from which a head guesses several positions at once."""


@dataclass(frozen=True)
class Frozen:
    """What of the target is needed and does not learn."""

    embedding: torch.Tensor
    """[V, hidden]."""
    final_norm: torch.Tensor
    head: torch.Tensor
    """[V, hidden]."""
    passed: LastLayers | None = None
    """The layers that speculative streams pass."""


@dataclass(frozen=True)
class Labels:
    """The target's likeliest next tokens that a head can say, as its own numbers, [B, T, k]."""

    places: torch.Tensor
    shares: torch.Tensor
    """Of the probability; they sum to one where the head can say any of them, or to zero."""

    @classmethod
    def of(cls, shard: Shard, draft_ids: torch.Tensor) -> Labels:
        """Return the labels for a head's vocabulary, which is sorted."""
        places = torch.searchsorted(draft_ids, shard.likely_ids).clamp_max(len(draft_ids) - 1)
        shares = shard.probabilities * (draft_ids[places] == shard.likely_ids)
        return cls(places, shares / shares.sum(-1, keepdim=True).clamp_min(1e-6))

    def losses(self, logits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy of scores [N, Vd] behind some tokens, [N].

        ``at`` are their places in B x T flattened.
        """
        wide = logits.float()
        own = wide.gather(-1, self.places.flatten(0, 1)[at])
        shares = self.shares.flatten(0, 1)[at]
        return ((wide.logsumexp(-1, keepdim=True) - own) * shares).sum(-1)


@dataclass
class Outcome:
    """The loss of a batch, and how often each depth guesses what the target chooses."""

    loss: torch.Tensor
    hits: list[float]
    """Shares, by depth, where all tokens before were the text's own."""


@dataclass(frozen=True)
class Guesses:
    """What a head makes of one depth, and the positions whose next token it is for."""

    rows: torch.Tensor
    """[B, N, …]."""
    places: torch.Tensor
    """[N], of the label's position: the choice behind it is what is guessed."""
    score: Callable[[torch.Tensor], torch.Tensor]
    """From rows [M, …] to scores [M, Vd]: those of padding need none, and they are most of the
    time."""


def outcome(head: Head, frozen: Frozen, shard: Shard) -> Outcome:
    """Return how a head does on a shard, differentiable in its tensors."""
    labels = Labels.of(shard, head.draft_ids)
    total, weights, hits = torch.zeros(()), 0.0, list[float]()
    for depth, guesses in enumerate(_GUESSES[head.kind](head, frozen, shard)):
        mask = shard.mask[:, guesses.places]
        logits = guesses.score(guesses.rows[mask])
        at = torch.arange(shard.mask.numel()).view(shard.mask.shape)[:, guesses.places][mask]
        weight = DEPTH_WEIGHT**depth
        total = total + weight * labels.losses(logits, at).mean()
        weights += weight
        guessed = head.draft_ids[logits.detach().argmax(-1)]
        hits.append(float((guessed == shard.choices.flatten()[at]).float().mean()))
    return Outcome(total / weights, hits)


def plain_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """Return a product that can be differentiated."""
    return lambda rows: F.linear(rows, weight, bias)


def _medusa(head: Head, frozen: Frozen, shard: Shard) -> Iterator[Guesses]:
    """Head k sees position i and the token behind it, and guesses what follows i + 1 + k."""
    network = MedusaNetwork(head, frozen.embedding, plain_product)
    length = shard.token_ids.shape[1]
    streams = {layer: shard.streams[layer][:, :-1].float() for layer in head.layers}
    rows = network.rows(streams, shard.token_ids[:, 1:])
    for depth in range(head.depth):
        places = torch.arange(1 + depth, length)
        score = functools.partial(network.scores, depth)
        yield Guesses(rows[:, : length - 1 - depth, depth], places, score)


def _eagle(head: Head, frozen: Frozen, shard: Shard) -> Iterator[Guesses]:
    """Unroll: from depth 1 on a row's feature is the network's own, as it will be in the engine.

    Source:  training-time test, EAGLE-3, arXiv 2503.01840, section 3.2.
    """
    network = FeatureNetwork(head, frozen.embedding, plain_product)
    features = network.fuse({layer: shard.streams[layer][:, :-1] for layer in head.layers})
    following = shard.token_ids[:, 1:]
    num = following.shape[1]
    positions = torch.arange(num)
    memory: list[tuple[torch.Tensor, torch.Tensor]] = []
    for depth in range(head.depth):
        rows = network.run(following, features, positions, _unrolled(memory, depth))
        places = torch.arange(depth, num)
        yield Guesses(rows[:, depth:], places + 1, network.logits)
        # The row behind continues from what this one has made.
        features = F.pad(rows, (0, 0, 1, 0))[:, :-1]


def _unrolled(memory: list[tuple[torch.Tensor, torch.Tensor]], depth: int) -> Attend:
    """Return the attention of rows at a depth: the text up to the draft's begin, then the draft.

    Row i at depth d sees the first rows up to i - d, and of depth m the row i - (d - m).
    """

    def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        memory.append((keys, values))
        num, groups = queries.shape[-3], keys.shape[-2]
        grouped = queries.reshape(*queries.shape[:-2], groups, -1, queries.shape[-1])
        scale = queries.shape[-1] ** -0.5
        hidden = torch.ones(num, num, dtype=torch.bool).triu(1 - depth)
        first_keys, first_values = memory[0]
        scores = torch.einsum("btgqd,bsgd->bgqts", grouped, first_keys) * scale
        scores = scores.float().masked_fill(hidden, -1e9)
        own = [
            torch.einsum("btgqd,btgd->bgqt", grouped, _moved(memory[m][0], depth - m)) * scale
            for m in range(1, depth + 1)
        ]
        every = torch.cat((scores, *(each.float()[..., None] for each in own)), -1)
        shares = every.softmax(-1).to(values.dtype)
        result = torch.einsum("bgqts,bsgd->btgqd", shares[..., :num], first_values)
        for m in range(1, depth + 1):
            share = shares[..., num + m - 1].permute(0, 3, 1, 2)[..., None]
            result = result + share * _moved(memory[m][1], depth - m)[:, :, :, None]
        return result.flatten(-3)

    return attend


def _moved(rows: torch.Tensor, by: int) -> torch.Tensor:
    """Return rows [B, T, …] so that row i is what row i - by was."""
    return torch.cat((torch.zeros_like(rows[:, :by]), rows[:, : rows.shape[1] - by]), 1)


def _mtp(head: Head, frozen: Frozen, shard: Shard) -> Iterator[Guesses]:
    """Module m at position i joins what module m - 1 made of it with token i + m + 1."""
    network = FeatureNetwork(head, frozen.embedding, plain_product)
    features = network.fuse(shard.streams)
    for module in range(head.depth):
        following = shard.token_ids[:, module + 1 :]
        num = following.shape[1]
        hidden = torch.ones(num, num, dtype=torch.bool).triu(1)
        attend = _masked(hidden)
        rows = network.run(following, features[:, :num], torch.arange(num), attend, module)
        yield Guesses(rows, torch.arange(module + 1, module + 1 + num), network.logits)
        features = rows


def _draft_model(head: Head, frozen: Frozen, shard: Shard) -> Iterator[Guesses]:
    """Each position guesses what follows it, as the target does."""
    network = PrunedNetwork(head, frozen.embedding, plain_product)
    num = shard.token_ids.shape[1]
    attend = _masked(torch.ones(num, num, dtype=torch.bool).triu(1))
    rows = network.run(shard.token_ids, torch.arange(num), [attend] * network.num_layers)
    yield Guesses(rows, torch.arange(num), network.logits)


def _parallel(head: Head, frozen: Frozen, shard: Shard) -> Iterator[Guesses]:
    """Behind some positions masks guess further ones; each sees the text up to its own position."""
    network = FeatureNetwork(head, frozen.embedding, plain_product)
    features = network.fuse({layer: shard.streams[layer][:, :-1] for layer in head.layers})
    batch, num, width = features.shape
    num_masks = head.depth - 1
    anchors = torch.randperm(max(1, num - head.depth))[:NUM_ANCHORS].sort().values
    mask_embedding, mask_features = network.masks()
    embedded = torch.cat(
        (
            frozen.embedding[shard.token_ids[:, 1:]].float(),
            mask_embedding.expand(batch, len(anchors) * num_masks, width),
        ),
        1,
    )
    masks = mask_features.repeat(len(anchors), 1).expand(batch, -1, width)
    behind = (anchors[:, None] + torch.arange(1, head.depth)).flatten()
    positions = torch.cat((torch.arange(num), behind))
    hidden = _anchored(num, anchors, num_masks)
    rows = network.run_embedded(
        embedded, torch.cat((features, masks), 1), positions, _masked(hidden)
    )
    yield Guesses(rows[:, :num], torch.arange(1, num + 1), network.logits)
    masked = rows[:, num:].view(batch, len(anchors), num_masks, -1)
    for depth in range(num_masks):
        yield Guesses(masked[:, :, depth], anchors + depth + 2, network.logits)


def _layer_skip(head: Head, frozen: Frozen, shard: Shard) -> Iterator[Guesses]:
    """Each position guesses what follows it; drafted ones are no different."""
    (layer,) = head.layers
    places = torch.arange(shard.token_ids.shape[1])
    yield Guesses(shard.streams[layer], places, functools.partial(exit_logits, head))


def _streaming(head: Head, frozen: Frozen, shard: Shard) -> Iterator[Guesses]:
    """Behind some positions i streams guess further ones: stream k what follows i + 1 + k."""
    assert frozen.passed is not None
    last = max(1, shard.token_ids.shape[1] - head.depth)
    anchors = torch.randperm(last)[:NUM_ANCHORS].sort().values
    rows, score = pass_streams(head, frozen.passed, shard.streams, anchors)
    for depth in range(head.depth):
        yield Guesses(rows[:, :, depth], anchors + depth + 1, score)


def _anchored(num: int, anchors: torch.Tensor, num_masks: int) -> torch.Tensor:
    """Return which rows are hidden, [num + masks, num + masks]: text, then masks by anchor."""
    total = num + len(anchors) * num_masks
    hidden = torch.ones(total, total, dtype=torch.bool)
    hidden[:num, :num] = torch.ones(num, num, dtype=torch.bool).triu(1)
    within = torch.ones(num_masks, num_masks, dtype=torch.bool).triu(1)
    for at, anchor in enumerate(map(int, anchors)):
        own = slice(num + at * num_masks, num + (at + 1) * num_masks)
        hidden[own, : anchor + 1] = False
        hidden[own, own] = within
    return hidden


def _masked(hidden: torch.Tensor) -> Attend:
    return lambda queries, keys, values: weigh(queries, keys, values, hidden)


Objective = Callable[[Head, Frozen, Shard], Iterator[Guesses]]
_GUESSES: Final[Mapping[str, Objective]] = {
    "medusa": _medusa,
    "eagle": _eagle,
    "mtp": _mtp,
    "parallel": _parallel,
    "layer_skip": _layer_skip,
    "streaming": _streaming,
    "draft_model": _draft_model,
}
TRAINED: Final = tuple(_GUESSES)
"""Kinds that can be trained here."""
