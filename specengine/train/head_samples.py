"""Prompts for heads, as the engine lays them out; the target itself writes how they go on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from specengine.decoding.prompt import PromptLayout
from specengine.train.corpus import Document, DocumentChooser
from specengine.train.holes import choose_hole
from specengine.train.samples import CHARS_PER_TOKEN
from specengine.train.streams import LENGTH, Opening

PLAIN_SHARE: Final = 0.4
"""Of prompts that are read without what follows the cursor."""
PROMPT_TOKENS: Final = LENGTH // 2
WRITTEN_TOKENS: Final = (48, LENGTH - PROMPT_TOKENS)
"""Least and greatest number of tokens that the target may write."""


def openings(documents: Sequence[Document], layout: PromptLayout, seed: int) -> Iterator[Opening]:
    """Yield prompts that ``layout`` has cut to PROMPT_TOKENS, the same ones at each call."""
    rng = random.Random(f"heads/{seed}")
    chooser = DocumentChooser(documents)
    window = LENGTH * CHARS_PER_TOKEN
    while True:
        document = chooser.choose(rng)
        hole = choose_hole(document.text, document.language, rng)
        if hole is None:
            continue
        is_plain = rng.random() < PLAIN_SHARE
        before = document.text[max(0, hole.start - window) : hole.start]
        after = "" if is_plain else document.text[hole.end : hole.end + window]
        yield Opening(layout.lay_out(before, after).token_ids, rng.randint(*WRITTEN_TOKENS))
