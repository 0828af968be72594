"""How often what a model writes at a gap is what was missing, or does what was missing.

It compares texts. Whether a function works with what was written is judged by somebody else, given
as ``Plan.judge``; nothing is run here.

Source:  Bavarian et al. 2022, arXiv 2207.14255: single-line, multi-line and random-span infilling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from specengine import blank_lines
from specengine.bench.own import OwnEngine
from specengine.bench.workloads import Infilling, InfillSet
from specengine.drafters.base import DrafterSource

LINE_TOKENS: Final = 48
"""No single missing line is longer."""
MAX_TOKENS: Final = 256
"""Where a text ends at the latest that may have several lines."""

OnProgress = Callable[[float, str], None]
Judge = Callable[[Sequence[str]], Sequence[bool]]
"""Says which of these programs run to their end."""


class Cursor(StrEnum):
    """Where the suggestion is asked for."""

    GIVEN = "given"
    """Where the missing part begins."""
    LINE_START = "line_start"
    """The text ends with the line end before the missing line."""
    INDENTED = "indented"
    """The editor has put the indentation there already."""


class Context(StrEnum):
    """What the model reads."""

    PREFIX = "prefix"
    """The text before the cursor."""
    BOTH = "prefix+suffix"
    """The text behind it too; only for a model that was trained to, and where there is any."""


class Ending(StrEnum):
    """Which part of what the model writes counts."""

    CUT = "cut"
    """As many lines as are missing, of a span as many characters: the same for every model, whether
    it can end a middle or not. A model that stops before that has written less."""
    OWN = "own"
    """All up to the model's end token, or 256 tokens: it must find the end itself. Measured where
    it reads the suffix, for without it nobody could know the end."""


class InfillRow(msgspec.Struct, frozen=True):
    """One way of asking for the parts of a set."""

    set: str
    model: str
    precision: str
    drafter: str
    cursor: str
    """A value of Cursor."""
    context: str
    """A value of Context."""
    healing: str
    """``on`` or ``off``."""
    ending: str
    """A value of Ending."""
    n: int
    num_exact: int
    """Texts that are exactly what was missing. Of whole lines, white space at their ends does not
    count; of a span every character does."""
    exact_match: float
    """Their share."""
    num_but_indentation: int
    """Texts that are exact but for white space at both ends of their lines."""
    num_passed: int | None = None
    """Texts with which the function passes its tests. None if nothing was run."""
    pass_rate: float | None = None
    """Their share."""


@dataclass(frozen=True)
class Way:
    """One way of asking for the parts of a set."""

    set: str
    cursor: Cursor
    context: Context
    heals: bool
    endings: tuple[Ending, ...]
    max_tokens: int


@dataclass(frozen=True)
class Gap:
    """A cursor, what is missing behind it, what stands behind that, and what it belongs to.

    Where whole lines are missing the cursor stands on a line that is empty but for indentation, as
    in an editor: the end of that line belongs to the suffix.
    """

    prefix: str
    missing: str
    suffix: str
    infilling: Infilling
    has_whole_lines: bool

    def shown(self, text: str) -> str:
        """Return a text for a single line as the language server shows it.

        It drops blank lines in front of a line of a block, on a line that is blank itself. Those of
        docstrings and above definitions it keeps.
        """
        is_in_docstring = self.prefix.count('"""') % 2 == 1
        if not self.has_whole_lines or "\n" in self.missing or is_in_docstring:
            return text
        return text[blank_lines.opening_len(text, self.prefix.rpartition("\n")[2]) :]

    def has_enough(self, text: str) -> bool:
        """Whether a text is as long as what is missing, in lines or characters."""
        if not self.has_whole_lines:
            return len(text) >= len(self.missing)
        shown = self.shown(text)
        # Blank lines may turn out not to be shown; the word behind them may still grow.
        grows = not text.strip() or (len(text.split()) == 1 and not text[-1].isspace())
        is_open = "\n" not in self.missing and grows
        return not is_open and shown.count("\n") > self.missing.count("\n")

    def cut(self, text: str) -> str:
        """Return as many lines of a text as are missing, or as many characters."""
        text = self.shown(text)
        if self.has_whole_lines:
            return "\n".join(text.split("\n")[: self.missing.count("\n") + 1])
        return text[: len(self.missing)]

    def is_filled(self, text: str) -> bool:
        """Whether a text is exactly what is missing."""
        if self.has_whole_lines:
            return _lines(text, str.rstrip) == _lines(self.missing, str.rstrip)
        return text == self.missing

    def is_filled_but_for_indentation(self, text: str) -> bool:
        """Whether a text is what is missing, but for white space at the ends of lines."""
        return _lines(text, str.strip) == _lines(self.missing, str.strip)

    def program(self, text: str) -> str:
        """Return what runs to its end if the function passes its tests with a text in the gap."""
        infilling = self.infilling
        function = f"{self.prefix}{text}{self.suffix}"
        return f"{function}\n{infilling.test}\ncheck({infilling.entry_point})\n"


@dataclass(frozen=True)
class Tally:
    """How many of a number of texts are right."""

    num: int
    num_exact: int
    num_but_indentation: int
    num_passed: int | None


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    sets: Sequence[InfillSet]
    drafter: str
    is_unhealed_too: bool = False
    """Whether the lines of ``single`` are asked for without healing as well."""
    judge: Judge | None = None


def measure(own: OwnEngine, plan: Plan, on_progress: OnProgress) -> list[InfillRow]:
    """Return for each set a row for each way of asking and each ending."""
    source = own.source(plan.drafter)
    has_fim = own.entry.fim is not None
    asked = [
        (one, way)
        for one in plan.sets
        for way in ways(one.name, has_fim=has_fim, is_unhealed_too=plan.is_unhealed_too)
    ]
    rows: list[InfillRow] = []
    for number, (one, way) in enumerate(asked):
        gaps = [gap(infilling, way.cursor, one.has_whole_lines) for infilling in one.infillings]
        texts: list[str] = []
        for at, place in enumerate(gaps):
            fraction = (number + at / len(gaps)) / len(asked)
            on_progress(fraction, f"{way.set}, cursor {way.cursor}, {way.context}")
            texts.append(write(own, source, place, way))
        for ending in way.endings:
            tally = count(gaps, texts, ending, plan.judge)
            rows.append(_row(own, source.name, way, ending, tally))
    on_progress(1.0, "done")
    return rows


def ways(name: str, *, has_fim: bool, is_unhealed_too: bool) -> list[Way]:
    """Return the ways in which a model is asked for the parts of a set.

    A suggestion for one line is always cut to its line, as an editor shows it.
    """
    is_single = name == "single"
    cursors = (Cursor.LINE_START, Cursor.INDENTED) if is_single else (Cursor.GIVEN,)
    contexts = (Context.PREFIX, Context.BOTH) if has_fim else (Context.PREFIX,)
    healing = (False, True) if is_single and is_unhealed_too else (True,)
    return [
        Way(
            set=name,
            cursor=cursor,
            context=context,
            heals=heals,
            endings=tuple(Ending) if context is Context.BOTH and not is_single else (Ending.CUT,),
            max_tokens=LINE_TOKENS if is_single else MAX_TOKENS,
        )
        for cursor in cursors
        for context in contexts
        for heals in healing
    ]


def gap(infilling: Infilling, cursor: Cursor, has_whole_lines: bool) -> Gap:
    """Return where the cursor stands; what is before it in the missing part is there already."""
    missing, suffix = infilling.canonical_solution, infilling.suffix
    if has_whole_lines and missing.endswith("\n"):
        missing, suffix = missing[:-1], f"\n{suffix}"
    is_indented = cursor is Cursor.INDENTED
    num_spaces = len(missing) - len(missing.lstrip()) if is_indented else 0
    return Gap(
        prefix=infilling.prompt + missing[:num_spaces],
        missing=missing[num_spaces:],
        suffix=suffix,
        infilling=infilling,
        has_whole_lines=has_whole_lines,
    )


def write(own: OwnEngine, source: DrafterSource, place: Gap, way: Way) -> str:
    """Return what the model writes behind a cursor, greedily, as far as any ending needs it."""
    suffix = place.suffix if way.context is Context.BOTH else ""
    prompt = own.layout.lay_out(place.prefix, suffix, heal=way.heals)
    session = own.session(prompt, source, way.max_tokens)
    is_cut = Ending.OWN not in way.endings
    text = ""
    try:
        while session.stop_reason is None and not (is_cut and place.has_enough(text)):
            text += session.advance()
        return text + session.finish_text()
    finally:
        session.close()


def count(gaps: Sequence[Gap], texts: Sequence[str], ending: Ending, judge: Judge | None) -> Tally:
    """Count the texts that fill their gaps."""
    filled = [
        (place, place.cut(text) if ending is Ending.CUT else text)
        for place, text in zip(gaps, texts, strict=True)
    ]
    programs = [place.program(text) for place, text in filled]
    return Tally(
        num=len(filled),
        num_exact=sum(place.is_filled(text) for place, text in filled),
        num_but_indentation=sum(
            place.is_filled_but_for_indentation(text) for place, text in filled
        ),
        num_passed=None if judge is None else sum(judge(programs)),
    )


def _row(own: OwnEngine, drafter: str, way: Way, ending: Ending, tally: Tally) -> InfillRow:
    passed = tally.num_passed
    return InfillRow(
        set=way.set,
        model=own.entry.name,
        precision=own.models.target.precision,
        drafter=drafter,
        cursor=way.cursor,
        context=way.context,
        healing="on" if way.heals else "off",
        ending=ending,
        n=tally.num,
        num_exact=tally.num_exact,
        exact_match=round(tally.num_exact / tally.num, 4),
        num_but_indentation=tally.num_but_indentation,
        num_passed=passed,
        pass_rate=None if passed is None else round(passed / tally.num, 4),
    )


def _lines(text: str, strip: Callable[[str], str]) -> list[str]:
    """Return the lines of a text, stripped; empty ones at its end do not count."""
    return [strip(line) for line in text.rstrip().split("\n")]
