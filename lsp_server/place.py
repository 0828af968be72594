"""What surrounds a cursor, as the rules on a model's text see it."""

from __future__ import annotations

from dataclasses import dataclass

from lsp_server.syntax import Grammar


@dataclass(frozen=True)
class Place:
    """What surrounds the cursor, in LF."""

    before: str
    """The cursor's line up to the cursor."""
    rest: str
    """The cursor's line from the cursor on."""
    next_lines: tuple[str, ...]
    """The first lines below that are not blank."""
    is_prose: bool = False
    """The document is text for people: sentences and fences belong in it."""
    above: str = ""
    """The end of the text above the cursor's line, from where a definition begins."""
    grammar: Grammar | None = None
    """Of the document's language, where there is one."""
    indent: str = ""
    """One step of the document's indentation, where that is known."""
