"""The whole prompt at a cursor: this file, and what may be read of others.

Whether a model gets other files is a setting; which those may be is for ``privacy.py`` to say.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from lsp_server.context.comments import as_comments
from lsp_server.context.imports import imported_paths
from lsp_server.context.other_files import (
    MAX_FILE_CHARS,
    MAX_FILES,
    Copied,
    OtherFile,
    Surroundings,
    is_related,
)
from lsp_server.context.outline import parsed_part
from lsp_server.documents import Document, Snapshot
from lsp_server.postprocess import to_lf
from lsp_server.prompt import Budget, Prompt, build_prompt, new_start
from lsp_server.state import OpenDocument, State

DID_COPY: Final = "specengine/didCopy"
"""Our own notification: ``uri`` of a document and the ``text`` that was copied there."""

MAX_IMPORTED: Final = 8
"""So many files that are not open are read."""

GROWTH_CHARS: Final = 1500
"""Room that is left for what will be typed: the prompt is held meanwhile."""

COMMENTED_SHARE: Final = 0.8
"""The rest of the room is for the signs that make comments of lines."""

_LOOKED_AT_CHARS: Final = 8000


async def build_whole_prompt(
    state: State, opened: OpenDocument, snapshot: Snapshot, budget: Budget
) -> Prompt:
    """Return the prompt at a cursor; this file comes first, others get what it leaves.

    It may wait, so that nothing else stands still while much is parsed.
    """
    opened.last_used = state.next_tick()
    way = _way(state)
    share = state.settings.context.files_share if way else 0.0
    own = replace(budget, prefix_chars=int(budget.prefix_chars * (1 - share)))
    anchor = opened.session.anchor
    start = new_start(snapshot, own, anchor)
    if start is not None and opened.tree is not None and not opened.tree.grammar.is_indented:
        _, part = parsed_part(snapshot.text, start, snapshot.cursor)
        await opened.tree.parse_in_slices(part.encode())
    prompt, opened.session.anchor = build_prompt(snapshot, opened.tree, own, anchor)
    if not way:
        return prompt
    limit = budget.prefix_chars + budget.suffix_chars
    growth = min(GROWTH_CHARS, limit // 8)
    room = min(limit // 2, limit - len(prompt.prefix) - len(prompt.suffix) - growth)
    surroundings = _surroundings(state, opened, snapshot, prompt)
    if way == "files":
        return replace(prompt, files=await state.other_files.find(surroundings, max(0, room)))
    room = max(0, min(room, budget.prefix_chars - len(prompt.prefix) - growth))
    files = await state.other_files.find(surroundings, int(room * COMMENTED_SHARE))
    comments = as_comments(files, snapshot.language)
    return replace(prompt, prefix=comments + prompt.prefix) if len(comments) <= room else prompt


def _way(state: State) -> str:
    """Return how other files are told to this model: as files, as comments, or not at all."""
    wish = state.settings.context.other_files
    client = state.link.client if state.link is not None else None
    status = client.status if client is not None else None
    if status is not None and status.reads_files and wish != "never":
        return "files"
    return "comments" if wish == "always" else ""


def _surroundings(
    state: State, opened: OpenDocument, snapshot: Snapshot, prompt: Prompt
) -> Surroundings:
    document = opened.document
    open_files = list(_open_files(state, document))
    before = to_lf(snapshot.text[max(0, snapshot.cursor - _LOOKED_AT_CHARS) : snapshot.cursor])
    after = to_lf(snapshot.text[snapshot.cursor : snapshot.cursor + _LOOKED_AT_CHARS])
    others = open_files + list(_imported(state, document, snapshot, open_files))
    copied = state.copied
    if copied is not None and copied.uri not in {file.uri for file in open_files}:
        copied = None
    own = _own_file(state, opened, snapshot, prompt)
    return Surroundings(document.uri, snapshot.language, before, after, others, copied, own)


def _own_file(
    state: State, opened: OpenDocument, snapshot: Snapshot, prompt: Prompt
) -> OtherFile | None:
    """Return the file with the edited places that the prompt does not reach."""
    if "\r" in snapshot.text:
        return None  # offsets count what the prompt has lost
    first = snapshot.cursor - len(prompt.prefix)
    last = snapshot.cursor + len(prompt.suffix)
    far = [place for place in opened.edits.places if place.end < first or place.start > last]
    path = _shown_path(state, opened.document)
    return OtherFile(snapshot.uri, path, snapshot.language, 0, snapshot.text, far)


def _open_files(state: State, document: Document) -> Iterator[OtherFile]:
    """Yield the other open files that may be read, the ones used last first."""
    by_use = sorted(state.documents.values(), key=lambda opened: -opened.last_used)
    seen = {document.unit}
    for opened in by_use:
        other = opened.document
        if other.unit in seen or other.is_oversized or len(seen) > MAX_FILES:
            continue
        if not is_related(other.language, document.language):
            continue
        if not _may_read(state, other, document):
            continue
        seen.add(other.unit)
        whole = other.whole_text
        text = to_lf(whole[: 2 * MAX_FILE_CHARS])
        places = opened.edits.places if "\r" not in whole else ()
        path = _shown_path(state, other)
        yield OtherFile(other.uri, path, other.language, hash(text), text, places)


def _may_read(state: State, other: Document, document: Document) -> bool:
    if other.is_read_only or state.is_ignored(other):
        return False
    path = other.path
    if path is None or state.settings.privacy.read_outside:
        return True
    if state.rules.folders or document.path is None:
        return state.rules.is_inside(path)
    # Without a workspace the file's own folder stands for one.
    folder = os.path.realpath(document.path.parent)
    return Path(os.path.realpath(path)).is_relative_to(folder)


def _shown_path(state: State, document: Document) -> str:
    return state.relative_path(document.path) if document.path is not None else document.name


def _imported(
    state: State, document: Document, snapshot: Snapshot, open_files: list[OtherFile]
) -> Iterator[OtherFile]:
    """Yield imported files from the disk, if they may be read."""
    privacy, path = state.settings.privacy, document.path
    if not privacy.read_unopened or path is None:
        return
    known = {Path(p) for file in state.documents.values() if (p := file.document.path)}
    found = 0
    for candidate in imported_paths(snapshot.text, snapshot.language, path, state.rules.folders):
        if found >= MAX_IMPORTED:
            return
        if candidate in known:
            continue
        known.add(candidate)
        is_inside = privacy.read_outside or state.rules.is_inside(candidate)
        if not is_inside or state.rules.why_ignored(candidate):
            continue
        if (file := _read(state, candidate, snapshot.language)) is not None:
            found += 1
            yield file


def _read(state: State, path: Path, language: str) -> OtherFile | None:
    """Read a regular file; what cannot be read is passed over: it is only a help."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > 4 * MAX_FILE_CHARS:
            return None
        text = to_lf(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    uri = path.as_uri()
    return OtherFile(uri, state.relative_path(path), language, hash(text), text)


def did_copy(state: State, params: object) -> None:
    """The editor tells what the user has copied, and where."""
    uri, text = getattr(params, "uri", None), getattr(params, "text", None)
    if isinstance(uri, str) and isinstance(text, str):
        take_copied(state, uri, text)


def take_copied(state: State, uri: str, text: str) -> None:
    """Keep what was copied, if it stands in an open file that may be read."""
    opened = state.documents.get(uri)
    text = to_lf(text)
    state.copied = None
    if opened is None or opened.document.is_read_only or state.is_ignored(opened.document):
        return
    if text and text in to_lf(opened.document.text):
        state.copied = Copied(uri, _shown_path(state, opened.document), text)
