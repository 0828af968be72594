"""The step: what is committed, and what the cache holds afterwards."""

from __future__ import annotations

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.decoding import loop
from specengine.draft import NOTHING, ROOT, Draft, Verdict
from specengine.models.decoder import Decoder
from specengine.models.target import PROMPT_ROWS
from specengine.verify.match import match
from tests.specengine.tiny import greedy, tiny_decoder

PROMPT = [20, 30, 40, 50]


def by_argmax(logits: torch.Tensor, draft: Draft) -> Verdict:
    assert logits.shape[0] == len(draft) + 1
    return match(draft, [int(row.argmax()) for row in logits])


def step(model: Decoder, cache: KVCache, token_ids: list[int], draft: Draft) -> Verdict:
    """Verify a draft in one pass and commit what the model agrees with."""
    (logits,) = model.forward_batch([loop.step_rows(cache, token_ids, draft)])
    verdict = by_argmax(logits, draft)
    loop.commit(cache, token_ids, draft, verdict)
    return verdict


def test_without_a_draft_one_token_is_committed() -> None:
    model, token_ids = tiny_decoder(), list(PROMPT)
    cache = KVCache(model.kv_shape, 64)
    verdict = step(model, cache, token_ids, NOTHING)
    assert verdict.accepted == ()
    assert token_ids == PROMPT + greedy(model, PROMPT, 1)
    assert cache.length == len(PROMPT)


@pytest.mark.parametrize("num_right", [0, 1, 3, 7])
def test_a_draft_is_accepted_as_far_as_it_is_right(num_right: int) -> None:
    model, token_ids = tiny_decoder(), list(PROMPT)
    truth = greedy(model, PROMPT, 8)
    drafted = truth[:num_right] + [(token_id + 1) % 256 for token_id in truth[num_right:7]]
    cache = KVCache(model.kv_shape, 64)
    step(model, cache, token_ids, Draft.chain(drafted, "test"))
    assert token_ids == PROMPT + truth[: num_right + 1]
    assert cache.length == len(token_ids) - 1


def test_the_cache_after_steps_equals_that_of_the_committed_text() -> None:
    model, token_ids = tiny_decoder(), list(PROMPT)
    truth = greedy(model, PROMPT, 30)
    cache = KVCache(model.kv_shape, 64)
    while len(token_ids) < 20:
        known = len(token_ids) - len(PROMPT)
        drafted = [*truth[known : known + 2], 7, 7]
        step(model, cache, token_ids, Draft.chain(drafted, "test"))
    fresh = KVCache(model.kv_shape, 64)
    model.forward(token_ids[: cache.length], fresh, num_logits=0)
    for layer in range(2):
        for ours, theirs in zip(cache.rows(layer), fresh.rows(layer), strict=True):
            assert torch.equal(ours, theirs)


def test_a_prompt_leaves_its_last_chunk_to_the_step() -> None:
    model = tiny_decoder()
    token_ids = list(range(10, 10 + 2 * PROMPT_ROWS + 5))
    cache = KVCache(model.kv_shape, 128)
    for start in (0, PROMPT_ROWS):
        rows = loop.prompt_rows(model, cache, token_ids, most=1000)
        assert rows is not None
        assert rows.token_ids == token_ids[start : start + PROMPT_ROWS]
        model.forward_batch([rows])
    assert loop.prompt_rows(model, cache, token_ids, most=5) is None
    rows = loop.prompt_rows(model, cache, token_ids, most=4)
    assert rows is not None
    assert rows.token_ids == token_ids[-5:-1]


@pytest.mark.parametrize(
    ("num_pending", "room"), [(1, 7), (2, 6), (8, 0), (9, 7), (31, 1), (32, 0)]
)
def test_behind_a_prompt_a_draft_gets_the_padding_only(num_pending: int, room: int) -> None:
    assert loop.draft_room(num_pending, 7) == room


def test_the_right_path_of_a_tree_is_accepted_and_kept() -> None:
    model, token_ids = tiny_decoder(), list(PROMPT)
    truth = greedy(model, PROMPT, 8)
    cache = KVCache(model.kv_shape, 64)
    while len(token_ids) < len(PROMPT) + 6:
        known = len(token_ids) - len(PROMPT)
        first, second = truth[known : known + 2]
        # A wrong branch, the right token behind it, and behind that a wrong one and the right one.
        fork = Draft((first + 1, first, 3, second), (ROOT, ROOT, 0, 1), "test")
        verdict = step(model, cache, token_ids, fork)
        assert verdict.accepted == (1, 3)
    assert token_ids == PROMPT + truth[: len(token_ids) - len(PROMPT)]
    fresh = KVCache(model.kv_shape, 64)
    model.forward(token_ids[: cache.length], fresh, num_logits=0)
    assert torch.equal(cache.rows(1)[0], fresh.rows(1)[0])
