from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import NOTHING, Draft
from specengine.drafters.draft_model import (
    ModelDrafter,
    ModelDrafts,
    check_same_tokens,
)
from specengine.errors import ModelsIncompatible
from specengine.models.decoder import Decoder
from specengine.models.graphs import GraphDecoder, Replay, run_again
from specengine.models.tokenizer import Tokenizer
from specengine.sampling import Sampling
from tests.specengine.tiny import SPECIAL, greedy, tiny_decoder, tiny_tokenizer

PROMPT = tiny_tokenizer().encode("def f(self):\n    return ")
NUM_SLOTS = 2


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_decoder()


def proposal(drafter: ModelDrafter, token_ids: Sequence[int], max_tokens: int) -> Draft:
    """Ask until the draft is ready."""
    while (draft := drafter.propose(token_ids, max_tokens)) is None:
        pass
    return draft


def drafts(model: Decoder, end_ids: Sequence[int] = (), capacity: int = 256) -> ModelDrafts:
    return ModelDrafts(model, frozenset(end_ids), NUM_SLOTS, capacity)


def test_it_drafts_what_the_model_would_write(model: Decoder) -> None:
    written = greedy(model, PROMPT, 12)
    drafter = drafts(model).start(PROMPT)
    for at in range(0, 12, 4):
        draft = proposal(drafter, [*PROMPT, *written[:at]], 4)
        assert draft == Draft.chain(written[at : at + 4], "draft_model")


def test_it_is_right_again_after_rejections(model: Decoder) -> None:
    """The target keeps two of five, then none, and writes what the draft model did not expect."""
    drafter = drafts(model).start(PROMPT)
    token_ids = list(PROMPT)
    for num_accepted, next_id in ((2, 42), (0, 43), (5, 44), (0, 45)):
        draft = proposal(drafter, token_ids, 5)
        assert list(draft.token_ids) == greedy(model, token_ids, 5)
        token_ids += [*draft.token_ids[:num_accepted], next_id]


def test_tokens_of_passes_without_it_are_read_later(model: Decoder) -> None:
    drafter = drafts(model).start(PROMPT)
    proposal(drafter, PROMPT, 3)
    token_ids = [*PROMPT, 50, 51, 52, 53, 54, 55]
    assert list(proposal(drafter, token_ids, 3).token_ids) == greedy(model, token_ids, 3)


def test_asked_twice_it_says_the_same(model: Decoder) -> None:
    drafter = drafts(model).start(PROMPT)
    assert proposal(drafter, PROMPT, 3) == proposal(drafter, PROMPT, 3)


def test_draft_ends_with_an_end_token(model: Decoder) -> None:
    written = greedy(model, PROMPT, 6)
    assert len(set(written)) == 6
    drafter = drafts(model, end_ids=[written[2], 999]).start(PROMPT)
    assert list(proposal(drafter, PROMPT, 6).token_ids) == written[:3]


def test_each_call_makes_at_most_one_pass_of_bounded_size(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel is seen between calls, so none may read a whole prompt or make a whole draft."""
    num_rows: list[int] = []
    forward = Decoder.forward

    def counted(
        self: Decoder, token_ids: list[int], cache: KVCache, *, num_logits: int
    ) -> torch.Tensor:
        num_rows.append(len(token_ids))
        return forward(self, token_ids, cache, num_logits=num_logits)

    monkeypatch.setattr(Decoder, "forward", counted)
    prompt = (PROMPT * 40)[: 2 * model.prompt_rows + 3]
    drafter = drafts(model).start(prompt)
    answers = [drafter.propose(prompt, 3) for _ in range(5)]
    assert num_rows == [model.prompt_rows, model.prompt_rows, 3, 1, 1]
    assert answers[:4] == [None] * 4
    assert answers[4] == Draft.chain(greedy(model, prompt, 3), "draft_model")


def recorded(model: Decoder) -> GraphDecoder:
    """Return the same model as an accelerator runs it."""
    return GraphDecoder(
        model.architecture, model.weights, "float32", step_rows=4, recorder=run_again
    )


def test_a_device_makes_the_same_draft_in_one_call(model: Decoder) -> None:
    ours, expected = drafts(recorded(model)).start(PROMPT), drafts(model).start(PROMPT)
    token_ids = list(PROMPT)
    for num_accepted, next_id in ((2, 42), (0, 43), (5, 44), (1, 45)):
        draft = ours.propose(token_ids, 5)
        assert draft is not None, "one call"
        assert draft == proposal(expected, token_ids, 5)
        token_ids += [*draft.token_ids[:num_accepted], next_id]


def test_a_draft_of_a_device_ends_with_an_end_token(model: Decoder) -> None:
    written = greedy(model, PROMPT, 6)
    drafter = drafts(recorded(model), end_ids=[written[2], 999]).start(PROMPT)
    assert proposal(drafter, PROMPT, 6).token_ids == tuple(written[:3])
    longer = [*PROMPT, *written[:4]]
    assert proposal(drafter, longer, 2).token_ids == tuple(greedy(model, longer, 2))


def test_a_draft_of_a_device_stays_inside_the_cache(model: Decoder) -> None:
    prompt = (PROMPT * 40)[:253]
    draft = proposal(drafts(recorded(model)).start(prompt), prompt, 8)
    assert list(draft.token_ids) == greedy(model, prompt, 3)


class Fails:
    """A device whose memory ends while it makes a pass."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, one_pass: Replay) -> Replay:
        def replay() -> None:
            self._left -= 1
            if self._left == 0:
                raise torch.OutOfMemoryError("no memory is left.")
            one_pass()

        return replay


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_device_that_fails_within_a_draft_costs_no_slot(model: Decoder, at: int) -> None:
    device = GraphDecoder(
        model.architecture, model.weights, "float32", step_rows=4, recorder=Fails(at)
    )
    source = ModelDrafts(device, frozenset(), 1, 256)
    drafter = source.start(PROMPT)
    with pytest.raises(torch.OutOfMemoryError):
        drafter.propose(PROMPT, 5)
    drafter.close()
    again = source.start(PROMPT)
    assert list(proposal(again, PROMPT, 5).token_ids) == greedy(model, PROMPT, 5)


def test_a_draft_is_begun_anew_when_the_text_has_grown_meanwhile(model: Decoder) -> None:
    drafter = drafts(model).start(PROMPT)
    assert drafter.propose(PROMPT, 4) is None
    grown = [*PROMPT, 60, 61]
    assert list(proposal(drafter, grown, 4).token_ids) == greedy(model, grown, 4)


def test_draft_stays_inside_the_cache(model: Decoder) -> None:
    prompt = (PROMPT * 40)[:253]
    drafter = drafts(model).start(prompt)
    proposal(drafter, prompt, 8)
    written = greedy(model, prompt, 3)
    assert list(proposal(drafter, prompt, 8).token_ids) == written
    assert proposal(drafter, [*prompt, *written], 8) == NOTHING
    assert proposal(drafter, [*prompt, *written, 1, 2, 3], 8) == NOTHING


def test_no_room_gives_nothing(model: Decoder) -> None:
    drafter = drafts(model).start(PROMPT)
    assert proposal(drafter, PROMPT, 0) == NOTHING
    assert list(proposal(drafter, PROMPT, 2).token_ids) == greedy(model, PROMPT, 2)


def test_closed_drafters_leave_no_slot_leased(model: Decoder) -> None:
    source = drafts(model)
    started = [source.start(PROMPT) for _ in range(NUM_SLOTS)]
    proposal(started[0], PROMPT, 4)
    assert source._prefixes.num_leased == NUM_SLOTS
    for drafter in started:
        drafter.close()
    assert source._prefixes.num_leased == 0
    source._prefixes.check_integrity()


def test_close_gives_the_slot_back_after_a_pass_that_failed(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = drafts(model)
    drafter = source.start(PROMPT)
    proposal(drafter, PROMPT, 2)

    def fail(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Decoder, "forward", fail)
    with pytest.raises(RuntimeError):
        proposal(drafter, [*PROMPT, 50], 2)
    drafter.close()
    assert source._prefixes.num_leased == 0
    source._prefixes.check_integrity()


def test_next_request_reuses_what_was_read(model: Decoder) -> None:
    source = drafts(model)
    first: ModelDrafter = source.start(PROMPT)
    draft = proposal(first, PROMPT, 4)
    first.close()
    token_ids = [*PROMPT, *draft.token_ids[:2], 50]
    second = source.start(token_ids)
    assert second._slot.cache.length == len(PROMPT) + 2
    assert list(proposal(second, token_ids, 4).token_ids) == greedy(model, token_ids, 4)


def test_tiny_model_writes_no_special_token(model: Decoder) -> None:
    """What tests rest on: its text does not end by itself."""
    assert min(greedy(model, PROMPT, 32)) >= len(SPECIAL)


def test_same_tokens_are_compatible_whatever_the_padding() -> None:
    check_same_tokens(tiny_tokenizer(), tiny_tokenizer())


def test_other_tokens_are_refused_with_the_first_difference() -> None:
    content = {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "added_tokens": [],
    }
    other = Tokenizer(json.dumps(content).encode())
    with pytest.raises(ModelsIncompatible, match=r"token 0 is b'' in one and b'a' in the other"):
        check_same_tokens(tiny_tokenizer(), other)


@pytest.mark.parametrize("more", [-3, 24])
def test_its_laws_are_over_the_tokens_of_the_target(model: Decoder, more: int) -> None:
    """Models of a family pad their vocabularies to other lengths."""
    vocab_size = model.vocab_size + more
    source = ModelDrafts(model, frozenset(), NUM_SLOTS, 256, vocab_size)
    wish = Sampling(temperature=1.0, method="rejection")
    draft = proposal(source.start(PROMPT, wish), PROMPT, 6)
    assert all(token_id < vocab_size for token_id in draft.token_ids)
    for law in draft.laws:
        assert law is not None
        assert law.shape == (vocab_size,)
        assert float(law.sum()) == pytest.approx(1.0)
