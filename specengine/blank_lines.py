"""Blank lines that open a text in a language of indented blocks; of server and benchmark."""

from __future__ import annotations

import re
from typing import Final

_OPENING: Final = re.compile(r"(?:[ \t]*\n)+(?P<indent>[ \t]+)(?P<word>[^\s@#]\w*)")
_DEFINING: Final = ("async", "class", "def")


def opening_len(text: str, before: str) -> int:
    """Return the length of blank lines before a line of a block, with an indentation given twice.

    ``before`` is the cursor's line, which is blank already. Above a definition or a comment they
    are style, and stay; they stay for now while a word grows that may become a definition.
    """
    opening = _OPENING.match(text)
    if opening is None or not opening["indent"].startswith(before):
        return 0
    word, grows = opening["word"], opening.end() == len(text)
    if any(each == word or (grows and each.startswith(word)) for each in _DEFINING):
        return 0
    return opening.start("indent") + len(before)
