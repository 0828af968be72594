from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.decoding.prompt import CUT_STEPS, SUFFIX_SHARE, Prompt, PromptLayout
from specengine.errors import ConfigError
from specengine.models.registry import FimTemplate, ModelEntry
from specengine.models.tokenizer import Tokenizer
from tests.specengine.tiny import (
    BEGIN,
    END_ID,
    FIM_MIDDLE,
    FIM_PREFIX,
    FIM_SUFFIX,
    SPECIAL,
    tiny_tokenizer,
    tiny_tokenizer_json,
)

TOKENIZER = tiny_tokenizer()
FIM = FimTemplate(FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
BEGIN_ID, PREFIX_ID, SUFFIX_ID, MIDDLE_ID = map(TOKENIZER.special_id, SPECIAL[1:])
CODE = "def f(self):\n    return self\n"


def layout(
    max_tokens: int = 64, *, fim: FimTemplate | None = None, begin: str | None = None
) -> PromptLayout:
    entry = ModelEntry(name="tiny", source="tiny", fim=fim, begin=begin)
    return PromptLayout(entry, TOKENIZER, max_tokens)


def text_of(prompt: Prompt) -> str:
    return TOKENIZER.decode(prompt.token_ids + prompt.healed_ids)


def test_prompt_and_healed_tokens_are_the_prefix() -> None:
    prompt = layout().lay_out(CODE + "    ret", "")
    assert prompt.token_ids + prompt.healed_ids == tuple(TOKENIZER.encode(CODE + "    ret"))
    assert prompt.forced.remaining == b" ret"


def test_without_healing_nothing_is_forced() -> None:
    prompt = layout().lay_out(CODE + "    ret", "", heal=False)
    assert prompt.token_ids == tuple(TOKENIZER.encode(CODE + "    ret"))
    assert prompt.healed_ids == ()
    assert prompt.forced.allowed() is None


def test_suffix_stands_between_the_markers() -> None:
    prompt = layout(fim=FIM).lay_out("def f(self):\n    x", "\n    return 1")
    before, after = TOKENIZER.encode("def f(self):\n   "), TOKENIZER.encode("\n    return 1")
    assert prompt.token_ids == (PREFIX_ID, *before, SUFFIX_ID, *after, MIDDLE_ID)
    assert prompt.forced.remaining == b" x"


def test_begin_token_comes_first() -> None:
    assert layout(begin=BEGIN).lay_out(CODE, "").token_ids[0] == BEGIN_ID
    filled = layout(begin=BEGIN, fim=FIM).lay_out(CODE, "x").token_ids
    assert filled[:2] == (BEGIN_ID, PREFIX_ID)


def test_model_without_markers_reads_no_suffix() -> None:
    assert layout().lay_out(CODE, "x = 1").token_ids == layout().lay_out(CODE, "").token_ids


def test_empty_suffix_needs_no_markers() -> None:
    assert layout(fim=FIM).lay_out(CODE, "").token_ids == layout().lay_out(CODE, "").token_ids


@pytest.mark.parametrize(
    ("fim", "begin", "suffix", "expected"),
    [
        (None, None, "", (END_ID,)),
        (None, BEGIN, "", (BEGIN_ID,)),
        (FIM, None, "", (END_ID,)),
        (FIM, None, "=", (PREFIX_ID, SUFFIX_ID, *TOKENIZER.encode("="), MIDDLE_ID)),
    ],
)
@pytest.mark.parametrize("prefix", ["", "ret"])
def test_prompt_is_never_empty(
    fim: FimTemplate | None, begin: str | None, suffix: str, expected: tuple[int, ...], prefix: str
) -> None:
    """A first word is stepped over and leaves nothing, too."""
    prompt = layout(fim=fim, begin=begin).lay_out(prefix, suffix)
    assert prompt.token_ids == expected
    assert prompt.forced.remaining == prefix.encode()


@settings(max_examples=150)
@given(
    prefix=st.integers(0, 120).map(lambda n: "x=" * n),
    suffix=st.integers(0, 60).map(lambda n: "y;" * n),
    max_tokens=st.integers(16, 70),
    fim=st.sampled_from([None, FIM]),
    begin=st.sampled_from([None, BEGIN]),
)
def test_prompt_is_never_longer_than_its_limit(
    prefix: str, suffix: str, max_tokens: int, fim: FimTemplate | None, begin: str | None
) -> None:
    prompt = layout(max_tokens, fim=fim, begin=begin).lay_out(prefix, suffix)
    assert len(prompt.token_ids) <= max_tokens
    ids = [token_id for token_id in prompt.token_ids if token_id not in TOKENIZER.special_ids]
    before = TOKENIZER.decode(ids).partition("y")[0]
    kept = prefix.removesuffix(TOKENIZER.decode(prompt.healed_ids))
    assert kept.endswith(before)
    # Every character is a token here.
    room = max_tokens - (len(prompt.token_ids) - len(before))
    assert len(before) >= min(len(kept), room - room // CUT_STEPS)


def test_suffix_takes_no_more_than_its_share() -> None:
    token_ids = layout(67, fim=FIM).lay_out("x=" * 500, "y;" * 500).token_ids
    after = token_ids[token_ids.index(SUFFIX_ID) + 1 : -1]
    assert len(after) == 64 // SUFFIX_SHARE
    assert after == tuple(TOKENIZER.encode("y;" * 500))[: len(after)]


@pytest.mark.parametrize(("fim", "suffix"), [(None, ""), (FIM, "y;" * 50), (FIM, "y")])
def test_cut_prefix_keeps_its_first_token_over_many_keystrokes(
    fim: FimTemplate | None, suffix: str
) -> None:
    """Else the stored KV would be of no use for the next key."""
    typing = layout(64, fim=fim)
    typed = "".join(f"{chr(97 + at % 26)}=" for at in range(200))
    prompts = [typing.lay_out(typed[:at], suffix).token_ids for at in range(100, 400)]
    fronts = [ids[: ids.index(SUFFIX_ID)] if SUFFIX_ID in ids else ids for ids in prompts]
    num_cuts = sum(after[: len(before)] != before for before, after in pairwise(fronts))
    shortest_step = 64 * (1 - 1 / SUFFIX_SHARE) // CUT_STEPS - 1
    assert 0 < num_cuts <= 300 / shortest_step + 1


def test_text_that_looks_like_a_marker_stays_text() -> None:
    prompt = layout(fim=FIM).lay_out(f"x = '{FIM_MIDDLE}'\n", f"{BEGIN}\n")
    assert [at for at in prompt.token_ids if at in TOKENIZER.special_ids] == [
        PREFIX_ID,
        SUFFIX_ID,
        MIDDLE_ID,
    ]
    assert text_of(prompt) == f"x = '{FIM_MIDDLE}'{BEGIN}\n\n"


@pytest.mark.parametrize("marker", ["<missing>", "def"])
def test_marker_that_the_model_lacks_is_refused(marker: str) -> None:
    with pytest.raises(ConfigError, match=f"no special token '{marker}'"):
        layout(begin=marker)
    with pytest.raises(ConfigError, match=f"no special token '{marker}'"):
        layout(fim=FimTemplate(FIM_PREFIX, marker, FIM_MIDDLE))


def test_text_that_cannot_be_spelt_byte_by_byte_is_not_healed() -> None:
    """Forcing it could come to a dead end: no token at all would be allowed."""
    raw: dict[str, Any] = json.loads(tiny_tokenizer_json())
    snowman = {**raw["added_tokens"][0], "id": TOKENIZER.vocab_size, "content": "☃"}
    raw["added_tokens"].append({**snowman, "special": False})
    vocabulary = raw["model"]["vocab"]
    for character in "âĺĥ":
        vocabulary[f"unused {character}"] = vocabulary.pop(character)
    tokenizer = Tokenizer(json.dumps(raw).encode())
    prompt = PromptLayout(ModelEntry(name="tiny", source="tiny"), tokenizer, 64).lay_out("x ☃", "")
    assert prompt.healed_ids == ()
    assert prompt.token_ids[-1] == TOKENIZER.vocab_size
