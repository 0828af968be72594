"""Facts about drafters that compute on the target's own cache: they cost time, never text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specengine.drafters.layer_skip import LayerSkipDrafts
from specengine.drafters.none import NoDrafts
from specengine.drafters.streaming import StreamingDrafts
from specengine.models.load import TensorReader
from specengine.models.targets import Precision
from specengine.sampling import Sampling
from tests.specengine.drafters.tiny_sessions import (
    PREFIX,
    AnyDecoder,
    Noting,
    assert_stored_as_if_nothing_was_drafted,
    models_of,
    run,
    session_of,
)
from tests.specengine.heads.tiny_self import tiny_exit, tiny_streams
from tests.specengine.tiny import (
    tiny_architecture,
    tiny_decoder,
    tiny_integer_decoder,
    tiny_tensors,
)

SourceOf = Callable[[AnyDecoder], Noting]

TINY = tiny_architecture()
WISHES = (
    Sampling(),
    Sampling(temperature=0.8, seed=3),
    Sampling(temperature=0.8, seed=3, method="rejection"),
)


def layer_skip(decoder: AnyDecoder) -> Noting:
    return Noting(LayerSkipDrafts(tiny_exit(TINY), decoder))


def streaming(decoder: AnyDecoder) -> Noting:
    reader = TensorReader(tiny_tensors(TINY), torch.float32)
    return Noting(StreamingDrafts(tiny_streams(TINY), decoder, reader))


@pytest.fixture(params=["torch", "native"])
def decoder(request: pytest.FixtureRequest) -> AnyDecoder:
    return tiny_decoder() if request.param == "torch" else tiny_integer_decoder()


@pytest.fixture(params=[layer_skip, streaming], ids=lambda make: make.__name__)
def source_of(request: pytest.FixtureRequest) -> SourceOf:
    return request.param


@pytest.mark.parametrize("sampling", WISHES[:2])
def test_the_text_is_the_target_s_own(
    decoder: AnyDecoder, source_of: SourceOf, sampling: Sampling
) -> None:
    plain = run(session_of(models_of(decoder), NoDrafts(), sampling=sampling))
    models, source = models_of(decoder), source_of(decoder)
    for prefix in (PREFIX, PREFIX, PREFIX + "urn"):  # cold, then on stored rows
        session = session_of(models, source, prefix, sampling)
        written = run(session)
        assert session.counts.drafted > session.counts.accepted
        if prefix == PREFIX:
            assert written == plain


@pytest.mark.parametrize("precision", ["bfloat16", "int4", "int8"])
def test_it_runs_in_the_precision_of_the_target(source_of: SourceOf, precision: Precision) -> None:
    decoder = tiny_decoder(precision=precision)
    plain = run(session_of(models_of(decoder), NoDrafts()))
    session = session_of(models_of(decoder), source_of(decoder))
    assert run(session) == plain
    assert session.counts.drafted > 0


@pytest.mark.parametrize("sampling", WISHES)
def test_what_is_stored_has_the_bits_of_plain_decoding(
    decoder: AnyDecoder, source_of: SourceOf, sampling: Sampling
) -> None:
    models = models_of(decoder)
    session = session_of(models, source_of(decoder), sampling=sampling)
    run(session)
    assert session.counts.drafted > 0
    assert_stored_as_if_nothing_was_drafted(models, session)


def test_with_rejection_a_seed_gives_one_text_and_nothing_is_drawn(
    decoder: AnyDecoder, source_of: SourceOf
) -> None:
    """What is chosen, not drawn, has no law: the verdict then keeps the target's distribution."""
    source = source_of(decoder)
    texts = {run(session_of(models_of(decoder), source, sampling=WISHES[2])) for _ in range(2)}
    assert len(texts) == 1
    assert all(draft.laws == () for draft in source.drafts)
