"""From the text around a cursor to what a server is asked to continue.

A prompt stays the same from its beginning on while the user types, so that the server's prefix
cache holds it: with the prefix first, what is typed after the first request of a place comes behind
the marker of the middle, as the beginning of what the model writes, and the suffix is not read
again. Markers are texts of special tokens, from models.toml; a server turns them into tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

from specengine.models.families import Splits
from specengine.models.registry import FimTemplate, ModelEntry, Registry
from specengine.protocol import Complete
from specengine.upstream.healing import split

Way: TypeAlias = Literal["none", "template", "suffix", "infill"]
"""How a server learns what stands behind the cursor: not at all, by markers in the prompt, by the
field ``suffix`` of a completion, or by llama.cpp's ``/infill``."""

MAX_DOCUMENTS: Final = 64
"""Documents whose place is remembered."""

REPO_NAME: Final = "project"
"""Stands for a repository's name, which nobody tells; a model that has learnt one expects one."""

MAX_TYPED_CHARS: Final = 600
"""After so much the place is anchored anew: what stands before the cursor belongs to the prefix."""


T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """What is sent."""

    way: Way
    prompt: str
    """Before what the server writes; with ``infill`` only what was typed since the anchor."""
    prefix: str = ""
    """Before that; only with ``infill``."""
    suffix: str = ""
    """Behind the cursor; only with ``suffix`` and ``infill``."""
    forced: str = ""
    """What the answer must begin with."""
    ends: tuple[str, ...] = ()
    """Markers with which the model ends a middle, or any text; then those that it may repeat."""
    files: tuple[tuple[str, str], ...] = ()
    """Other files, each a path and a text; only with ``infill``."""


@dataclass(frozen=True)
class _Anchor:
    kept: str
    suffix: str
    front: str


class Layout:
    """Lays out the requests of one client; remembers where each document's prompt was anchored."""

    def __init__(self) -> None:
        self._anchors: OrderedDict[str, _Anchor] = OrderedDict()
        self._misaligned: OrderedDict[str, str] = OrderedDict()

    def note_misaligned(self, message: Complete) -> None:
        """An answer from the place stepped back to went on otherwise; keys to come see the same."""
        _store(self._misaligned, message.document, message.prefix)

    def lay_out(self, message: Complete, way: Way, entry: ModelEntry | None, *, heal: bool) -> Ask:
        """Return what to send for a request; an empty suffix leaves all markers out."""
        splits = entry.splits if entry is not None else "blanks"
        kept, forced = self._step_back(message, splits) if heal else (message.prefix, "")
        fim = entry.fim if entry is not None else None
        if way == "suffix" and message.suffix:
            return Ask(way, kept, suffix=message.suffix, forced=forced)
        if way == "infill" and message.suffix:
            anchored, typed = self._anchor(message, kept, "")
            return Ask(way, typed, anchored, message.suffix, forced, files=message.files)
        front = "" if entry is None or way == "suffix" else _lay_out_files(entry, message.files)
        if way != "template" or fim is None or not message.suffix:
            return Ask("none", front + kept, forced=forced, ends=fim.markers if fim else ())
        anchored, typed = self._anchor(message, kept, front)
        prompt = front + _fill_in(fim, anchored, typed, message.suffix)
        return Ask(way, prompt, forced=forced, ends=fim.markers)

    def _step_back(self, message: Complete, splits: Splits) -> tuple[str, str]:
        kept, forced = split(message.prefix, splits)
        known = self._misaligned.get(message.document)
        # Still in the word, or the indentation, in which the answer went on otherwise?
        is_astray = known is not None and message.prefix.startswith(known)
        if is_astray and known is not None and split(known, splits)[0] == kept:
            return message.prefix, ""
        return kept, forced

    def _anchor(self, message: Complete, kept: str, front: str) -> tuple[str, str]:
        """Return the prefix that was anchored, and what has been typed since."""
        anchor = self._anchors.get(message.document)
        if (
            anchor is None
            or (anchor.suffix, anchor.front) != (message.suffix, front)
            or not kept.startswith(anchor.kept)
            or len(kept) - len(anchor.kept) > MAX_TYPED_CHARS
        ):
            anchor = _Anchor(kept, message.suffix, front)
        _store(self._anchors, message.document, anchor)
        return anchor.kept, kept[len(anchor.kept) :]


def _store(places: OrderedDict[str, T], document: str, place: T) -> None:
    places[document] = place
    places.move_to_end(document)
    while len(places) > MAX_DOCUMENTS:
        places.popitem(last=False)


def _lay_out_files(entry: ModelEntry, files: Sequence[tuple[str, str]]) -> str:
    """Return other files and the marker of the one at hand; nothing if the model reads none."""
    if not files or not entry.file_sep:
        return ""
    head = f"{entry.repo_name}{REPO_NAME}\n" if entry.repo_name else ""
    texts = [f"{entry.file_sep}{path}\n{text}" for path, text in files]
    return f"{head}{''.join(texts)}{entry.file_sep}"


def _fill_in(fim: FimTemplate, anchored: str, typed: str, suffix: str) -> str:
    before, after, middle = fim.prefix, fim.suffix, fim.middle or ""
    # SentencePiece writes a blank as ▁; in a prompt that is text it is a blank.
    before, after, middle = (marker.replace("▁<", " <") for marker in (before, after, middle))
    if fim.order == "suffix_first":
        # The prefix comes last, so that it may grow with each key.
        return f"{after}{suffix}{before}{anchored}{typed}{middle}"
    return f"{before}{anchored}{after}{suffix}{middle}{typed}"


def find_entry(registry: Registry, served: str) -> ModelEntry | None:
    """Return the declared model that a server's name for a model means, if it is plain.

    That is one with its name, its repository's, or either with more behind a hyphen or a dot,
    as quantised ones have; the longest match wins. A path counts by its last part too, and a colon,
    which Ollama writes before the size, is a hyphen.
    """
    wanted = served.lower().removesuffix(".gguf").replace(":", "-")
    last = wanted.rsplit("/", 1)[-1]
    best: tuple[int, ModelEntry] | None = None
    for entry in registry.models.values():
        for name in _names(entry):
            if any(_means(text, name) for text in (wanted, last)) and (
                best is None or len(name) > best[0]
            ):
                best = (len(name), entry)
    return best[1] if best is not None else None


def _names(entry: ModelEntry) -> list[str]:
    names = [entry.name.lower()]
    if entry.source.startswith("hf:"):
        repository = entry.source.removeprefix("hf:").partition("@")[0].lower()
        names += [repository, repository.rsplit("/", 1)[-1]]
    return names


def _means(text: str, name: str) -> bool:
    if not text.startswith(name):
        return False
    return text[len(name) : len(name) + 1] in ("", "-", ".")
