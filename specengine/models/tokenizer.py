"""Text to token ids and back, to the byte.

Text from outside never becomes a special token, whatever it contains. Knows byte-level BPE in
`tokenizer.json` only; knows no model and no template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer

from specengine.errors import ConfigError, LoadError

MAX_VOCAB_SIZE: Final = 1 << 21
_END_TEXTS: Final = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|EOT|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 (DeepSeek writes it with these characters)
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Kind(msgspec.Struct):
    """The part of a `tokenizer.json` that says what its model is."""

    type: str | None = None


class _EndIds(msgspec.Struct):
    """The part of `config.json` and `generation_config.json` that ends a text."""

    eos_token_id: int | list[int] | None = None


class Tokenizer:
    """The tokenizer of one model folder. Reading is safe from several threads."""

    def __init__(
        self, content: bytes, end_ids: Iterable[int] = (), *, where: str = "tokenizer"
    ) -> None:
        """Build from the content of a `tokenizer.json`.

        Raises: LoadError when it is damaged or not byte-level BPE.
        """
        self._fast, added = _build(content, where)
        self._control_ids = {token.content: token.id for token in added if token.special}
        self._names = {token: text for text, token in self._control_ids.items()}
        self._bytes = _token_bytes(self._fast, added)
        self.special_ids = frozenset(self._control_ids.values())
        """Tokens that stand for no text; a model that writes one has left the source code."""
        named = {self._control_ids[text] for text in _END_TEXTS if text in self._control_ids}
        self.end_ids = frozenset({*end_ids, *named})
        """Tokens after which a model has nothing more to say."""

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read `tokenizer.json` and the end tokens that the configs beside it name.

        Raises: LoadError when a file is missing, damaged, or not byte-level BPE.
        """
        file = folder / "tokenizer.json"
        try:
            content = file.read_bytes()
        except OSError as error:
            raise LoadError(
                f"{file} cannot be read: {error.strerror}.", hint="Fetch the model again."
            ) from error
        configs = (folder / "config.json", folder / "generation_config.json")
        ends = {token for config in configs for token in _read_end_ids(config)}
        return cls(content, ends, where=str(file))

    @property
    def vocab_size(self) -> int:
        """One more than the highest id; a model's own number may be higher by padding."""
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; nothing is added before or after it."""
        return self._encode(text).ids

    def encode_words(self, text: str) -> list[tuple[int, int]]:
        """Return each id with the index of the word it lies in.

        Words are what the tokenizer cuts a text into before it merges bytes. Text that follows
        changes at most the last two: the `'` and `r` of a coming `'re`, or a line end and the
        spaces after it when another line end comes.
        """
        encoding = self._encode(text)
        words: list[tuple[int, int]] = []
        last = -1
        for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
            last = last + 1 if word is None else word
            words.append((token, last))
        return words

    def token_bytes(self, token: int) -> bytes:
        """Return the exact bytes that a token writes; none for special and unused ids."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def special_id(self, text: str) -> int:
        """Return the id of a special token by its text.

        Raises: ConfigError when the model has no such token.
        """
        if text not in self._control_ids:
            raise ConfigError(
                f"The model has no special token {text!r}.",
                hint="Correct its entry in models.toml.",
            )
        return self._control_ids[text]

    def difference(self, other: Tokenizer) -> str | None:
        """Return the first difference on the ids that both have, or None.

        Text is compared by its bytes, and special tokens, which have none, by their names.
        """
        for token, (ours, theirs) in enumerate(zip(self._bytes, other._bytes, strict=False)):
            if ours != theirs:
                return f"token {token} is {ours!r} in one and {theirs!r} in the other"
            our_name, their_name = self._names.get(token), other._names.get(token)
            if our_name != their_name and our_name is not None and their_name is not None:
                return f"token {token} is {our_name!r} in one and {their_name!r} in the other"
        return None

    def _encode(self, text: str) -> Encoding:
        try:
            return self._fast.encode(text, add_special_tokens=False)
        except TypeError:  # half a surrogate pair, which an editor may send
            return self._fast.encode(_SURROGATES.sub("\ufffd", text), add_special_tokens=False)


def _build(content: bytes, where: str) -> tuple[FastTokenizer, list[_AddedToken]]:
    try:
        # Vocabulary and merges are long, and are handed on as they are.
        raw = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        _require_byte_level(raw, where)
        tokens = msgspec.json.decode(raw.get("added_tokens", b"[]"), type=list[dict[str, object]])
        added = msgspec.convert(tokens, list[_AddedToken], strict=False)
        changed = {
            "added_tokens": _protect(tokens, added),
            # Unicode normalisation would change the bytes of the user's text.
            "normalizer": None,
            "truncation": None,
            "padding": None,
        }
        fast = FastTokenizer.from_buffer(msgspec.json.encode({**raw, **changed}))
        _require_own_ids(fast, added)
    except LoadError:
        raise
    except Exception as error:  # tokenizers raises bare Exception
        raise LoadError(f"{where} is damaged: {error}", hint="Fetch the model again.") from error
    fast.encode_special_tokens = True
    return fast, added


def _require_byte_level(raw: dict[str, msgspec.Raw], where: str) -> None:
    kind = msgspec.json.decode(raw.get("model", b"{}"), type=_Kind).type
    if kind != "BPE" or b'"ByteLevel"' not in bytes(raw.get("pre_tokenizer", b"")):
        raise LoadError(
            f"{where} is not byte-level BPE (for example sentencepiece), which does not run yet.",
            hint="Choose another model.",
        )


def _require_own_ids(fast: FastTokenizer, added: Sequence[_AddedToken]) -> None:
    """Refuse ids that the library has changed in silence, and ids beyond any real vocabulary."""
    for token in added:
        found = fast.token_to_id(token.content)
        if found != token.id:
            raise ValueError(f"the added token {token.content!r} has id {token.id}, not {found}")
    highest = max(fast.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= MAX_VOCAB_SIZE:
        raise ValueError(f"it has a token with id {highest}")


def _protect(raw: list[dict[str, object]], added: Sequence[_AddedToken]) -> list[dict[str, object]]:
    """Mark every added token of the form <…> as special, so that text never becomes one."""
    for token in added:
        token.special = token.special or bool(re.fullmatch(r"<.+>", token.content))
    return [
        {**fields, "special": token.special, "lstrip": False, "rstrip": False}
        for fields, token in zip(raw, added, strict=True)
    ]


def _token_bytes(fast: FastTokenizer, added: Sequence[_AddedToken]) -> list[bytes]:
    vocabulary = fast.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    alphabet = _Alphabet(_byte_alphabet())
    for piece, token in vocabulary.items():
        pieces[token] = piece.translate(alphabet).encode("latin-1")
    for token in added:
        pieces[token.id] = b"" if token.special else token.content.encode()
    return pieces


class _Alphabet(dict[int, int | None]):
    """From characters to the bytes that they stand for; others are left out."""

    def __missing__(self, char: int) -> None:
        return None


def _byte_alphabet() -> dict[int, int]:
    """Return which byte each character of a byte-level vocabulary stands for.

    Source: GPT-2's `bytes_to_unicode`: printable bytes are themselves, the others follow at 256.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: byte for byte in printable}
    return alphabet | {256 + index: byte for index, byte in enumerate(others)}


def _read_end_ids(config: Path) -> list[int]:
    try:
        ids = msgspec.json.decode(config.read_bytes(), type=_EndIds).eos_token_id
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise LoadError(f"{config} is damaged: {error}", hint="Fetch the model again.") from error
    return [] if ids is None else [ids] if isinstance(ids, int) else ids
