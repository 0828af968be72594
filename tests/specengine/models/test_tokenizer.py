from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.errors import ConfigError, LoadError
from specengine.models.gguf_file import GgufFile
from specengine.models.tokenizer import Tokenizer
from tests.specengine.models.tiny_gguf import SPECIAL, TinyGguf

PRE_TOKENIZERS = ("smollm", "starcoder", "gpt-2", "qwen2", "llama-bpe")


@pytest.fixture(scope="module", params=PRE_TOKENIZERS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    gguf = GgufFile(TinyGguf(pre=request.param).write(path))
    return Tokenizer(gguf.build_tokenizer().to_str().encode(), [1])


@pytest.fixture(scope="module")
def content(gguf_path: Path) -> bytes:
    return GgufFile(gguf_path).build_tokenizer().to_str().encode()


def changed(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    raw = json.loads(content)
    change(raw)
    return json.dumps(raw).encode()


@given(st.text())
@settings(max_examples=60, deadline=None)
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(alphabet="ar'e 1\n(é\t", max_size=12), st.text(alphabet="ar'e 1\n(é\t", max_size=6))
@settings(max_examples=150, deadline=None)
def test_following_text_changes_at_most_two_words(
    tokenizer: Tokenizer, text: str, following: str
) -> None:
    words = tokenizer.encode_words(text)
    num_words = words[-1][1] + 1 if words else 0
    stable = [token for token, word in words if word < num_words - 2]
    assert tokenizer.encode(text + following)[: len(stable)] == stable


def test_words_and_ids_agree(tokenizer: Tokenizer) -> None:
    text = "def f(x): return 'it''s'  # 12"
    words = tokenizer.encode_words(text)
    assert tokenizer.encode(text) == [token for token, _ in words]
    assert list(range(words[-1][1] + 1)) == sorted({word for _, word in words})


@pytest.mark.parametrize("text", SPECIAL)
def test_special_text_in_source_code_stays_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(f"x = '{text}'")
    assert not tokenizer.special_ids & set(ids)
    assert f"x = '{text}'" == tokenizer.decode(ids)


def test_added_token_in_angle_brackets_stays_text_even_if_not_special(content: bytes) -> None:
    """Qwen marks `<|fim_prefix|>` and `<tool_call>` as added, but not as special."""

    def unmark(raw: dict[str, Any]) -> None:
        for token in raw["added_tokens"]:
            token["special"] = False

    tokenizer = Tokenizer(changed(content, unmark))
    assert frozenset({0, 1, 2}) == tokenizer.special_ids
    assert not tokenizer.special_ids & set(tokenizer.encode("<file_sep>"))


def test_added_word_that_is_no_marker_is_used_for_text(content: bytes) -> None:
    """Some vocabularies add runs of spaces this way; the model has seen them as one token."""
    word = {
        "id": Tokenizer(content).vocab_size,
        "content": "    ",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    tokenizer = Tokenizer(changed(content, lambda raw: raw["added_tokens"].append(word)))
    (token,) = tokenizer.encode("    ")
    assert tokenizer.token_bytes(token) == b"    "


@pytest.mark.parametrize("token", [900, 3_000_000])
def test_added_token_with_an_impossible_id_is_refused(content: bytes, token: int) -> None:
    """The library would give it another id and say nothing."""
    word = {"id": token, "content": "<x>", "special": True}
    word |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    with pytest.raises(LoadError, match="has id"):
        Tokenizer(changed(content, lambda raw: raw["added_tokens"].append(word)))


def test_vocabulary_beyond_any_real_one_is_refused(content: bytes) -> None:
    far = changed(content, lambda raw: raw["model"]["vocab"].update(zz=2**31))
    with pytest.raises(LoadError, match="has a token with id"):
        Tokenizer(far)


def test_normalisation_is_off(content: bytes) -> None:
    """Qwen's file asks for NFC, which would change what the user has typed."""
    tokenizer = Tokenizer(changed(content, lambda raw: raw.update(normalizer={"type": "NFC"})))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "e\u0301"


def test_half_a_surrogate_pair_becomes_a_replacement(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_empty_text_has_no_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.encode_words("") == []
    assert tokenizer.decode([]) == ""


def test_special_and_unknown_ids_have_no_bytes(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_bytes(token) for token in (0, 1, 2, -1, 10**6)] == [b""] * 5


def test_ids_of_text_have_bytes(tokenizer: Tokenizer) -> None:
    first, last = len(SPECIAL), tokenizer.vocab_size
    assert all(tokenizer.token_bytes(token) for token in range(first, last))


def test_special_id_is_found_by_its_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_id("<file_sep>") == 2


@pytest.mark.parametrize("text", ["<fim_prefix>", "def", ""])
def test_special_id_refuses_what_is_not_special(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(ConfigError, match="no special token"):
        tokenizer.special_id(text)


def test_end_ids_come_from_configs_and_known_names(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [8, 9]}')
    assert frozenset({0, 1, 7, 8, 9}) == Tokenizer.load(tmp_path).end_ids


def test_configs_may_be_absent(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert frozenset({0, 1}) == Tokenizer.load(tmp_path).end_ids


def test_damaged_config_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"config\.json is damaged"):
        Tokenizer.load(tmp_path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"model": {"type": "BPE"}}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model": 3}',
    ],
)
def test_damaged_content_is_a_load_error(content: bytes) -> None:
    with pytest.raises(LoadError):
        Tokenizer(content)


def test_sentencepiece_is_refused_by_name(content: bytes) -> None:
    other = changed(content, lambda raw: raw.update(pre_tokenizer={"type": "Metaspace"}))
    with pytest.raises(LoadError, match="not byte-level BPE"):
        Tokenizer(other)


def test_same_content_has_no_difference(content: bytes) -> None:
    assert Tokenizer(content).difference(Tokenizer(content)) is None


def test_longer_vocabulary_is_no_difference(content: bytes) -> None:
    longer = changed(content, lambda raw: raw["model"]["vocab"].update(zz=999))
    assert Tokenizer(content).difference(Tokenizer(longer)) is None


def test_difference_names_the_first_token(content: bytes) -> None:
    def swap(raw: dict[str, Any]) -> None:
        vocabulary = raw["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    ours = Tokenizer(content)
    first = ours.encode("a")[0]
    difference = ours.difference(Tokenizer(changed(content, swap)))
    assert f"token {first} is b'a' in one and b'b' in the other" == difference


def test_special_tokens_differ_by_their_texts(content: bytes) -> None:
    """None of them writes bytes, and yet the end of one may be the padding of the other."""

    def swap(raw: dict[str, Any]) -> None:
        first, second = (raw["added_tokens"][index] for index in (0, 1))
        first["content"], second["content"] = second["content"], first["content"]
        vocabulary = raw["model"]["vocab"]
        ours, theirs = first["content"], second["content"]
        vocabulary[ours], vocabulary[theirs] = vocabulary[theirs], vocabulary[ours]

    difference = Tokenizer(content).difference(Tokenizer(changed(content, swap)))
    assert difference == f"token 0 is {SPECIAL[0]!r} in one and {SPECIAL[1]!r} in the other"


@pytest.mark.model
def test_default_model_writes_source_code_back(default_model_dir: Path) -> None:
    tokenizer = Tokenizer.load(default_model_dir)
    text = Path(__file__).read_text(encoding="utf-8")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.model
def test_default_model_cuts_digits_and_ends_at_two_tokens(default_model_dir: Path) -> None:
    tokenizer = Tokenizer.load(default_model_dir)
    assert tokenizer.encode("123") == [33, 34, 35]
    assert frozenset({0, 2}) == tokenizer.end_ids
    assert (tokenizer.vocab_size, tokenizer.special_id("<file_sep>")) == (49_152, 5)
