"""Drafts that a device makes by itself, here without one: what is recorded is run again."""

from __future__ import annotations

import pytest

from specengine.drafters import trained
from specengine.drafters.trained import drafts_of
from specengine.heads.head import Kind
from specengine.models.graphs import Recorder, Replay, run_again
from tests.specengine.drafters.tiny_sessions import (
    PREFIX,
    AnyDecoder,
    Noting,
    models_of,
    run,
    session_of,
)
from tests.specengine.heads.tiny_heads import tiny_head
from tests.specengine.tiny import tiny_architecture, tiny_decoder, tiny_integer_decoder

KINDS: tuple[Kind, ...] = ("eagle", "mtp", "draft_model")
TINY = tiny_architecture()


class Counting:
    """A recorder that counts what it records, and what of it is repeated."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, work: Replay) -> Replay:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


@pytest.fixture(params=["torch", "native"])
def decoder(request: pytest.FixtureRequest) -> AnyDecoder:
    return tiny_decoder() if request.param == "torch" else tiny_integer_decoder()


def drafts_on(decoder: AnyDecoder, kind: Kind, recorder: Recorder | None) -> Noting:
    """Let a head draft for three texts, the later ones on the rows of the first."""
    models = models_of(decoder)
    source = Noting(drafts_of(tiny_head(kind, TINY), decoder, 2, recorder=recorder))
    for prefix in (PREFIX, PREFIX, PREFIX + "urn"):
        run(session_of(models, source, prefix))
    return source


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_that_the_host_makes_token_by_token(decoder: AnyDecoder, kind: Kind) -> None:
    ours = drafts_on(decoder, kind, run_again).drafts
    by_host = drafts_on(decoder, kind, None).drafts
    assert max(map(len, by_host)) > 2
    assert [draft.token_ids for draft in ours] == [draft.token_ids for draft in by_host]
    assert [draft.parents for draft in ours] == [draft.parents for draft in by_host]
    for own, other in zip(ours, by_host, strict=True):
        assert own.chances == pytest.approx(other.chances, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_so_when_old_rows_make_room(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "CACHE_ROWS", 108)
    decoder = tiny_decoder()
    noted = [drafts_on(decoder, kind, recorder).drafts for recorder in (run_again, None)]
    assert [draft.token_ids for draft in noted[0]] == [draft.token_ids for draft in noted[1]]
    assert max(map(len, noted[0])) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_is_recorded_once_for_the_caches_of_a_text(kind: Kind) -> None:
    recorder = Counting()
    source = drafts_on(tiny_decoder(), kind, recorder)
    assert recorder.recorded == 2  # as many as there are slots
    assert recorder.replayed >= sum(len(draft) > 0 for draft in source.drafts) > 0
