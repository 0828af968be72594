"""Drafters with trained heads, here untrained ones: they cost time, never text."""

from __future__ import annotations

import pytest
import torch

from specengine.drafters.base import DrafterSource, Observer
from specengine.drafters.none import NoDrafts
from specengine.drafters.trained import drafts_of
from specengine.heads.head import Kind
from specengine.sampling import Sampling
from tests.specengine.drafters.tiny_sessions import (
    PREFIX,
    AnyDecoder,
    Noting,
    models_of,
    run,
    session_of,
)
from tests.specengine.heads.tiny_heads import DEPTH, tiny_head
from tests.specengine.tiny import (
    tiny_architecture,
    tiny_decoder,
    tiny_integer_decoder,
)

OBSERVERS: tuple[Kind, ...] = ("medusa", "eagle", "parallel", "mtp")
KINDS: tuple[Kind, ...] = (*OBSERVERS, "draft_model")
TINY = tiny_architecture()


def source_of(kind: Kind, decoder: AnyDecoder) -> DrafterSource:
    return drafts_of(tiny_head(kind, TINY), decoder, 2)


@pytest.fixture(params=["torch", "native"])
def decoder(request: pytest.FixtureRequest) -> AnyDecoder:
    return tiny_decoder() if request.param == "torch" else tiny_integer_decoder()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_target_s_own(decoder: AnyDecoder, kind: Kind, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=3)
    plain = run(session_of(models_of(decoder), NoDrafts(), sampling=sampling))
    models, source = models_of(decoder), Noting(source_of(kind, decoder))
    for prefix in (PREFIX, PREFIX, PREFIX + "urn"):  # cold, then on stored rows
        session = session_of(models, source, prefix, sampling)
        written = run(session)
        if prefix == PREFIX:
            assert written == plain
    assert session.counts.drafted > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_has_tokens_of_the_head_s_vocabulary_and_no_more_than_asked_for(kind: Kind) -> None:
    decoder = tiny_decoder()
    source = Noting(source_of(kind, decoder))
    run(session_of(models_of(decoder), source))
    known = set(tiny_head(kind, TINY).ids())
    assert any(len(draft) > 1 for draft in source.drafts)
    for draft in source.drafts:
        assert len(draft) <= 7
        depth = max((len(draft.path(node)) for node in range(len(draft))), default=0)
        assert depth <= DEPTH or kind == "draft_model"
        assert known.issuperset(draft.token_ids)


@pytest.mark.parametrize("kind", OBSERVERS)
def test_without_hidden_states_nothing_is_drafted(kind: Kind) -> None:
    drafter = source_of(kind, tiny_decoder()).start([1, 2, 3], Sampling())
    assert isinstance(drafter, Observer)
    draft = drafter.propose([1, 2, 3], 7)
    assert draft is not None
    assert len(draft) == 0


@pytest.mark.parametrize("kind", OBSERVERS)
def test_no_room_gives_no_draft(kind: Kind) -> None:
    decoder = tiny_decoder()
    drafter = source_of(kind, decoder).start([1, 2], Sampling())
    assert isinstance(drafter, Observer)
    drafter.observe(dict.fromkeys(drafter.layers, torch.zeros(1, TINY.hidden_size)), 0)
    draft = drafter.propose([1, 2], 0)
    assert draft is not None
    assert len(draft) == 0


@pytest.mark.parametrize("kind", ["eagle", "parallel"])
def test_trees_come_with_branches(kind: Kind) -> None:
    decoder = tiny_decoder()
    source = Noting(source_of(kind, decoder))
    run(session_of(models_of(decoder), source))
    assert any(not draft.is_chain for draft in source.drafts)
