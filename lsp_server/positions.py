"""Columns between an editor's units, code points and bytes: the only place that converts them.

It knows one line or one text at a time, never a document. A code point outside the BMP counts
2 units in UTF-16; every code point counts 1 to 4 in UTF-8 and 1 in UTF-32. A column inside a
code point means its start; a column behind the line means its end.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Encoding = Literal["utf-8", "utf-16", "utf-32"]
"""What an editor counts columns in; negotiated at ``initialize``."""

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_WIRE: Final = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
"""Codec and bytes of a unit."""

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def chars_from_units(line: str, units: int, encoding: Encoding) -> int:
    """Return the code points before a column of the editor."""
    if units <= 0:
        return 0
    if encoding == "utf-32" or line.isascii():
        return min(units, len(line))
    # Each code point takes a unit at least; half of one at the cut is ignored.
    name, width = _WIRE[encoding]
    data = line[:units].encode(name)
    return len(data[: units * width].decode(name, "ignore"))


def units_from_chars(line: str, chars: int, encoding: Encoding) -> int:
    """Return the editor's column after a number of code points."""
    chars = max(0, min(chars, len(line)))
    if encoding == "utf-32" or line.isascii():
        return chars
    name, width = _WIRE[encoding]
    return len(line[:chars].encode(name)) // width


def bytes_from_chars(text: str, chars: int) -> int:
    """Return the UTF-8 bytes that the first code points take."""
    return len(text[: max(0, chars)].encode())


def chars_from_bytes(data: bytes, num_bytes: int) -> int:
    """Return the code points that begin within the first bytes of valid UTF-8."""
    # A character that the cut runs through becomes one replacement character.
    return len(data[:num_bytes].decode(errors="replace"))


def replace_surrogates(text: str) -> str:
    """Return text that can be encoded: a lone surrogate becomes U+FFFD, which is as wide."""
    return text if text.isascii() else _LONE_SURROGATE.sub(REPLACEMENT, text)
