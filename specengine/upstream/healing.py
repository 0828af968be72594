r"""Steps back from the cursor to a place where text after it cannot change the tokens before.

A prompt that ends inside a token makes a model write badly: ``"\n    "`` typed, where it would have
written ``"\n   "`` and ``" return"``. Without the model's tokenizer the place is found by how such
tokenizers cut a text into words, and no token crosses the border of two. What is stepped over is
forced: the answer must begin with it. Few servers can be made to, so whoever asks must be ready to
ask again from the cursor itself.
"""

from __future__ import annotations

import re
from typing import Final

from specengine.models.families import Splits

MAX_FORCED_CHARS: Final = 48
"""More is not stepped over: long words are cut into several tokens, and the last is a short one."""

_LETTERS: Final = r"[^\W\d_]+"
_SIGN: Final = r"(?:[^\s\w]|_)"
_LAST: Final[dict[Splits, re.Pattern[str]]] = {
    "gpt2": re.compile(rf"(?:\s+| ?{_LETTERS}| ?{_SIGN}+)\Z"),
    # A blank joins the letters, or a sign that stands alone.
    "cl100k": re.compile(rf"(?:[^\S\n]+|(?:[^\S\n]|(?<!{_SIGN}){_SIGN})?{_LETTERS}| ?{_SIGN}+)\Z"),
    "blanks": re.compile(rf"(?:[^\S\n]+| ?{_LETTERS}| ?{_SIGN}+)\Z"),
}


def split(prefix: str, splits: Splits) -> tuple[str, str]:
    """Return what of a text stays before the cursor, and the end of it that is to be forced."""
    tail = prefix[-MAX_FORCED_CHARS - 1 :]
    found = _LAST[splits].search(tail)
    if found is None or len(found[0]) > MAX_FORCED_CHARS or len(found[0]) == len(prefix):
        return prefix, ""
    return prefix[: len(prefix) - len(found[0])], found[0]


class Forced:
    """What an answer must begin with, as it comes piece by piece."""

    def __init__(self, text: str) -> None:
        self._rest = text
        self.is_met = not text
        """Whether all of it has come."""

    def take(self, piece: str) -> str | None:
        """Return what of a piece stands behind the forced text; None if the answer disagrees."""
        if self.is_met:
            return piece
        length = min(len(piece), len(self._rest))
        if piece[:length] != self._rest[:length]:
            return None
        self._rest = self._rest[length:]
        self.is_met = not self._rest
        return piece[length:]
