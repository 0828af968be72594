"""Other files as comments, for a model that has not learnt to read files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lsp_server.syntax import words

_HASH: Final = words(
    "python ruby perl r shellscript makefile dockerfile yaml toml elixir julia coffeescript nim"
    " powershell cmake"
)
_DASHES: Final = words("lua sql haskell elm ada vhdl")


def as_comments(files: Iterable[tuple[str, str]], language: str) -> str:
    """Return paths and texts as lines that begin with the language's sign for a comment."""
    sign = "#" if language in _HASH else "--" if language in _DASHES else "//"
    lines: list[str] = []
    for path, text in files:
        lines += [f"From {path}:", *text.rstrip("\n").split("\n"), ""]
    return "".join(f"{sign} {line}".rstrip() + "\n" for line in lines)
