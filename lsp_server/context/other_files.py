"""What other files say to the code at a cursor, within a budget.

First the definitions that the text names, then the places edited last, then the stretches most like
what stands before the cursor, then what was copied. They are handed over with those that change
least first, so that the engine's stored keys and values stay of use. It reads no disk.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lsp_server.context.definitions import Definition, find_definitions
from lsp_server.context.edits import EditedPlace
from lsp_server.context.similar import WINDOW_LINES, Window, best_window, windows_of, words_of
from lsp_server.syntax import KeptTree, grammar_of

MAX_FILES: Final = 20
"""So many are looked at, the ones used last first."""

MAX_FILE_CHARS: Final = 200_000
"""What stands behind it in a file is not looked at."""

LEARN_LIMIT_S: Final = 0.1
"""After so long, files that are new or changed wait for the next time."""

MAX_SIMILAR: Final = 3
MAX_EDITED: Final = 4
AROUND_EDIT_LINES: Final = 2
MAX_COPIED_CHARS: Final = 3000
LEAST_LINES: Final = 3
"""A piece that would be cut to fewer is left out."""

_NAMED_BEFORE_CHARS: Final = 4000
_NAMED_AFTER_CHARS: Final = 800
_REPEATED_SHARE: Final = 0.7
_IDENTIFIER: Final = re.compile(r"(\.\s*)?([^\W\d]\w{2,})")
_DEFINED: Final = re.compile(
    r"\b(?:def|class|fn|func|function|struct|enum|interface|trait|type)\s+([^\W\d]\w*)"
)
_KINDS: Final = ("definitions", "similar", "edited", "copied")
"""By how often they change."""

_RELATED: Final = (
    frozenset(("javascript", "javascriptreact", "typescript", "typescriptreact")),
    frozenset(("c", "cpp")),
)


@dataclass(frozen=True)
class OtherFile:
    """A file that may be read."""

    uri: str
    path: str
    """As the model sees it: from the folder of the workspace on."""
    language: str
    version: int
    """Another text has another one."""
    text: str
    places: Sequence[EditedPlace] = ()


@dataclass(frozen=True)
class Copied:
    """What the user has copied in the editor."""

    uri: str
    path: str
    text: str


@dataclass(frozen=True)
class Surroundings:
    """What is known at a cursor."""

    uri: str
    language: str
    before: str
    """The text before the cursor; its last part is looked at."""
    after: str
    others: Sequence[OtherFile]
    """The ones used last first."""
    copied: Copied | None = None
    own: OtherFile | None = None
    """The file itself, with the places of it that the model does not see otherwise."""


@dataclass(frozen=True)
class _Piece:
    kind: str
    path: str
    text: str
    """LF; ends with one."""


@dataclass
class _Facts:
    """What a version of a file holds."""

    version: int
    lines: list[str]
    windows: list[Window]
    definitions: list[Definition]


@dataclass
class OtherFiles:
    """Finds pieces; it keeps what it has learnt of each version of a file."""

    clock: Callable[[], float] = time.perf_counter
    _facts: dict[str, _Facts] = field(default_factory=dict[str, _Facts], repr=False)

    async def find(self, around: Surroundings, max_chars: int) -> tuple[tuple[str, str], ...]:
        """Return paths and texts of at most so many characters, paths included.

        It waits after each part of the work, so that nothing else stands still.
        """
        deadline_s = self.clock() + LEARN_LIMIT_S
        related = [file for file in around.others if is_related(file.language, around.language)]
        known: list[tuple[OtherFile, _Facts]] = []
        for file in related[:MAX_FILES]:
            if (facts := await self._facts_of(file, deadline_s)) is not None:
                known.append((file, facts))
        pieces = [
            *_definitions(around, known),
            *_edited(around),
            *_similar(around, known),
            *_copied(around),
        ]
        return _fit(pieces, around.before, max_chars)

    def forget(self, uri: str) -> None:
        """Drop what is known of a file."""
        self._facts.pop(uri, None)

    async def _facts_of(self, file: OtherFile, deadline_s: float) -> _Facts | None:
        facts = self._facts.get(file.uri)
        if facts is not None and facts.version == file.version:
            return facts
        if self.clock() > deadline_s:
            return None
        text = file.text[:MAX_FILE_CHARS]
        lines = text.split("\n")
        windows = windows_of(lines)
        await asyncio.sleep(0)
        definitions: list[Definition] = []
        if (grammar := grammar_of(file.language)) is not None:
            kept = KeptTree(grammar)
            await kept.parse_in_slices(text.encode())
            definitions = find_definitions(text, kept)
        facts = _Facts(file.version, lines, windows, definitions)
        self._facts[file.uri] = facts
        return facts


def is_related(language: str, other: str) -> bool:
    """Whether code of one language helps with the other."""
    return language == other or any({language, other} <= family for family in _RELATED)


@dataclass(frozen=True)
class _Named:
    """Where names stand last."""

    alone: dict[str, int]
    members: dict[str, int]
    """Behind a dot."""

    @classmethod
    def in_text(cls, before: str, after: str) -> _Named:
        """Return what a text names and does not define itself."""
        near = before[-_NAMED_BEFORE_CHARS:] + after[:_NAMED_AFTER_CHARS]
        own = set(_DEFINED.findall(before)) | set(_DEFINED.findall(after))
        named = cls({}, {})
        for match in _IDENTIFIER.finditer(near):
            if match[2] not in own:
                (named.members if match[1] else named.alone)[match[2]] = match.start()
        return named

    def last(self, definition: Definition) -> int:
        """Return where a definition is named last; -1 if nowhere."""
        places = [self.members.get(member.name, -1) for member in definition.members]
        qualified = self.members.get(definition.name, -1)
        return max(self.alone.get(definition.name, -1), qualified, *places)

    def shown(self, definition: Definition) -> str:
        """Return a definition; of one that only a member names, with these members only."""
        name = definition.name
        is_whole = name in self.alone or name in self.members
        members = [one for one in definition.members if is_whole or one.name in self.members]
        return definition.text + "".join(member.text for member in members)


def _definitions(around: Surroundings, known: Iterable[tuple[OtherFile, _Facts]]) -> list[_Piece]:
    """Return a piece for each file that defines what is named, the last named one first."""
    named = _Named.in_text(around.before, around.after)
    scored: list[tuple[int, _Piece]] = []
    for file, facts in known:
        found = [definition for definition in facts.definitions if named.last(definition) >= 0]
        if found:
            text = "".join(map(named.shown, found))
            latest = max(map(named.last, found))
            scored.append((-latest, _Piece("definitions", file.path, text)))
    return [piece for _, piece in sorted(scored, key=lambda pair: pair[0])]


def _edited(around: Surroundings) -> list[_Piece]:
    files = [*around.others, *([around.own] if around.own is not None else [])]
    latest = sorted(
        ((place, file) for file in files for place in file.places),
        key=lambda pair: -pair[0].tick,
    )
    return [
        _Piece("edited", file.path, _lines_around(file.text, place))
        for place, file in latest[:MAX_EDITED]
    ]


def _lines_around(text: str, place: EditedPlace) -> str:
    start = text.rfind("\n", 0, place.start) + 1
    end = _line_end(text, place.end)
    for _ in range(AROUND_EDIT_LINES):
        start = text.rfind("\n", 0, max(0, start - 1)) + 1
        end = _line_end(text, min(end + 1, len(text)))
    return text[start:end].strip("\n") + "\n"


def _line_end(text: str, offset: int) -> int:
    newline = text.find("\n", offset)
    return newline if newline >= 0 else len(text)


def _similar(around: Surroundings, known: Iterable[tuple[OtherFile, _Facts]]) -> list[_Piece]:
    words = words_of("\n".join(around.before.split("\n")[-WINDOW_LINES:]))
    scored: list[tuple[float, _Piece]] = []
    for file, facts in known:
        if (best := best_window(facts.windows, words)) is not None:
            likeness, line = best
            text = "\n".join(facts.lines[line : line + WINDOW_LINES]).strip("\n") + "\n"
            scored.append((-likeness, _Piece("similar", file.path, text)))
    return [piece for _, piece in sorted(scored, key=lambda pair: pair[0])[:MAX_SIMILAR]]


def _copied(around: Surroundings) -> list[_Piece]:
    copied = around.copied
    if copied is None or copied.uri == around.uri or copied.text.count("\n") + 1 < LEAST_LINES:
        return []
    return [_Piece("copied", copied.path, copied.text[:MAX_COPIED_CHARS].strip("\n") + "\n")]


def _fit(pieces: Iterable[_Piece], before: str, max_chars: int) -> tuple[tuple[str, str], ...]:
    """Return what fits, the most telling pieces first served, in the order that changes least."""
    seen = {line.strip() for line in before[-_NAMED_BEFORE_CHARS:].split("\n")}
    kept: list[_Piece] = []
    room = max_chars
    for piece in pieces:
        lines = [line.strip() for line in piece.text.split("\n") if line.strip()]
        num_seen = sum(line in seen for line in lines)
        if not lines or num_seen >= _REPEATED_SHARE * len(lines):
            continue
        text = _whole_lines(piece.text, room - len(piece.path) - 1)
        if text != piece.text and text.count("\n") < LEAST_LINES:
            continue
        seen.update(lines)
        kept.append(_Piece(piece.kind, piece.path, text))
        room -= len(piece.path) + 1 + len(text)
    kept.sort(key=lambda piece: (_KINDS.index(piece.kind), piece.path))
    return tuple((piece.path, piece.text) for piece in kept)


def _whole_lines(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: text.rfind("\n", 0, max(0, max_chars)) + 1]
