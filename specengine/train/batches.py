"""Samples to batches: the batch of a step depends on the seed and the step alone.

So training that was interrupted goes on with the very batches that it would have seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from specengine.train.corpus import Document, DocumentChooser
from specengine.train.holes import choose_hole, excerpt
from specengine.train.samples import Sample, SampleLayout, SampleMaker

LAYOUT_WEIGHTS: Final[Mapping[SampleLayout, float]] = {
    "suffix_first": 0.6,
    "plain": 0.3,
    "prefix_first": 0.1,
}
LENGTH_WEIGHTS: Final[Mapping[int, float]] = {256: 0.85, 512: 0.14, 1024: 0.01}
"""Tokens of a row, at most."""
PLAIN_WEIGHT: Final = 0.35
"""Of a plain sample's tokens in the loss: they are more, and easier to come by."""
CONTEXT_SHARE: Final = 0.3
"""Of the tokens before a middle, those that are learnt from: all would cost a fourth more time."""
CONTEXT_WEIGHT: Final = 0.25
"""Of such a token in the loss. A prefix behind its suffix is the best teacher of what a suffix is
good for, and has several times as many tokens as the middle."""
EXCERPT_SHARE: Final = 0.35
"""Of samples that see one definition as if it were the whole file."""
NUM_MEASURED: Final = 128
MEASURED_TOKENS: Final = 512


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, padded at their ends, and the places where something is learnt.

    Shapes:  token_ids [B, T]; places, targets and weights [N], places into B x T flattened.
    """

    token_ids: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    rows: torch.Tensor
    """[N]: which sample each place belongs to."""
    num_tokens: int
    """Without padding."""


def batch_of(
    samples: Sequence[Sample], length: int, context_rng: random.Random | None = None
) -> Batch:
    """Return the batch of some samples, none of which is longer than ``length``.

    With ``context_rng`` it chooses tokens before the middles that are learnt too.
    """
    token_ids = torch.zeros(len(samples), length, dtype=torch.long)
    places: list[int] = []
    targets: list[int] = []
    weights: list[float] = []
    rows: list[int] = []
    for row, sample in enumerate(samples):
        num = len(sample.token_ids)
        token_ids[row, :num] = torch.tensor(sample.token_ids)
        learnt = list(range(sample.first_learnt, num))
        weights += [PLAIN_WEIGHT if sample.layout == "plain" else 1.0] * len(learnt)
        if context_rng is not None:
            chosen = [at for at in sample.context if context_rng.random() < CONTEXT_SHARE]
            weights += [CONTEXT_WEIGHT] * len(chosen)
            learnt += chosen
        places += [row * length + at - 1 for at in learnt]
        targets += [sample.token_ids[at] for at in learnt]
        rows += [row] * len(learnt)
    return Batch(
        token_ids,
        torch.tensor(places),
        torch.tensor(targets),
        torch.tensor(weights),
        torch.tensor(rows),
        sum(len(sample.token_ids) for sample in samples),
    )


class BatchMaker:
    """Makes the batches of each step."""

    def __init__(self, chooser: DocumentChooser, maker: SampleMaker, seed: int) -> None:
        self._chooser, self._maker, self._seed = chooser, maker, seed

    def step(self, number: int, num_batches: int, batch_tokens: int) -> Iterator[Batch]:
        """Yield the batches of a step, each of about ``batch_tokens`` tokens of one row length."""
        rng = random.Random(f"{self._seed}/{number}")
        lengths = list(LENGTH_WEIGHTS)
        for _ in range(num_batches):
            length = rng.choices(lengths, list(LENGTH_WEIGHTS.values()))[0]
            samples = [self._sample(rng, length) for _ in range(max(1, batch_tokens // length))]
            yield batch_of(samples, length, rng)

    def _sample(self, rng: random.Random, length: int) -> Sample:
        layouts = list(LAYOUT_WEIGHTS)
        layout = rng.choices(layouts, list(LAYOUT_WEIGHTS.values()))[0]
        while True:
            document = self._chooser.choose(rng)
            text = document.text
            if rng.random() < EXCERPT_SHARE:
                text = excerpt(text, document.language, rng)
            hole = choose_hole(text, document.language, rng)
            if hole is None:
                continue
            sample = self._maker.make(text, hole, layout, length, rng)
            if sample is not None:
                return sample


def measured_samples(
    documents: Sequence[Document], maker: SampleMaker, layouts: Sequence[SampleLayout]
) -> dict[SampleLayout, list[Sample]]:
    """Return for each layout samples of the same holes, the same ones at each call.

    A plain one ends where its hole ends, so that all layouts are asked for the same text.
    """
    rng = random.Random("measured")
    chooser = DocumentChooser(documents)
    found: dict[SampleLayout, list[Sample]] = {layout: [] for layout in layouts}
    while len(found[layouts[0]]) < NUM_MEASURED:
        document = chooser.choose(rng)
        hole = choose_hole(document.text, document.language, rng)
        if hole is None:
            continue
        made: dict[SampleLayout, Sample | None] = {
            layout: maker.make(
                document.text,
                hole,
                layout,
                MEASURED_TOKENS,
                random.Random(len(found[layouts[0]])),
                plain_tokens=0,
            )
            for layout in layouts
        }
        for layout, sample in made.items():
            if sample is not None and None not in made.values():
                found[layout].append(sample)
    return found
