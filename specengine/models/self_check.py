"""Whether a model that has just been loaded computes what it should, on this machine.

A few passes, which also make the first real ones fast: scores must be numbers, and a pass over
several tokens must give what single passes give. A kernel that is broken here shows itself before
anybody reads its text. Rounding is allowed for: ``specengine check exact`` is about bits.
"""

from __future__ import annotations

from typing import Final

import torch

from specengine.cache.kv_cache import KVCache
from specengine.cache.prefix_cache import PrefixCache
from specengine.models.target import Target

NUM_TOKENS: Final = 6
"""Decoded one by one, and then in one pass."""

MAX_DIFFERENCE: Final = 0.1
"""Of scores, in standard deviations of a row of them."""


def fault_of(target: Target, prefixes: PrefixCache) -> str | None:
    """Return what is wrong with a model, or None; leaves its slots as they were."""
    slot = prefixes.lease([])
    try:
        return _fault(target, slot.cache)
    finally:
        slot.cache.truncate(0)
        prefixes.release(slot, [])


def _fault(target: Target, cache: KVCache) -> str | None:
    length = min(target.prompt_rows, cache.capacity - NUM_TOKENS)
    prompt = [(1 + 7 * at) % target.vocab_size for at in range(length)]
    rows = target.forward(prompt, cache, num_logits=1)
    written: list[int] = []
    alone: list[torch.Tensor] = []
    for _ in range(NUM_TOKENS):
        if not bool(rows.isfinite().all()):
            return "some of its scores are no numbers"
        written.append(int(rows[-1].argmax()))
        rows = target.forward(written[-1:], cache, num_logits=1)
        alone.append(rows[-1])
    cache.truncate(len(prompt))
    together = target.forward(written, cache, num_logits=NUM_TOKENS)
    difference = (together - torch.stack(alone)).abs().max() / together.std()
    if not float(difference) <= MAX_DIFFERENCE:
        return "a pass over several tokens gives other scores than single passes"
    return None
