"""The prefix and suffix that the engine gets, within a budget, and stable while a user types.

A prefix that fits is sent whole. A longer one begins with the file's imports and the heads of the
definitions around, and goes on from a line that stays the same until the text outgrows the
budget by a margin: the engine's stored prefix then fits again after each key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lsp_server.context.outline import find_outline
from lsp_server.documents import Snapshot
from lsp_server.postprocess import to_lf
from lsp_server.syntax import KeptTree

CHARS_PER_TOKEN: Final = 3
"""A low estimate for code; the engine counts and cuts exactly."""

OUTLINE_SHARE: Final = 0.25
"""Most of the prefix budget that imports and heads may take."""

GROWTH_SHARE: Final = 0.3
"""Part of the prefix budget that is left free when an anchor is set, for what will be typed."""


@dataclass(frozen=True)
class Budget:
    """Limits in characters."""

    prefix_chars: int
    suffix_chars: int

    @classmethod
    def of_tokens(cls, num_tokens: int, suffix_share: float) -> Budget:
        """Return the limits for a number of prompt tokens."""
        chars = num_tokens * CHARS_PER_TOKEN
        suffix_chars = int(chars * suffix_share)
        return cls(chars - suffix_chars, suffix_chars)


@dataclass(frozen=True)
class Prompt:
    """What is sent."""

    prefix: str
    suffix: str
    files: tuple[tuple[str, str], ...] = ()
    """Paths and texts of other files."""


@dataclass(frozen=True)
class Anchor:
    """Where a trimmed prefix begins, until it is set anew."""

    outline: str
    start: int
    """Offset of the first line that is sent, in code points."""
    text: str
    """What was sent from there on; if it changes, so must the anchor."""
    budget: Budget


def build_prompt(
    snapshot: Snapshot, kept: KeptTree | None, budget: Budget, anchor: Anchor | None
) -> tuple[Prompt, Anchor | None]:
    """Return the prompt at a cursor, and the anchor to hand in again with the next key."""
    suffix = _suffix(snapshot, budget)
    if snapshot.cursor <= budget.prefix_chars:
        return Prompt(to_lf(snapshot.text[: snapshot.cursor]), suffix), None
    start = new_start(snapshot, budget, anchor)
    if anchor is None or start is not None:
        assert start is not None, "where there is no anchor, one is set"
        anchor = _set_anchor(snapshot, start, kept, budget)
    body = snapshot.text[anchor.start : snapshot.cursor]
    return Prompt(anchor.outline + to_lf(body), suffix), anchor


def new_start(snapshot: Snapshot, budget: Budget, anchor: Anchor | None) -> int | None:
    """Return where a trimmed prefix begins if its anchor must be set; None if it need not."""
    is_whole = snapshot.cursor <= budget.prefix_chars
    if is_whole or (anchor is not None and _fits(anchor, snapshot, budget)):
        return None
    body_chars = int(budget.prefix_chars * (1 - GROWTH_SHARE)) - _outline_chars(budget)
    return _line_start_after(snapshot.text, snapshot.cursor - body_chars, snapshot.cursor)


def _outline_chars(budget: Budget) -> int:
    return int(budget.prefix_chars * OUTLINE_SHARE)


def _fits(anchor: Anchor, snapshot: Snapshot, budget: Budget) -> bool:
    body_chars = snapshot.cursor - anchor.start
    if anchor.budget != budget or len(anchor.outline) + body_chars > budget.prefix_chars:
        return False
    # Near the anchor there is too little text before the cursor to go on from.
    if body_chars < budget.prefix_chars // 8:
        return False
    shared = min(len(anchor.text), body_chars)
    return snapshot.text.startswith(anchor.text[:shared], anchor.start)


def _set_anchor(snapshot: Snapshot, start: int, kept: KeptTree | None, budget: Budget) -> Anchor:
    outline_chars = _outline_chars(budget)
    found = find_outline(snapshot.text, start, snapshot.cursor, kept)
    heads = to_lf(found.heads)[-outline_chars:]
    imports = _whole_lines(to_lf(found.imports), outline_chars - len(heads))
    text = snapshot.text[start : snapshot.cursor]
    return Anchor(imports + heads, start, text, budget)


def _line_start_after(text: str, offset: int, cursor: int) -> int:
    """Return the next line start, preferring one behind a blank line; one long line is cut."""
    middle = offset + (cursor - offset) // 4
    blank = text.find("\n\n", offset, middle)
    if blank >= 0:
        return blank + 2
    newline = text.find("\n", offset, cursor)
    return newline + 1 if newline >= 0 else offset


def _whole_lines(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    return text[: text.rfind("\n", 0, max(0, max_chars)) + 1]


def _suffix(snapshot: Snapshot, budget: Budget) -> str:
    end = snapshot.cursor + budget.suffix_chars
    if end < len(snapshot.text):
        newline = snapshot.text.rfind("\n", snapshot.cursor, end)
        end = newline + 1 if newline >= 0 else end
    return to_lf(snapshot.text[snapshot.cursor : end])
