"""What becomes of the suggestions of one document: shown, accepted, partly accepted, kept.

It compares edits with what was shown last, so that it needs no word from the editor; a command or a
notification that says the same changes nothing. Nothing but counts leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Final, Protocol

from lsp_server.documents import Edit

KEPT_AFTER_S: Final = 30.0
"""So long after it was accepted a text is compared with what has become of it."""

LEAST_PIECE: Final = 2
"""A single character is a key; more at once, as suggested, were accepted."""

MAX_KEPT_CHARS: Final = 4000
"""A longer text is compared in its first part."""

_PAIRS: Final = frozenset(("()", "[]", "{}", '""', "''", "``"))
"""What editors insert for one key."""


class TimerHandle(Protocol):
    """What ``loop.call_later`` returns."""

    def cancel(self) -> None:
        """Do not call."""


CallLater = Callable[[float, Callable[[], None]], TimerHandle]


@dataclass(frozen=True)
class Fate:
    """Something that has happened to a suggestion."""

    event: str
    """``shown``, ``accepted``, ``partly_accepted`` or ``kept``."""
    request: int
    """The request that showed it first."""
    chars: int
    """Of the suggestion; of what was accepted, for ``kept``."""
    num: int = 0
    """Characters that were accepted, or that are still there."""
    after_s: float = 0.0
    """From showing to accepting, or from accepting to comparing."""


@dataclass
class _Shown:
    request: int
    texts: list[str]
    """What of each alternative is not in the document yet."""
    cursor: int
    """Where it stands; moves with the text before it."""
    chars: int
    since_s: float
    requests: set[int] = field(default_factory=set[int])
    """All that have shown it."""
    is_over: bool = False
    """It has left the screen, or is accepted."""
    is_accepted: bool = False


@dataclass
class _Accepted:
    request: int
    text: str
    start: int
    end: int
    since_s: float
    timer: TimerHandle | None = None


@dataclass
class Acceptance:
    """Follows one document."""

    on_fate: Callable[[Fate], None]
    read_text: Callable[[], str]
    call_later: CallLater
    clock: Callable[[], float]
    _shown: _Shown | None = None
    _accepted: list[_Accepted] = field(default_factory=list[_Accepted])

    def show(self, request: int, texts: Sequence[str], cursor: int) -> None:
        """Take note of what stands on the screen behind a cursor; the first text is on top."""
        shown = self._shown
        is_same = shown is not None and not shown.is_over and shown.cursor == cursor
        if shown is not None and is_same and texts[0] in shown.texts:
            shown.requests.add(request)
            return
        self._shown = _Shown(request, list(texts), cursor, len(texts[0]), self.clock(), {request})
        self.on_fate(Fate("shown", request, len(texts[0])))

    def take_edits(self, edits: Iterable[Edit]) -> None:
        """Take note of edits, in their order."""
        for edit in edits:
            for accepted in self._accepted:
                accepted.start = _moved_start(accepted.start, edit)
                accepted.end = max(accepted.start, _moved_end(accepted.end, edit))
            if self._shown is not None:
                self._follow(self._shown, edit)

    def accept(self, request: int) -> None:
        """The editor says that a suggestion was accepted."""
        shown = self._shown
        if shown is None or request not in shown.requests or shown.is_accepted:
            return
        self._take(shown, shown.texts[0], shown.cursor, is_whole=True)

    def accept_partly(self, request: int, num: int) -> None:
        """The editor says that the beginning of a suggestion was accepted, up to a length."""
        shown = self._shown
        if shown is None or request not in shown.requests or shown.is_accepted:
            return
        done = shown.chars - len(shown.texts[0])
        if num > done:  # else the edit has said it
            self._take(shown, shown.texts[0][: num - done], shown.cursor, is_whole=False)

    def close(self) -> None:
        """The document is closed: what was accepted is compared now."""
        while self._accepted:
            self._compare(self._accepted[0])
        self._shown = None

    def _follow(self, shown: _Shown, edit: Edit) -> None:
        is_here = edit.start <= shown.cursor <= edit.end
        typed = edit.text[shown.cursor - edit.start :] if is_here else ""
        going_on = [text for text in shown.texts if typed and text.startswith(typed)]
        if shown.is_over or not going_on:
            if edit.text in _PAIRS and edit.start == edit.end == shown.cursor:
                self._follow(shown, replace(edit, text=edit.text[0]))
                return
            shown.is_over = True
            shown.cursor = _moved_end(shown.cursor, edit)
            return
        is_key = len(typed) < LEAST_PIECE
        if not is_key:
            self._take(shown, typed, shown.cursor, is_whole=typed in going_on)
        shown.cursor += len(typed)
        shown.texts = [text[len(typed) :] for text in going_on]
        shown.is_over = shown.is_accepted or not all(shown.texts)

    def _take(self, shown: _Shown, text: str, start: int, *, is_whole: bool) -> None:
        shown.is_accepted = is_whole
        now_s = self.clock()
        event = "accepted" if is_whole else "partly_accepted"
        self.on_fate(Fate(event, shown.request, shown.chars, len(text), now_s - shown.since_s))
        accepted = _Accepted(shown.request, text, start, start + len(text), now_s)
        accepted.timer = self.call_later(KEPT_AFTER_S, lambda: self._compare(accepted))
        self._accepted.append(accepted)

    def _compare(self, accepted: _Accepted) -> None:
        if accepted.timer is not None:
            accepted.timer.cancel()
        self._accepted.remove(accepted)
        text = accepted.text[:MAX_KEPT_CHARS]
        now = self.read_text()[accepted.start : accepted.end][: 2 * MAX_KEPT_CHARS]
        self.on_fate(
            Fate(
                "kept",
                accepted.request,
                len(text),
                _num_common(text, now),
                self.clock() - accepted.since_s,
            )
        )


def _num_common(text: str, now: str) -> int:
    if text == now:
        return len(text)
    blocks = SequenceMatcher(None, text, now, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks)


def _moved_start(offset: int, edit: Edit) -> int:
    """Return where a beginning is after an edit; what is inserted right there is before it."""
    if offset < edit.start:
        return offset
    return edit.start if offset < edit.end else offset + len(edit.text) - (edit.end - edit.start)


def _moved_end(offset: int, edit: Edit) -> int:
    """Return where an end is after an edit; what is inserted right there is behind it."""
    if offset <= edit.start:
        return offset
    new_end = edit.start + len(edit.text)
    return new_end if offset < edit.end else offset + new_end - edit.end
