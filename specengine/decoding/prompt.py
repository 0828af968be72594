"""From the text around a cursor to the tokens that the target reads.

Markers come from models.toml, lengths are real tokens. A text that is too long loses its far end:
the prefix its beginning, in steps, so that it keeps its first token over many keystrokes and the
stored KV stays of use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from specengine.decoding.forced_text import ForcedText, Vocabulary, safe_boundary
from specengine.errors import ConfigError
from specengine.models.registry import FimTemplate, ModelEntry
from specengine.models.tokenizer import Tokenizer

CUT_STEPS: Final = 4
"""A prefix is cut by multiples of a quarter of its limit."""

SUFFIX_SHARE: Final = 4
"""At most one token in four goes to the suffix."""

FILES_SHARE: Final = 2
"""At most one token in two goes to other files, however short prefix and suffix are.

Were it what these leave free, each key would move the files' end and with it all that follows.
"""

REPO_NAME: Final = "project"
"""Stands for a repository's name, which nobody tells; a model that has learnt one expects one."""

CHARS_PER_TOKEN: Final = 16
"""Text beyond so many characters a token is cut before it is tokenised, which takes its time."""


S = TypeVar("S", str, tuple[int, ...])


@dataclass(frozen=True)
class Prompt:
    """What one request starts from."""

    token_ids: tuple[int, ...]
    """Never empty."""
    healed_ids: tuple[int, ...]
    """The tokens that were stepped over; the likely first draft."""
    forced: ForcedText
    """The text of those tokens, which the completion begins with."""


class PromptLayout:
    """Lays out prompts for one model."""

    def __init__(self, entry: ModelEntry, tokenizer: Tokenizer, max_tokens: int) -> None:
        """Resolve the markers that models.toml names.

        Raises:  ConfigError with model and key when the tokenizer lacks one of them.
        """
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer)
        self._max_tokens = max_tokens

        def marker(key: str, text: str | None) -> tuple[int, ...]:
            return _marker(entry, tokenizer, key, text)

        self._begin = marker("begin", entry.begin)
        self._repo_name = marker("repo_name", entry.repo_name)
        self._file_sep = marker("file_sep", entry.file_sep)
        self._fim = fim = entry.fim
        self._before_prefix = marker("fim.prefix", fim and fim.prefix)
        self._before_suffix = marker("fim.suffix", fim and fim.suffix)
        self._before_middle = marker("fim.middle", fim and fim.middle)
        for text in fim.end if fim else ():
            # Sessions end at every special token, so at these too: they only have to be some.
            marker("fim.end", text)

    @property
    def reads_files(self) -> bool:
        """Whether the model has learnt to read other files."""
        return bool(self._file_sep)

    def lay_out(
        self,
        prefix: str,
        suffix: str,
        *,
        heal: bool = True,
        files: Sequence[tuple[str, str]] = (),
    ) -> Prompt:
        """Return the prompt for a cursor between two texts.

        What changes least comes first, so that its stored KV is reused: ``files``, each a path and
        a text, which a model that never learnt to read files does not get; they come in the order
        given, and what is too much is cut from the end. Then prefix and suffix. With the prefix
        first, each typed key moves the suffix, which is read again. With the suffix first, all
        tokens up to the last words of the prefix stay while the user types at the cursor. An empty
        suffix is left out with all markers.
        """
        max_chars = self._max_tokens * CHARS_PER_TOKEN
        kept, healed = self._split(_last(prefix, max_chars), heal=heal)
        forced_bytes = b"".join(map(self._tokenizer.token_bytes, healed))
        forced = ForcedText(self._tokenizer, self._vocabulary, forced_bytes)
        front = self._begin + self._lay_out_files(files)
        room = self._max_tokens - len(front)
        if self._fim is None or not suffix:
            ids = front + _last(kept, room)
        else:
            ids = front + self._fill_in(kept, suffix[:max_chars], room, self._fim)
        # Only a token can be continued: an empty text begins where a document begins.
        return Prompt(ids or (min(self._tokenizer.end_ids, default=0),), healed, forced)

    def _split(self, prefix: str, *, heal: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        words = self._tokenizer.encode_words(prefix)
        ids = tuple(token_id for token_id, _ in words)
        end = safe_boundary(words, self._tokenizer) if heal else len(ids)
        healed = b"".join(map(self._tokenizer.token_bytes, ids[end:]))
        if not self._vocabulary.can_spell(healed):
            end = len(ids)
        return ids[:end], ids[end:]

    def _fill_in(
        self, kept: tuple[int, ...], suffix: str, room: int, fim: FimTemplate
    ) -> tuple[int, ...]:
        markers = self._before_prefix + self._before_suffix + self._before_middle
        room = max(0, room - len(markers))
        after = tuple(self._tokenizer.encode(suffix))[: room // SUFFIX_SHARE]
        before = self._before_prefix + _last(kept, room - len(after))
        after = self._before_suffix + after
        texts = after + before if fim.order == "suffix_first" else before + after
        return texts + self._before_middle

    def _lay_out_files(self, files: Sequence[tuple[str, str]]) -> tuple[int, ...]:
        """Return other files and the marker of the one that the prefix begins, or nothing."""
        if not files or not self._file_sep:
            return ()
        ids: tuple[int, ...] = ()
        if self._repo_name:
            ids = self._repo_name + tuple(self._tokenizer.encode(f"{REPO_NAME}\n"))
        num_before, end = len(ids), self._max_tokens // FILES_SHARE - len(self._file_sep)
        for path, text in files:
            head = self._file_sep + tuple(self._encode_start(f"{path}\n", end))
            room = end - len(ids) - len(head)
            if room <= 0:
                break
            ids += head + tuple(self._encode_start(text, room))[:room]
        return ids + self._file_sep if len(ids) > num_before else ()

    def _encode_start(self, text: str, num_tokens: int) -> list[int]:
        """Return tokens of a text, at least as many as wished for where there are so many."""
        return self._tokenizer.encode(text[: max(num_tokens, 0) * CHARS_PER_TOKEN])


def _marker(entry: ModelEntry, tokenizer: Tokenizer, key: str, text: str | None) -> tuple[int, ...]:
    """Return the id of a marker that models.toml names, or nothing where it names none."""
    if text is None:
        return ()
    try:
        return (tokenizer.special_id(text),)
    except ConfigError as error:
        raise ConfigError(
            f"{key} of the model {entry.name}: its tokenizer has no special token {text!r}.",
            hint=error.hint,
        ) from None


def _last(parts: S, max_len: int) -> S:
    """Return the end of a text or of its tokens; its beginning moves in steps."""
    excess = len(parts) - max_len
    if excess <= 0:
        return parts
    step = max(1, max_len // CUT_STEPS)
    return parts[-(-excess // step) * step :]
