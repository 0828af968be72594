"""What a model is tried on when it has been loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.models.decoder import Decoder
from specengine.models.graphs import PROMPT_ROWS, GraphDecoder, run_again
from specengine.models.self_check import fault_of
from specengine.models.target import Tree
from specengine.models.targets import Precision
from tests.specengine.tiny import tiny_decoder


class Changed(Decoder):
    """Computes what a function makes of its scores."""

    change: Callable[[torch.Tensor, int], torch.Tensor]

    def forward(
        self, token_ids: list[int], cache: KVCache, *, num_logits: int, tree: Tree | None = None
    ) -> torch.Tensor:
        logits = super().forward(token_ids, cache, num_logits=num_logits, tree=tree)
        return self.change(logits, len(token_ids))


def changed(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Decoder:
    decoder = tiny_decoder()
    made = Changed(decoder.architecture, decoder.weights, decoder.precision)
    made.change = change
    return made


def prefixes_of(target: Decoder) -> PrefixCache:
    return PrefixCache(lambda: KVCache(target.kv_shape, 600), 2)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_that_is_right_has_no_fault_and_leaves_nothing(precision: Precision) -> None:
    target = tiny_decoder(precision=precision)
    prefixes = prefixes_of(target)
    assert fault_of(target, prefixes) is None
    assert prefixes.slots == [(0, False)]


def test_scores_that_are_no_numbers_are_a_fault() -> None:
    target = changed(lambda logits, width: logits / (0.0 if width == 1 else 1.0) * 0)
    assert fault_of(target, prefixes_of(target)) == "some of its scores are no numbers"


def test_a_wide_pass_that_differs_is_a_fault() -> None:
    target = changed(lambda logits, width: logits.roll(1, -1) if 1 < width < 9 else logits)
    fault = fault_of(target, prefixes_of(target))
    assert fault == "a pass over several tokens gives other scores than single passes"


def test_rounding_is_no_fault() -> None:
    target = changed(lambda logits, width: logits * (1.001 if width > 1 else 1.0))
    assert fault_of(target, prefixes_of(target)) is None


def test_a_short_context_is_enough_where_prompts_are_read_in_long_pieces() -> None:
    like = tiny_decoder()
    target = GraphDecoder(
        like.architecture, like.weights, "float32", step_rows=8, recorder=run_again
    )
    prefixes = PrefixCache(lambda: KVCache(target.kv_shape, PROMPT_ROWS), 1)
    assert fault_of(target, prefixes) is None
