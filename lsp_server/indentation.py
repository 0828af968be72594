"""How a document indents, and a text brought to that; pure functions of lines.

Only tabs against spaces is a matter here: how deep a line belongs is the model's to say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

MAX_SPACES: Final = 8
"""A step of more is no indentation but an alignment."""

_DEFAULT_SPACES: Final = 4
_LEAD: Final = re.compile(r"[ \t]*")


def find_unit(lines: Sequence[str]) -> str:
    r"""Return what one step of indentation is: ``"\t"``, some spaces, or nothing if none is seen.

    The last line that is indented with one of them alone decides; mixed ones say nothing, nor does
    a " *" in a comment.
    """
    leads = [lead_of(line) for line in lines if line.strip() and not line.lstrip().startswith("*")]
    nearest = next((lead for lead in reversed(leads) if lead and len(set(lead)) == 1), "")
    if not nearest or nearest[0] == "\t":
        return nearest[:1]
    widths = [len(lead) for lead in leads if "\t" not in lead]
    steps = [abs(after - before) for before, after in pairwise([0, *widths])]
    return " " * min((step for step in steps if 2 <= step <= MAX_SPACES), default=_DEFAULT_SPACES)


def with_unit(line: str, unit: str, num_spaces: int) -> str:
    """Return a line indented as the document is.

    Spaces become tabs ``num_spaces`` at a time, what is left over aligns something; a tab becomes
    one unit of spaces. A lead that has a tab already is left alone where tabs are used.
    """
    lead = lead_of(line)
    if unit == "\t":
        if "\t" in lead:
            return line
        num_tabs, rest = divmod(len(lead), num_spaces)
        return "\t" * num_tabs + " " * rest + line[len(lead) :]
    return lead.replace("\t", unit) + line[len(lead) :]


def spaces_of(lines: Sequence[str]) -> int:
    """Return how many spaces a text takes for a step: two or four."""
    widths = {len(lead) for lead in map(lead_of, lines) if lead and "\t" not in lead}
    return 4 if all(width % 4 == 0 for width in widths) else 2


def lead_of(line: str) -> str:
    """Return the white space that a line begins with."""
    found = _LEAD.match(line)
    return found.group() if found is not None else ""
