from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.decoding.prompt import (
    CUT_STEPS,
    FILES_SHARE,
    REPO_NAME,
    SUFFIX_SHARE,
    Prompt,
    PromptLayout,
)
from specengine.errors import ConfigError
from specengine.models.registry import FimTemplate, ModelEntry
from specengine.models.tokenizer import Tokenizer
from tests.specengine.tiny import (
    BEGIN,
    END,
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
SUFFIX_FIRST = FimTemplate(FIM_PREFIX, FIM_SUFFIX, order="suffix_first")
SUFFIX_FIRST_MARKED = FimTemplate(FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, "suffix_first")
TEMPLATES = (FIM, SUFFIX_FIRST, SUFFIX_FIRST_MARKED)
# The tiny tokenizer has no tokens for these; what they are called does not matter here.
REPO, FILE = END, BEGIN
BEGIN_ID, PREFIX_ID, SUFFIX_ID, MIDDLE_ID = map(TOKENIZER.special_id, SPECIAL[1:])
CODE = "def f(self):\n    return self\n"


def layout(
    max_tokens: int = 64,
    *,
    fim: FimTemplate | None = None,
    begin: str | None = None,
    repo_name: str | None = None,
    file_sep: str | None = None,
) -> PromptLayout:
    entry = ModelEntry("tiny", "tiny", fim=fim, begin=begin, repo_name=repo_name, file_sep=file_sep)
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


@pytest.mark.parametrize("fim", [SUFFIX_FIRST, SUFFIX_FIRST_MARKED])
def test_suffix_may_come_first(fim: FimTemplate) -> None:
    prompt = layout(fim=fim).lay_out("def f(self):\n    x", "\n    return 1")
    before, after = TOKENIZER.encode("def f(self):\n   "), TOKENIZER.encode("\n    return 1")
    middle = (MIDDLE_ID,) if fim.middle else ()
    assert prompt.token_ids == (SUFFIX_ID, *after, PREFIX_ID, *before, *middle)
    assert prompt.forced.remaining == b" x"


def test_without_a_middle_marker_the_middle_goes_on_from_the_prefix() -> None:
    """Prefix and boundary are those of a plain prompt, so the model writes the same way on."""
    plain, filled = layout().lay_out(CODE, ""), layout(fim=SUFFIX_FIRST).lay_out(CODE, "x")
    assert filled.token_ids[-len(plain.token_ids) :] == plain.token_ids
    assert (filled.healed_ids, filled.forced.remaining) == (
        plain.healed_ids,
        plain.forced.remaining,
    )


def test_with_the_suffix_first_each_key_only_adds_tokens() -> None:
    """Else the stored KV would end where the prefix does."""
    typing = layout(fim=SUFFIX_FIRST)
    prompts = [typing.lay_out(CODE[:at], "\nx = 1").token_ids for at in range(len(CODE) + 1)]
    assert all(after[: len(before)] == before for before, after in pairwise(prompts))


def test_files_come_first_in_their_order() -> None:
    files = [("a.py", "x = 1\n"), ("b.py", "y = 2\n")]
    prompt = layout(fim=FIM, repo_name=REPO, file_sep=FILE).lay_out(CODE, "z", files=files)
    sep, *alone = BEGIN_ID, *layout(fim=FIM).lay_out(CODE, "z").token_ids
    first, second = (TOKENIZER.encode(path + "\n") + TOKENIZER.encode(text) for path, text in files)
    repo = (END_ID, *TOKENIZER.encode(f"{REPO_NAME}\n"))
    assert prompt.token_ids == (*repo, sep, *first, sep, *second, sep, *alone)


def test_repository_needs_no_name() -> None:
    prompt = layout(file_sep=FILE).lay_out("", "", files=[("a", "b")])
    assert prompt.token_ids == (BEGIN_ID, *TOKENIZER.encode("a\nb"), BEGIN_ID)


@pytest.mark.parametrize("file_sep", [None, FILE])
def test_without_files_or_their_marker_there_is_nothing_of_them(file_sep: str | None) -> None:
    files = [] if file_sep else [("a.py", "x = 1\n")]
    typing = layout(repo_name=REPO, file_sep=file_sep)
    assert typing.lay_out(CODE, "", files=files).token_ids == layout().lay_out(CODE, "").token_ids


def test_files_take_no_more_than_their_share_and_lose_their_end() -> None:
    files = [("a", "x=" * 5), ("b", "y=" * 500), ("c", "z=")]
    prompts = [
        layout(64, file_sep=FILE).lay_out(CODE * num, "", files=files).token_ids for num in (0, 9)
    ]
    fronts = [ids[: 64 // FILES_SHARE] for ids in prompts]
    text = TOKENIZER.decode(fronts[0])
    assert fronts[0] == fronts[1]
    assert fronts[0][-1] == BEGIN_ID
    assert text == ("a\n" + "x=" * 5 + "b\n" + "y=" * 500)[: len(text)]


def test_file_of_which_only_the_path_would_fit_is_left_out() -> None:
    prompt = layout(16, file_sep=FILE).lay_out(CODE, "", files=[("0123456789", "x")])
    assert BEGIN_ID not in prompt.token_ids


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


@settings(max_examples=300)
@given(
    prefix=st.integers(0, 120).map(lambda n: "x=" * n),
    suffix=st.integers(0, 60).map(lambda n: "y;" * n),
    files=st.lists(st.tuples(st.just("p"), st.integers(1, 40).map(lambda n: "z;" * n)), max_size=3),
    max_tokens=st.integers(16, 70),
    fim=st.sampled_from([None, *TEMPLATES]),
    begin=st.sampled_from([None, BEGIN]),
)
def test_prompt_is_never_longer_than_its_limit(
    prefix: str,
    suffix: str,
    files: list[tuple[str, str]],
    max_tokens: int,
    fim: FimTemplate | None,
    begin: str | None,
) -> None:
    typing = layout(max_tokens, fim=fim, begin=begin, file_sep=END)
    prompt = typing.lay_out(prefix, suffix, files=files)
    assert len(prompt.token_ids) <= max_tokens
    text = TOKENIZER.decode(id for id in prompt.token_ids if id not in TOKENIZER.special_ids)
    before = "".join(character for character in text if character in "x=")
    kept = prefix.removesuffix(TOKENIZER.decode(prompt.healed_ids))
    assert kept.endswith(before)
    # Every character is a token here.
    room = max_tokens - (len(prompt.token_ids) - len(before))
    assert len(before) >= min(len(kept), room - room // CUT_STEPS)


TEXTS = st.lists(
    st.sampled_from([*SPECIAL, "self", " ", "\n    ", "def", "é", "'re", "x=", "<", "\ud800"]),
    max_size=40,
).map("".join)


@settings(max_examples=300)
@given(
    prefix=TEXTS,
    suffix=TEXTS,
    files=st.lists(st.tuples(TEXTS, TEXTS), max_size=3),
    max_tokens=st.integers(16, 200),
    fim=st.sampled_from(TEMPLATES),
    heal=st.booleans(),
)
def test_markers_are_those_of_the_template_whatever_the_texts_hold(
    prefix: str,
    suffix: str,
    files: list[tuple[str, str]],
    max_tokens: int,
    fim: FimTemplate,
    heal: bool,
) -> None:
    typing = layout(max_tokens, fim=fim, repo_name=REPO, file_sep=FILE)
    prompt = typing.lay_out(prefix, suffix, heal=heal, files=files)
    assert 0 < len(prompt.token_ids) <= max_tokens
    markers = [at for at in prompt.token_ids if at in TOKENIZER.special_ids]
    gap = [at for at in markers if at not in (END_ID, BEGIN_ID)]
    order = [PREFIX_ID, SUFFIX_ID] if fim is FIM else [SUFFIX_ID, PREFIX_ID]
    assert gap == ([*order, *([MIDDLE_ID] if fim.middle else [])] if suffix else [])
    num_files = markers.count(BEGIN_ID)
    if num_files:
        assert 2 <= num_files <= len(files) + 1
        assert markers[: num_files + 1] == [END_ID] + [BEGIN_ID] * num_files
    # What follows the last marker but the middle's is the end of the prefix.
    if fim is not FIM or not suffix:
        ids = prompt.token_ids[:-1] if prompt.token_ids[-1] == MIDDLE_ID else prompt.token_ids
        first = max((at + 1 for at, id in enumerate(ids) if id in TOKENIZER.special_ids), default=0)
        end = TOKENIZER.encode(prefix)
        ids = (*ids[first:], *prompt.healed_ids)
        assert list(ids) == end[len(end) - len(ids) :]


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
    fim: dict[str, Any] = {"prefix": FIM_PREFIX, "suffix": FIM_SUFFIX, "middle": FIM_MIDDLE}
    broken: dict[str, dict[str, Any]] = {
        **{key: {key: marker} for key in ("begin", "repo_name", "file_sep")},
        **{f"fim.{key}": {"fim": FimTemplate(**{**fim, key: marker})} for key in fim},
        "fim.end": {"fim": FimTemplate(**fim, end=(BEGIN, marker))},
    }
    for key, fields in broken.items():
        words = f"^{key} of the model tiny: .*no special token '{marker}'"
        with pytest.raises(ConfigError, match=words):
            layout(**fields)


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


def test_whether_files_are_read_is_told() -> None:
    assert layout(file_sep=FILE).reads_files
    assert not layout(repo_name=REPO).reads_files
