"""Texts for heads: prompts as the engine lays them out, and how they go on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from specengine.decoding.prompt import PromptLayout
from specengine.models.tokenizer import Tokenizer
from specengine.train.corpus import Document, DocumentChooser
from specengine.train.holes import choose_hole
from specengine.train.samples import CHARS_PER_TOKEN, Sample

PLAIN_SHARE: Final = 0.4
"""Of texts that are read without what follows the cursor."""
MIDDLE_TOKENS: Final = (24, 120)
"""Least and greatest number of tokens behind the prompt."""


def head_samples(
    documents: Sequence[Document],
    layout: PromptLayout,
    tokenizer: Tokenizer,
    length: int,
    seed: int,
) -> Iterator[Sample]:
    """Yield texts of at most ``length`` tokens, the same ones at each call."""
    rng = random.Random(f"heads/{seed}")
    chooser = DocumentChooser(documents)
    while True:
        document = chooser.choose(rng)
        hole = choose_hole(document.text, document.language, rng)
        if hole is None:
            continue
        num_middle = rng.randint(*MIDDLE_TOKENS)
        window = length * CHARS_PER_TOKEN
        before = document.text[max(0, hole.start - window) : hole.start]
        after = document.text[hole.end : hole.end + window]
        if rng.random() < PLAIN_SHARE:
            after, end = "", hole.start + window
        else:
            end = hole.end
        # The text goes on from the cursor as it does in the file, as far as there is room.
        middle = tokenizer.encode(document.text[hole.start : end])[:num_middle]
        prompt = layout.lay_out(before, after, heal=False).token_ids
        room = length - len(middle)
        if not middle or len(prompt) > room:
            continue
        yield Sample((*prompt, *middle), len(prompt), (), "plain", hole.kind)
