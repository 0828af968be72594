"""A person at the keys: which strokes write a text, at which moments, with which mistakes.

All is drawn from a seed, so that the same person types for every policy. It knows no editor.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

KEY_S: Final = 0.13
"""Median gap within a word: about 80 words a minute."""

SPREAD: Final = 0.35
"""Standard deviation of the gaps' logarithm."""

SLOWER: Final = {" ": 1.4, "(": 1.8, ":": 1.8, "=": 1.4, "\n": 5.0}
"""How much longer the gap after a key is; after a line somebody thinks."""

THOUGHT_SHARE: Final = 0.04
"""Part of the gaps between words in which somebody stops to think."""

THOUGHT_S: Final = 1.2

TYPO_SHARE: Final = 0.03
"""Part of the letters that are mistyped."""

DELETE_S: Final = 0.11
NOTICE_S: Final = 0.35

MAX_UNNOTICED: Final = 2
"""Keys that are typed after a wrong one before it is noticed."""

NEIGHBOURS: Final = "qwertyuiopasdfghjklzxcvbnm"
PAIRS: Final = {"(": ")", "[": "]", "{": "}"}
"""What the editor closes by itself; who types the closer then only moves over it."""


@dataclass(frozen=True)
class Stroke:
    """One key and what the editor makes of it."""

    kind: Literal["insert", "pair", "over", "delete"]
    """``pair`` inserts ``text`` and what closes it; ``over`` types over such a closer."""
    text: str
    """What is typed; nothing for ``delete``, which takes the character before the cursor."""
    pause_s: float
    """Until the next key."""
    num_done: int | None
    """So much of the text stands there now; None while there is a mistake in it."""


def strokes_of(text: str, seed: int) -> list[Stroke]:
    """Return the strokes that write a text, all brackets of which are closed in it."""
    return list(_Typist(text, random.Random(seed)).strokes())


class _Typist:
    def __init__(self, text: str, chance: random.Random) -> None:
        self._keys = keys_of(text)
        self._chance = chance
        self._closers: list[str] = []
        """What the editor has put behind the cursor, the nearest last."""

    def strokes(self) -> Iterator[Stroke]:
        num_done = 0
        for at, key in enumerate(self._keys):
            if key.isalpha() and self._chance.random() < TYPO_SHARE:
                yield from self._mistake(self._keys[at : at + 1 + MAX_UNNOTICED])
            num_done += len(key)
            yield Stroke(self._kind(key), key, self._gap_s(key), num_done)

    def _kind(self, key: str) -> Literal["insert", "pair", "over"]:
        if key in PAIRS:
            self._closers.append(PAIRS[key])
            return "pair"
        if self._closers and key == self._closers[-1]:
            self._closers.pop()
            return "over"
        return "insert"

    def _mistake(self, coming: Sequence[str]) -> Iterator[Stroke]:
        """A wrong key, perhaps some right ones after it, and the way back."""
        wrong = self._chance.choice([key for key in NEIGHBOURS if key != coming[0].lower()])
        num_more = self._chance.randint(0, len(coming) - 1)
        unnoticed = [key for key in coming[1 : 1 + num_more] if key.isalpha()]
        for key in (wrong, *unnoticed[:-1]):
            yield Stroke("insert", key, self._gap_s(key), None)
        if unnoticed:
            yield Stroke("insert", unnoticed[-1], NOTICE_S, None)
        for _ in range(1 + len(unnoticed)):
            yield Stroke("delete", "", DELETE_S, None)

    def _gap_s(self, key: str) -> float:
        if key == " " and self._chance.random() < THOUGHT_SHARE:
            return THOUGHT_S
        factor = SLOWER.get(key[0], 1.0)
        return KEY_S * factor * math.exp(self._chance.gauss(0.0, SPREAD))


def keys_of(text: str) -> list[str]:
    """Return what each stroke brings; an editor indents a new line by itself."""
    keys: list[str] = []
    for char in text:
        if char == " " and keys and keys[-1][0] == "\n":
            keys[-1] += char
        else:
            keys.append(char)
    return keys
