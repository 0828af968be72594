"""What becomes of the suggestions of one document: shown, accepted, partly accepted, kept.

It compares edits with what was shown last, so that it needs no word from the editor; a command or a
notification that says the same changes nothing. Nothing but counts leaves it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Final, Protocol

from lsp_server.documents import Edit

KEPT_AFTER_S: Final = 30.0
"""So long after it was accepted a text is compared with what has become of it."""

LEAST_PIECE: Final = 2
"""A single character is a key; more at once, as suggested, were accepted."""

MAX_KEPT_CHARS: Final = 1000
"""A longer text is compared in its first part: nothing else is served meanwhile."""

_WORD_OR_SIGN: Final = re.compile(r"\w+|\s+|[^\w\s]")
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
    num_announced: int = 0
    """Characters that the editor says are accepted and that no edit has brought yet."""


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
        """The editor says that a suggestion was accepted; before or behind its edit."""
        shown = self._shown_by(request)
        if shown is not None:
            self._announce(shown, shown.texts[0], is_whole=True)

    def accept_partly(self, request: int, item: str, num_left: int) -> None:
        """The editor says that an item was accepted but for so many characters at its end."""
        shown = self._shown_by(request)
        rests = [text for text in shown.texts if item.endswith(text)] if shown is not None else []
        if shown is not None and rests and len(rests[0]) > num_left:  # else the edit has said it
            part = rests[0][: len(rests[0]) - num_left]
            self._announce(shown, part, is_whole=num_left == 0)

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
        if shown.num_announced:
            shown.num_announced = max(0, shown.num_announced - len(typed))
            self._watch(shown, typed)
        elif len(typed) >= LEAST_PIECE:
            self._tell(shown, typed, is_whole=typed in going_on)
            self._watch(shown, typed)
        shown.cursor += len(typed)
        shown.texts = [text[len(typed) :] for text in going_on]
        shown.is_over = not all(shown.texts)

    def _shown_by(self, request: int) -> _Shown | None:
        shown = self._shown
        is_open = shown is not None and request in shown.requests and not shown.is_accepted
        return shown if is_open else None

    def _announce(self, shown: _Shown, text: str, *, is_whole: bool) -> None:
        self._tell(shown, text, is_whole=is_whole)
        if shown.is_over:
            self._watch(shown, text)
        else:
            shown.num_announced = len(text)

    def _tell(self, shown: _Shown, text: str, *, is_whole: bool) -> None:
        shown.is_accepted = is_whole
        event = "accepted" if is_whole else "partly_accepted"
        after_s = self.clock() - shown.since_s
        self.on_fate(Fate(event, shown.request, shown.chars, len(text), after_s))

    def _watch(self, shown: _Shown, text: str) -> None:
        start = shown.cursor
        accepted = _Accepted(shown.request, text, start, start + len(text), self.clock())
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
    words, words_now = _WORD_OR_SIGN.findall(text), _WORD_OR_SIGN.findall(now)
    blocks = SequenceMatcher(None, words, words_now, autojunk=False).get_matching_blocks()
    return sum(len("".join(words[block.a : block.a + block.size])) for block in blocks)


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
