"""How often the first line of a suggestion is the line that was missing, with and without healing.

The cursor stands where a user would ask: at the start of the missing line, or behind its
indentation. Texts are compared, never run. The model sees only what precedes the cursor.

Source:  the task is single-line infilling, Bavarian et al. 2022, arXiv 2207.14255.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from specengine.bench.own import OwnEngine
from specengine.bench.workloads import Infilling
from specengine.drafters.base import DrafterSource

MAX_TOKENS: Final = 48
"""No missing line is longer."""

OnProgress = Callable[[float, str], None]


class Cursor(StrEnum):
    """Where the suggestion is asked for."""

    LINE_START = "line_start"
    """The text ends with the line end before the missing line."""
    INDENTED = "indented"
    """The editor has put the indentation there already."""


class InfillRow(msgspec.Struct, frozen=True):
    """One way of asking."""

    set: str
    model: str
    precision: str
    drafter: str
    cursor: str
    healing: str
    """``on`` or ``off``."""
    n: int
    num_exact: int
    """Lines that are exactly what was missing; white space at their end does not count."""
    exact_match: float
    """Their share."""
    num_but_indentation: int
    """Lines that are exact but for white space at their beginning."""
    pass_rate: float | None = None
    """Not measured: nothing that a model wrote is run."""


def measure(
    own: OwnEngine, infillings: Sequence[Infilling], drafter: str, on_progress: OnProgress
) -> list[InfillRow]:
    """Return a row for each cursor with healing off and on."""
    source = own.source(drafter)
    cases = [(cursor, heal) for cursor in Cursor for heal in (False, True)]
    rows: list[InfillRow] = []
    for number, (cursor, heal) in enumerate(cases):
        on_progress(number / len(cases), f"cursor {cursor}, healing {_on_off(heal)}")
        lines = [
            (first_line(own, source, prefix, heal=heal), missing.rstrip())
            for prefix, missing in (ask(infilling, cursor) for infilling in infillings)
        ]
        num_exact = sum(written == missing for written, missing in lines)
        rows.append(
            InfillRow(
                set="infill",
                model=own.entry.name,
                precision=own.settings.precision,
                drafter=source.name,
                cursor=cursor,
                healing=_on_off(heal),
                n=len(infillings),
                num_exact=num_exact,
                exact_match=round(num_exact / len(infillings), 4),
                num_but_indentation=sum(
                    written.lstrip() == missing.lstrip() for written, missing in lines
                ),
            )
        )
    on_progress(1.0, "done")
    return rows


def ask(infilling: Infilling, cursor: Cursor) -> tuple[str, str]:
    """Return the text before a cursor and what is missing behind it."""
    line = infilling.canonical_solution
    num_spaces = len(line) - len(line.lstrip()) if cursor is Cursor.INDENTED else 0
    return infilling.prompt + line[:num_spaces], line[num_spaces:]


def first_line(own: OwnEngine, source: DrafterSource, prefix: str, *, heal: bool) -> str:
    """Return the first line that the model writes behind a text, without white space at its end."""
    session = own.session(own.layout.lay_out(prefix, "", heal=heal), source, MAX_TOKENS)
    text = ""
    try:
        while session.stop_reason is None and "\n" not in text:
            text += session.advance()
    finally:
        session.close()
    return text.partition("\n")[0].rstrip()


def _on_off(is_on: bool) -> str:
    return "on" if is_on else "off"
