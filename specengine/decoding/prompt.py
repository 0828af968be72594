"""From the text around a cursor to the tokens that the target reads.

Markers come from models.toml, lengths are real tokens. A text that is too long loses its far end:
the prefix its beginning, in steps, so that it keeps its first token over many keystrokes and the
stored KV stays of use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from specengine.decoding.forced_text import ForcedText, Vocabulary, safe_boundary
from specengine.models.registry import ModelEntry
from specengine.models.tokenizer import Tokenizer

CUT_STEPS: Final = 4
"""A prefix is cut by multiples of a quarter of its limit."""

SUFFIX_SHARE: Final = 4
"""At most one token in four goes to the suffix."""

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

        Raises:  ConfigError when the tokenizer lacks one of them.
        """
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer)
        self._max_tokens = max_tokens
        self._begin = (tokenizer.special_id(entry.begin),) if entry.begin else ()
        self._fim: tuple[int, int, int] | None = None
        if entry.fim is not None:
            prefix, suffix, middle = entry.fim.prefix, entry.fim.suffix, entry.fim.middle
            special_id = tokenizer.special_id
            self._fim = (special_id(prefix), special_id(suffix), special_id(middle))

    def lay_out(self, prefix: str, suffix: str, *, heal: bool = True) -> Prompt:
        """Return the prompt for a cursor between two texts."""
        max_chars = self._max_tokens * CHARS_PER_TOKEN
        kept, healed = self._split(_last(prefix, max_chars), heal=heal)
        forced_bytes = b"".join(map(self._tokenizer.token_bytes, healed))
        forced = ForcedText(self._tokenizer, self._vocabulary, forced_bytes)
        if self._fim is None or not suffix:
            ids = self._begin + _last(kept, self._max_tokens - len(self._begin))
        else:
            ids = self._begin + self._fill_in(kept, suffix[:max_chars], self._fim)
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
        self, kept: tuple[int, ...], suffix: str, markers: tuple[int, int, int]
    ) -> tuple[int, ...]:
        room = self._max_tokens - len(self._begin) - len(markers)
        after = tuple(self._tokenizer.encode(suffix))[: room // SUFFIX_SHARE]
        before = _last(kept, room - len(after))
        prefix_id, suffix_id, middle_id = markers
        return (prefix_id, *before, suffix_id, *after, middle_id)


def _last(parts: S, max_len: int) -> S:
    """Return the end of a text or of its tokens; its beginning moves in steps."""
    excess = len(parts) - max_len
    if excess <= 0:
        return parts
    step = max(1, max_len // CUT_STEPS)
    return parts[-(-excess // step) * step :]
