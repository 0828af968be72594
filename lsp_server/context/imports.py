"""Where the files that a file imports may lie. It looks at no disk."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

HEAD_CHARS: Final = 6000
"""Imports are looked for in this much of the file's beginning."""

_PYTHON: Final = re.compile(r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import|import[ \t]+([.\w]+))", re.M)
_SCRIPT: Final = re.compile(r"""(?:from|import|require\()\s*["'](\.{1,2}/[^"'\n]+)["']""")
_INCLUDE: Final = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
_SCRIPT_ENDINGS: Final = ("", ".ts", ".tsx", ".js", ".jsx", "/index.ts", "/index.js")


def imported_paths(text: str, language: str, file: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield paths that may exist, for what a file with this text imports, in its order."""
    head = text[:HEAD_CHARS]
    if language == "python":
        for match in _PYTHON.finditer(head):
            yield from _python_paths(match[1] or match[2], file, folders)
    elif language in ("c", "cpp"):
        for match in _INCLUDE.finditer(head):
            yield from (folder / match[1] for folder in (file.parent, *folders))
    elif language.startswith(("javascript", "typescript")):
        for match in _SCRIPT.finditer(head):
            for ending in _SCRIPT_ENDINGS:
                yield file.parent / (match[1] + ending)


def _python_paths(module: str, file: Path, folders: Sequence[Path]) -> Iterator[Path]:
    names = module.lstrip(".")
    num_dots = len(module) - len(names)
    if num_dots > len(file.parents):
        return
    roots = [file.parents[num_dots - 1]] if num_dots else [*folders, file.parent]
    below = Path(*names.split(".")) if names else Path()
    for root in roots:
        if names:
            yield (root / below).with_suffix(".py")
        yield root / below / "__init__.py"
