"""Drafts by the target's first layers: they cost time, never text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import Draft
from specengine.drafters.base import SharesCache
from specengine.drafters.layer_skip import LayerSkipDrafts
from specengine.drafters.none import NoDrafts
from specengine.errors import LoadError
from specengine.heads.head import Head
from specengine.models.excerpts import first_layers
from specengine.models.graphs import GraphDecoder, run_again
from specengine.models.target import Rows, Tap
from specengine.train.heads_self import exit_logits
from tests.specengine.drafters.tiny_sessions import (
    AnyDecoder,
    Noting,
    assert_stored_as_if_nothing_was_drafted,
    models_of,
    run,
    session_of,
)
from tests.specengine.heads.tiny_self import DEPTH, tiny_exit
from tests.specengine.tiny import (
    tiny_architecture,
    tiny_decoder,
    tiny_integer_decoder,
    tiny_tensors,
)

TINY = tiny_architecture()
IDS = [5, 40, 9, 77, 120, 33, 8, 61]


@pytest.fixture(params=["torch", "native"])
def decoder(request: pytest.FixtureRequest) -> AnyDecoder:
    return tiny_decoder() if request.param == "torch" else tiny_integer_decoder()


def source_of(decoder: AnyDecoder, head: Head | None = None) -> Noting:
    return Noting(LayerSkipDrafts(head or tiny_exit(TINY), decoder))


def drafted(source: Noting, cache: KVCache, token_ids: list[int], max_tokens: int = 7) -> Draft:
    """Call a new drafter on a cache until there is a draft."""
    drafter = source.start(token_ids)
    assert isinstance(drafter, SharesCache)
    drafter.share(cache)
    while (draft := drafter.propose(token_ids, max_tokens)) is None:
        continue
    return draft


def cache_with(decoder: AnyDecoder, token_ids: list[int]) -> KVCache:
    cache = KVCache(decoder.kv_shape, 512)
    decoder.forward(token_ids, cache, num_logits=0)
    return cache


def sure_exit(num_layers: int) -> Head:
    """Return an exit that says what the target's output layer says, and is sure of it."""
    hidden, weights = TINY.hidden_size, tiny_tensors(TINY)
    tensors = {
        "norm.weight": weights["model.norm.weight"],
        "adapter.weight": 40 * torch.eye(hidden),
        "lm_head.weight": weights["lm_head.weight"],
    }
    ids = torch.arange(TINY.vocab_size)
    return replace(tiny_exit(TINY, num_layers), tensors=tensors, draft_ids=ids)


@pytest.mark.parametrize("num_passes", [1, 2])
def test_a_cancel_in_the_middle_of_a_draft_leaves_nothing(
    decoder: AnyDecoder, num_passes: int
) -> None:
    models, source = models_of(decoder), source_of(decoder, sure_exit(1))
    session = session_of(models, source)
    while session.counts.steps < 3:
        session.advance()
    for _ in range(num_passes):
        assert session.prepare() is None, "the draft is not ready"
    session.close()
    assert_stored_as_if_nothing_was_drafted(models, session)
    plain = run(session_of(models_of(decoder), NoDrafts()))
    assert run(session_of(models, source)) == plain


def test_a_pass_drafts_one_token(decoder: AnyDecoder) -> None:
    source = source_of(decoder, sure_exit(1))
    drafted(source, cache_with(decoder, IDS[:-1]), IDS)
    assert source.num_calls == DEPTH
    drafted(source, cache_with(decoder, IDS[:-1]), IDS, max_tokens=2)
    assert source.num_calls == DEPTH + 2


def test_an_exit_behind_all_layers_is_always_right(decoder: AnyDecoder) -> None:
    source = source_of(decoder, sure_exit(TINY.num_layers))
    session = session_of(models_of(decoder), source)
    run(session)
    assert session.counts.accepted > 20
    for told in session.counts.by_drafter.values():
        assert told.accepted >= told.drafts * DEPTH / 2
    assert session.counts.steps <= 32 / DEPTH + 2


def test_a_draft_is_what_the_exit_says_of_the_text_alone(decoder: AnyDecoder) -> None:
    """It reads rows that another request has stored, and its own drafted ones."""
    head = tiny_exit(TINY)
    draft = drafted(source_of(decoder, head), cache_with(decoder, IDS[:-3]), IDS)
    assert len(draft) > 1
    for node, token_id in enumerate(draft.token_ids):
        above = [draft.token_ids[each] for each in draft.path(node)[:-1]]
        tap = Tap(head.layers)
        rows = Rows([*IDS, *above], KVCache(decoder.kv_shape, 512), 0, tap=tap)
        decoder.forward_batch([rows])
        best = exit_logits(head, tap.streams[0, -1]).topk(2).indices
        assert token_id in head.draft_ids[best]


def test_without_room_nothing_is_drafted() -> None:
    decoder = tiny_decoder()
    cache = cache_with(decoder, IDS[:-1])
    assert len(drafted(source_of(decoder), cache, IDS, max_tokens=0)) == 0
    full = KVCache(decoder.kv_shape, 256)
    full.advance(255)
    assert len(drafted(source_of(decoder), full, [1] * 256)) == 0


def test_without_a_cache_nothing_is_drafted() -> None:
    draft = source_of(tiny_decoder()).start(IDS).propose(IDS, 7)
    assert draft is not None
    assert len(draft) == 0


def test_an_exit_that_is_not_sure_costs_one_pass_and_drafts_nothing() -> None:
    decoder, head = tiny_decoder(), tiny_exit(TINY)
    tensors = {**head.tensors, "lm_head.weight": torch.zeros(len(head.draft_ids), TINY.hidden_size)}
    source = source_of(decoder, replace(head, tensors=tensors))
    assert len(drafted(source, cache_with(decoder, IDS[:-1]), IDS)) == 0
    assert source.num_calls == 1


def test_weights_of_the_layers_are_the_target_s() -> None:
    decoder = tiny_decoder()
    before = decoder.weights
    short = first_layers(decoder, 1, torch.ones(64), torch.zeros(3, 64))
    assert short.weights.layers[0] is before.layers[0]
    assert short.weights.embedding is before.embedding


def test_a_head_without_its_adapter_is_refused() -> None:
    head = tiny_exit(TINY)
    tensors = {name: each for name, each in head.tensors.items() if name != "adapter.weight"}
    with pytest.raises(LoadError, match=r"lacks adapter\.weight"):
        LayerSkipDrafts(replace(head, tensors=tensors), tiny_decoder())


def test_a_target_on_a_gpu_is_refused() -> None:
    like = tiny_decoder()
    on_gpu = GraphDecoder(TINY, like.weights, "float32", step_rows=8, recorder=run_again)
    with pytest.raises(LoadError, match="GPU"):
        LayerSkipDrafts(tiny_exit(TINY), on_gpu)
