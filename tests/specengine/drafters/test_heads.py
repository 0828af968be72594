"""Drafters with trained heads, here untrained ones: they cost time, never text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.decoding.prompt import PromptLayout
from specengine.decoding.session import Limits, Models, Session
from specengine.draft import Draft
from specengine.drafters.base import Drafter, DrafterSource, Observer
from specengine.drafters.none import NoDrafts
from specengine.drafters.trained import drafts_of
from specengine.heads.head import Kind
from specengine.models.decoder import Decoder
from specengine.models.integer import IntegerDecoder
from specengine.models.registry import ModelEntry
from specengine.sampling import GREEDY, Sampling
from tests.specengine.heads.tiny_heads import DEPTH, tiny_head
from tests.specengine.tiny import (
    tiny_architecture,
    tiny_decoder,
    tiny_integer_decoder,
    tiny_tokenizer,
)

LAYOUT = PromptLayout(ModelEntry(name="tiny", source="/tiny"), tiny_tokenizer(), 256)
PREFIX = "def f(self):\n    return self\n\ndef g(self):\n    ret" * 2
OBSERVERS: tuple[Kind, ...] = ("medusa", "eagle", "parallel", "mtp")
KINDS: tuple[Kind, ...] = (*OBSERVERS, "draft_model")
TINY = tiny_architecture()
AnyDecoder = Decoder | IntegerDecoder


def source_of(kind: Kind, decoder: AnyDecoder) -> DrafterSource:
    return drafts_of(tiny_head(kind, TINY), decoder, 2)


class Noting:
    """Notes what a drafter proposes."""

    def __init__(self, source: DrafterSource) -> None:
        self.name, self._source = source.name, source
        self.drafts: list[Draft] = []

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Drafter:
        drafter = self._source.start(prompt_ids, sampling)
        propose = drafter.propose

        def noting(token_ids: Sequence[int], max_tokens: int) -> Draft | None:
            draft = propose(token_ids, max_tokens)
            if draft is not None:
                self.drafts.append(draft)
            return draft

        setattr(drafter, "propose", noting)  # noqa: B010
        return drafter


def models_of(decoder: AnyDecoder) -> Models:
    prefixes = PrefixCache(lambda: KVCache(decoder.kv_shape, 512), 2)
    return Models(decoder, tiny_tokenizer(), decoder.vocab_size, prefixes)


def session_of(
    models: Models, source: DrafterSource, prefix: str = PREFIX, sampling: Sampling | None = None
) -> Session:
    sampling = sampling or Sampling()
    prompt = LAYOUT.lay_out(prefix, "", heal=True)
    drafter = source.start(prompt.token_ids, sampling)
    return Session(models, prompt, drafter, sampling, Limits(32, 7))


def run(session: Session) -> tuple[int, ...]:
    while session.stop_reason is None:
        session.advance()
    session.close()
    return session.written_ids


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
