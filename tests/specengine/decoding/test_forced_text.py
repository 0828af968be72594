from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specengine.decoding.forced_text import (
    MAX_HEALED_TOKENS,
    ForcedText,
    Vocabulary,
    safe_boundary,
)
from specengine.models.gguf_file import GgufFile
from specengine.models.tokenizer import Tokenizer
from tests.specengine.models.tiny_gguf import TinyGguf
from tests.specengine.tiny import END_ID, tiny_tokenizer, tiny_tokenizer_json

TOKENIZER = tiny_tokenizer()
VOCABULARY = Vocabulary(TOKENIZER)

TRICKY = "ar'evlLS1 \n\r\t(=é;_\u00a0\u3000\u2028\x0b\x85\x1c中\u0301"
"""Contractions, digits, and every kind of white space that is no space."""

TEXTS = st.text(TRICKY, max_size=7)
FOLLOWING = st.text(TRICKY, min_size=1, max_size=3)


def forced(text: bytes) -> ForcedText:
    return ForcedText(TOKENIZER, VOCABULARY, text)


def ids_of(*pieces: str) -> list[int]:
    return [token_id for piece in pieces for token_id in TOKENIZER.encode(piece)]


def boundary(text: str) -> int:
    return safe_boundary(TOKENIZER.encode_words(text), TOKENIZER)


@settings(max_examples=400)
@given(TEXTS, FOLLOWING)
def test_tokens_before_the_boundary_stay_whatever_follows(text: str, following: str) -> None:
    end = boundary(text)
    assert TOKENIZER.encode(text + following)[:end] == TOKENIZER.encode(text)[:end]


@pytest.fixture(scope="module", params=["smollm", "starcoder", "gpt-2", "qwen2", "llama-bpe"])
def other_tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    gguf = GgufFile(TinyGguf(pre=request.param).write(path))
    return Tokenizer(gguf.build_tokenizer().to_str().encode())


def word_starts(text: str, tokenizer: Tokenizer, num_bytes: int) -> list[int]:
    """Return where words begin, in bytes, up to and with a place."""
    starts: list[int] = []
    at, last = 0, -1
    for token_id, word in tokenizer.encode_words(text):
        if word != last:
            starts.append(at)
        at, last = at + len(tokenizer.token_bytes(token_id)), word
    return [start for start in [*starts, at] if start <= num_bytes]


@settings(max_examples=300)
@given(text=TEXTS, following=FOLLOWING)
@example("\n\u00a0", "\n")
@example("\r\u2028", "\n")
@example("x'r", "e")
@example("x'V", "E")
def test_words_before_the_boundary_stay_whatever_follows(
    other_tokenizer: Tokenizer, text: str, following: str
) -> None:
    """Holds for any merges: a vocabulary may have a token for each word that there is."""
    words = other_tokenizer.encode_words(text)
    ids = [token_id for token_id, _ in words[: safe_boundary(words, other_tokenizer)]]
    num_bytes = len(b"".join(map(other_tokenizer.token_bytes, ids)))
    before = word_starts(text, other_tokenizer, num_bytes)
    assert word_starts(text + following, other_tokenizer, num_bytes) == before


@pytest.mark.parametrize(
    ("kept", "stepped_over"),
    [
        ("", ""),
        ("", "x"),
        ("def", " f"),
        ("x =", "\n    "),
        ("x =", " \t\n\n  "),
        ("x", "  "),
        ("it", "'"),
        ("it", "'r"),
        ("it", "'re"),
        ("return", " self"),
        ("f", "("),
        ("x =", " " * 40),
    ],
)
def test_last_word_is_stepped_over(kept: str, stepped_over: str) -> None:
    end = boundary(kept + stepped_over)
    assert TOKENIZER.encode(kept + stepped_over)[:end] == TOKENIZER.encode(kept)


@pytest.mark.parametrize("extra", [0, 1, 30])
def test_long_word_is_healed_by_its_last_token_only(extra: int) -> None:
    text = "x=" + "7" * (MAX_HEALED_TOKENS + extra)
    num_tokens = len(TOKENIZER.encode(text))
    num_healed = num_tokens - boundary(text)
    assert num_healed == (MAX_HEALED_TOKENS if extra == 0 else 1)


def fitting_by_definition(text: bytes) -> list[int]:
    every = ((at, TOKENIZER.token_bytes(at)) for at in range(TOKENIZER.vocab_size))
    return [at for at, own in every if own and (own.startswith(text) or text.startswith(own))]


FORCED = st.text("dief self\n  return=é12", min_size=1, max_size=12).map(str.encode)


@given(FORCED)
def test_allowed_are_all_tokens_that_fit(text: bytes) -> None:
    allowed = forced(text).allowed()
    assert allowed is not None
    assert allowed.tolist() == fitting_by_definition(text)


@settings(max_examples=200)
@given(FORCED, st.data())
def test_any_path_of_allowed_tokens_spells_the_forced_text(
    text: bytes, data: st.DataObject
) -> None:
    state, written = forced(text), b""
    while (allowed := state.allowed()) is not None:
        choice = data.draw(st.sampled_from(allowed.tolist()))
        assert len(written) < len(text)
        written += TOKENIZER.token_bytes(choice)
        state = state.after(choice)
        assert state.remaining == text[len(written) :]
    assert written.startswith(text)


def test_nothing_forced_allows_everything() -> None:
    assert forced(b"").allowed() is None
    assert forced(b"").after(ids_of("x")[0]).allowed() is None


def test_token_may_run_over_the_end_of_the_forced_text() -> None:
    (token_id,) = ids_of(" return")
    allowed = forced(b" re").allowed()
    assert allowed is not None
    assert token_id in allowed
    assert forced(b" re").after(token_id).remaining == b""


@pytest.mark.parametrize("token_id", [END_ID, 100_000, *ids_of("x")])
def test_token_that_does_not_fit_leaves_what_is_forced(token_id: int) -> None:
    state = forced(b"self")
    assert state.after(token_id) == state


def test_special_tokens_are_never_allowed() -> None:
    for text in (b"<end>", b"<", b"x"):
        allowed = forced(text).allowed()
        assert allowed is not None
        assert not TOKENIZER.special_ids & set(allowed.tolist())


def test_tokens_of_equal_bytes_are_all_allowed() -> None:
    """An added token may spell what a merge spells already."""
    raw: dict[str, Any] = json.loads(tiny_tokenizer_json())
    twin = {**raw["added_tokens"][0], "id": TOKENIZER.vocab_size, "content": " self"}
    raw["added_tokens"].append({**twin, "special": False})
    tokenizer = Tokenizer(json.dumps(raw).encode())
    allowed = ForcedText(tokenizer, Vocabulary(tokenizer), b" self").allowed()
    assert allowed is not None
    assert {*ids_of(" self"), TOKENIZER.vocab_size} <= set(allowed.tolist())
    assert torch.equal(allowed, allowed.sort().values)


def test_every_byte_is_a_token_so_every_text_can_be_spelt() -> None:
    assert VOCABULARY.can_spell(bytes(range(256)))


def test_text_of_a_byte_that_is_no_token_cannot_be_spelt() -> None:
    raw: dict[str, Any] = json.loads(tiny_tokenizer_json())
    del raw["model"]["vocab"]["q"]
    vocabulary = Vocabulary(Tokenizer(json.dumps(raw).encode()))
    assert not vocabulary.can_spell(b"sequel")
    assert vocabulary.can_spell(b"self")
