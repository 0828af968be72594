"""Drafts by streams through the target's last layers: they cost time, never text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import Draft
from specengine.drafters import streaming
from specengine.drafters.base import Observer, SharesCache
from specengine.drafters.none import NoDrafts
from specengine.drafters.streaming import StreamingDrafts
from specengine.errors import LoadError
from specengine.heads.head import Head
from specengine.models.graphs import GraphDecoder, run_again
from specengine.models.load import TensorReader
from specengine.models.target import Rows, Tap
from tests.specengine.drafters.tiny_sessions import (
    AnyDecoder,
    Noting,
    assert_stored_as_if_nothing_was_drafted,
    models_of,
    run,
    session_of,
)
from tests.specengine.heads.tiny_self import DEPTH, tiny_streams
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


def reader() -> TensorReader:
    return TensorReader(tiny_tensors(TINY), torch.float32)


def source_of(decoder: AnyDecoder, head: Head | None = None) -> Noting:
    return Noting(StreamingDrafts(head or tiny_streams(TINY), decoder, reader()))


def drafted(
    source: Noting, decoder: AnyDecoder, cache: KVCache, num_known: int, max_tokens: int = 7
) -> Draft:
    """Let the target compute some tokens, then ask a new drafter what follows the next one."""
    drafter = source.start(IDS)
    assert isinstance(drafter, SharesCache)
    assert isinstance(drafter, Observer)
    drafter.share(cache)
    tap = Tap(drafter.layers)
    decoder.forward_batch([Rows(IDS[:num_known], cache, 0, tap=tap)])
    drafter.observe({layer: tap.streams[at] for at, layer in enumerate(tap.layers)}, 0)
    draft = drafter.propose(IDS[: num_known + 1], max_tokens)
    assert draft is not None
    return draft


def test_a_cancel_behind_a_draft_leaves_nothing(decoder: AnyDecoder) -> None:
    models, source = models_of(decoder), source_of(decoder)
    session = session_of(models, source)
    while session.counts.steps < 3:
        session.advance()
    session.prepare()
    assert len(source.drafts[-1]) > 0
    session.close()
    assert_stored_as_if_nothing_was_drafted(models, session)
    plain = run(session_of(models_of(decoder), NoDrafts()))
    assert run(session_of(models, source)) == plain


def test_trees_come_with_branches(decoder: AnyDecoder) -> None:
    source = source_of(decoder)
    run(session_of(models_of(decoder), source))
    known = set(tiny_streams(TINY).ids())
    assert any(not draft.is_chain for draft in source.drafts)
    for draft in source.drafts:
        assert len(draft) <= 7
        assert max((len(draft.path(node)) for node in range(len(draft))), default=0) <= DEPTH
        assert known.issuperset(draft.token_ids)


def test_a_draft_leaves_the_cache_as_it_was(decoder: AnyDecoder) -> None:
    cache = KVCache(decoder.kv_shape, 512)
    assert len(drafted(source_of(decoder), decoder, cache, 5)) > 0
    assert cache.length == 5
    cache.advance(DEPTH)
    for layer in range(TINY.num_layers):
        assert all(not side[5:].any() for side in cache.rows(layer))


def spoilt(value: float) -> Head:
    """Return a head whose low-rank changes are multiplied by a value."""
    head = tiny_streams(TINY)
    tensors = {
        name: tensor * value if name.endswith("lora_B.weight") else tensor
        for name, tensor in head.tensors.items()
    }
    return replace(head, tensors=tensors)


def assert_costs_time_only(decoder: AnyDecoder, head: Head) -> None:
    plain = run(session_of(models_of(decoder), NoDrafts()))
    source = source_of(decoder, head)
    assert run(session_of(models_of(decoder), source)) == plain
    assert source.num_calls > 0


def test_a_head_of_absurd_numbers_costs_time_only(decoder: AnyDecoder) -> None:
    assert_costs_time_only(decoder, spoilt(1e30))


def test_a_head_without_numbers_costs_time_only() -> None:
    assert_costs_time_only(tiny_decoder(), spoilt(float("nan")))


def test_integers_refuse_a_head_without_numbers() -> None:
    with pytest.raises(LoadError, match="are no numbers"):
        source_of(tiny_integer_decoder(), spoilt(float("nan")))


def test_fewer_streams_run_where_fewer_tokens_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []

    def noting(probabilities: torch.Tensor, *others: object) -> Draft:
        numbers.append(len(probabilities))
        return Draft((), (), "")

    monkeypatch.setattr(streaming, "from_positions", noting)
    decoder = tiny_decoder()
    for max_tokens in (7, 2, 0):
        cache = KVCache(decoder.kv_shape, 512)
        drafted(source_of(decoder), decoder, cache, 5, max_tokens)
    assert numbers == [DEPTH, 2]


def test_without_the_last_position_s_stream_nothing_is_drafted() -> None:
    decoder = tiny_decoder()
    drafter = source_of(decoder).start(IDS)
    assert isinstance(drafter, SharesCache)
    assert isinstance(drafter, Observer)
    cache = KVCache(decoder.kv_shape, 512)
    decoder.forward(IDS[:-1], cache, num_logits=0)
    drafter.share(cache)
    for seen in (0, 3):  # nothing, then an earlier position
        if seen:
            drafter.observe({1: torch.ones(seen, TINY.hidden_size)}, 0)
        draft = drafter.propose(IDS, 7)
        assert draft is not None
        assert len(draft) == 0


def test_a_head_without_a_factor_is_refused() -> None:
    head = tiny_streams(TINY)
    name = "layers.1.mlp.up_proj.lora_B.weight"
    tensors = {other: each for other, each in head.tensors.items() if other != name}
    with pytest.raises(LoadError, match=f"lacks {name}"):
        StreamingDrafts(replace(head, tensors=tensors), tiny_decoder(), reader())


def test_a_change_of_another_shape_is_refused() -> None:
    head = tiny_streams(TINY)
    tensors = {**head.tensors, "layers.1.mlp.up_proj.lora_B.weight": torch.zeros(7, 4)}
    with pytest.raises(LoadError, match="as if it were 7 x 64"):
        StreamingDrafts(replace(head, tensors=tensors), tiny_decoder(), reader())


def test_streams_that_end_before_the_target_does_are_refused() -> None:
    longer = tiny_decoder(architecture=tiny_architecture(num_layers=3))
    with pytest.raises(LoadError, match=r"passes layers \(1,\); its target ends with 2"):
        StreamingDrafts(tiny_streams(TINY), longer, reader())


def test_a_target_on_a_gpu_is_refused() -> None:
    like = tiny_decoder()
    on_gpu = GraphDecoder(TINY, like.weights, "float32", step_rows=8, recorder=run_again)
    with pytest.raises(LoadError, match="GPU"):
        StreamingDrafts(tiny_streams(TINY), on_gpu, reader())
