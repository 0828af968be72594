"""Samples are cut as prompts are cut at inference."""

from __future__ import annotations

import random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine.decoding.prompt import PromptLayout
from specengine.models.registry import FimTemplate, ModelEntry
from specengine.train.holes import Hole
from specengine.train.samples import (
    MAX_MIDDLE_TOKENS,
    Sample,
    SampleLayout,
    SampleMaker,
    Sentinels,
    SentinelTexts,
)
from tests.specengine.tiny import END, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, tiny_tokenizer

TEXT = "def f(self):\n    return self\n\n\ndef g(self):\n    x = 12\n    return 1\n"
TEXTS = SentinelTexts(FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, END)
TOKENIZER = tiny_tokenizer()
MARKS = Sentinels.of(TOKENIZER, TEXTS)
MAKER = SampleMaker(TOKENIZER, MARKS)
LAYOUTS: tuple[SampleLayout, ...] = get_args(SampleLayout)


def hole_of(middle: str) -> Hole:
    start = TEXT.index(middle)
    return Hole("line", start, start + len(middle))


def make(hole: Hole, layout: SampleLayout, max_tokens: int = 512, **options: int) -> Sample:
    sample = MAKER.make(TEXT, hole, layout, max_tokens, random.Random(0), **options)
    assert sample is not None
    return sample


@pytest.mark.parametrize("middle", ["    return self", "return self", "turn self", "\n    x = 12"])
def test_the_model_reads_what_it_would_read_at_inference(middle: str) -> None:
    hole = hole_of(middle)
    template = FimTemplate(prefix=FIM_PREFIX, suffix=FIM_SUFFIX, order="suffix_first")
    layout = PromptLayout(ModelEntry("tiny", "", fim=template), TOKENIZER, 4096)
    prompt = layout.lay_out(TEXT[: hole.start], TEXT[hole.end :])
    sample = make(hole, "suffix_first", 4096)
    assert sample.token_ids[: sample.first_learnt] == prompt.token_ids
    healed = TOKENIZER.decode(prompt.healed_ids)
    learnt = sample.token_ids[sample.first_learnt :]
    assert TOKENIZER.decode(learnt) == healed + middle
    assert learnt[-1] == MARKS.end


def test_a_plain_sample_goes_on_beyond_its_hole_without_an_end() -> None:
    sample = make(hole_of("return self"), "plain")
    assert TOKENIZER.decode(sample.token_ids) == TEXT
    assert MARKS.end not in sample.token_ids


def test_a_plain_sample_may_end_with_its_hole() -> None:
    sample = make(hole_of("return self"), "plain", plain_tokens=0)
    assert TOKENIZER.decode(sample.token_ids).endswith("    return self")


def test_with_the_prefix_first_the_middle_follows_its_marker() -> None:
    sample = make(hole_of("return self"), "prefix_first")
    assert sample.token_ids[0] == MARKS.prefix
    assert sample.token_ids[sample.first_learnt - 1] == MARKS.middle
    assert MARKS.suffix in sample.token_ids


@given(
    st.integers(0, len(TEXT) - 1), st.integers(1, 40), st.sampled_from(LAYOUTS), st.integers(24, 64)
)
def test_a_sample_keeps_its_length_and_its_middle(
    start: int, length: int, layout: SampleLayout, max_tokens: int
) -> None:
    hole = Hole("span", start, min(len(TEXT), start + length))
    sample = MAKER.make(TEXT, hole, layout, max_tokens, random.Random(0), plain_tokens=0)
    if sample is None:
        assert not TEXT[hole.start : hole.end].strip() or max_tokens < 3 * length
        return
    if len(sample.token_ids) - sample.first_learnt < max_tokens - 3:
        assert len(sample.token_ids) <= max_tokens
    written = TOKENIZER.decode(sample.token_ids[sample.first_learnt :])
    assert written.endswith(TEXT[hole.start : hole.end])


@pytest.mark.parametrize("middle", ["", "   \n"])
def test_nothing_is_learnt_from_an_empty_middle(middle: str) -> None:
    text = f"x = 1{middle}y"
    hole = Hole("span", 5, 5 + len(middle))
    assert MAKER.make(text, hole, "suffix_first", 64, random.Random(0)) is None


def test_a_middle_that_is_too_long_is_left_out() -> None:
    text = "a1" * MAX_MIDDLE_TOKENS
    hole = Hole("span", 0, len(text))
    assert MAKER.make(text, hole, "suffix_first", 4096, random.Random(0)) is None


def test_text_that_looks_like_a_sentinel_stays_text() -> None:
    text = f"x = '{FIM_PREFIX}{END}'\ny = 1\n"
    hole = Hole("line", 0, text.index("\n"))
    sample = MAKER.make(text, hole, "suffix_first", 512, random.Random(0))
    assert sample is not None
    assert sample.token_ids.count(MARKS.end) == 1
    assert sample.token_ids.count(MARKS.prefix) == 1
