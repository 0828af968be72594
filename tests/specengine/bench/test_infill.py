from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from specengine.bench import infill
from specengine.bench.infill import (
    Cursor,
    Ending,
    Gap,
    InfillRow,
    Plan,
    count,
    gap,
    measure,
    ways,
    write,
)
from specengine.bench.own import OwnEngine
from specengine.bench.workloads import Infilling, InfillSet
from specengine.decoding.prompt import PromptLayout
from specengine.models.registry import FimTemplate
from tests.specengine.tiny import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX

TEST = "def check(candidate):\n    assert candidate(3) == 3\n"
INFILLING = Infilling("def f(x):\n", "    return y\n", "    y = x\n", TEST, "f")


@pytest.fixture(autouse=True)
def _short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infill, "MAX_TOKENS", 40)


def part(missing: str) -> Infilling:
    return msgspec.structs.replace(INFILLING, canonical_solution=missing)


def lines(missing: str) -> Gap:
    return gap(part(missing), Cursor.GIVEN, True)


def span(missing: str) -> Gap:
    return gap(part(missing), Cursor.GIVEN, False)


def with_fim(own: OwnEngine) -> OwnEngine:
    template = FimTemplate(FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
    entry = msgspec.structs.replace(own.entry, fim=template)
    return replace(own, entry=entry, layout=PromptLayout(entry, own.models.tokenizer, 256))


def rows_of(own: OwnEngine, *sets: InfillSet, **plan: Any) -> list[InfillRow]:
    return measure(own, Plan(sets, "suffix", **plan), lambda fraction, detail: None)


@pytest.mark.parametrize(
    ("cursor", "prefix", "missing"),
    [
        (Cursor.LINE_START, "def f(x):\n", "    y = x"),
        (Cursor.INDENTED, "def f(x):\n    ", "y = x"),
        (Cursor.GIVEN, "def f(x):\n", "    y = x"),
    ],
)
def test_cursor_stands_before_or_behind_the_indentation(cursor: Cursor, prefix: str, missing: str):
    place = gap(INFILLING, cursor, True)
    assert (place.prefix, place.missing, place.suffix) == (prefix, missing, "\n    return y\n")
    assert place.program(missing) == (f"def f(x):\n    y = x\n    return y\n\n{TEST}\ncheck(f)\n")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("    a = 1\n    b = 2\n    return a\n", "    a = 1\n    b = 2"),
        ("    a = 1\n    b", "    a = 1\n    b"),
        ("", ""),
    ],
)
def test_lines_are_cut_to_as_many_as_are_missing(text: str, kept: str):
    place = lines("    x\n    y\n")
    assert place.cut(text) == kept
    assert place.has_enough(text) == (text.count("\n") >= 2)


@pytest.mark.parametrize(
    ("text", "kept", "is_enough"),
    [
        ("\n    y = x\n", "    y = x", True),
        ("\n  \n    y = x", "    y = x", False),
        ("\n    def g", "", True),
        ("\n    async", "", False),
        ("\n    asyncio.run()\n", "    asyncio.run()", True),
        ("\n    # g\n", "", True),
        ("\ny = x", "", True),
        ("\n    ", "", False),
    ],
)
def test_blank_lines_before_a_single_missing_one_are_not_shown(
    text: str, kept: str, is_enough: bool
):
    place = lines("    y = x\n")
    assert place.cut(text) == kept
    assert place.has_enough(text) is is_enough
    assert lines("    x\n    y\n").cut("\n    x\n") == "\n    x"
    in_docstring = replace(place, prefix='def f(x):\n    """Do.\n')
    assert in_docstring.cut("\n    Twice.\n") == ""


def test_span_is_cut_to_as_many_characters_as_are_missing():
    place = span("é\n  y")
    assert place.cut("perations") == "perat"
    assert place.cut("per") == "per"
    assert place.has_enough("perat")
    assert not place.has_enough("pera")


def test_white_space_at_the_end_of_whole_lines_does_not_count():
    place = lines("    x\n    y\n")
    assert place.is_filled("    x  \n    y")
    assert not place.is_filled("    x\n   y\n")
    assert place.is_filled_but_for_indentation("  x\n  y\n")
    assert not place.is_filled_but_for_indentation("  x\n\n  y\n")


def test_every_character_of_a_span_counts():
    assert span("o\n").is_filled("o\n")
    assert not span("o\n").is_filled("o ")
    assert span("o\n").is_filled_but_for_indentation("o ")


def test_line_is_asked_for_at_two_cursors():
    asked = ways("single", has_fim=False, is_unhealed_too=False)
    assert [(way.cursor, way.context, way.heals) for way in asked] == [
        ("line_start", "prefix", True),
        ("indented", "prefix", True),
    ]


def test_line_is_asked_for_without_healing_if_wished():
    asked = ways("single", has_fim=False, is_unhealed_too=True)
    assert [way.heals for way in asked] == [False, True, False, True]
    assert len(ways("multi", has_fim=False, is_unhealed_too=True)) == 1


def test_line_is_always_cut():
    asked = ways("single", has_fim=True, is_unhealed_too=False)
    assert [(way.cursor, way.context, way.endings) for way in asked] == [
        ("line_start", "prefix", (Ending.CUT,)),
        ("line_start", "prefix+suffix", (Ending.CUT,)),
        ("indented", "prefix", (Ending.CUT,)),
        ("indented", "prefix+suffix", (Ending.CUT,)),
    ]


@pytest.mark.parametrize("name", ["multi", "span"])
def test_model_that_reads_the_suffix_may_end_by_itself(name: str):
    asked = ways(name, has_fim=True, is_unhealed_too=False)
    assert [(way.cursor, way.context, way.endings) for way in asked] == [
        ("given", "prefix", (Ending.CUT,)),
        ("given", "prefix+suffix", (Ending.CUT, Ending.OWN)),
    ]


def test_what_is_judged_is_what_counts():
    programs: list[str] = []

    def judge(given: Sequence[str]) -> list[bool]:
        programs.extend(given)
        return [True, False]

    texts = ["    y = x\n    z = 1\n", "    y = 0\n"]
    cut = count([lines("    y = x\n")] * 2, texts, Ending.CUT, judge)
    assert (cut.num, cut.num_exact, cut.num_passed) == (2, 1, 1)
    own = count([lines("    y = x\n")] * 2, texts, Ending.OWN, judge)
    assert own.num_exact == 0
    assert ["z = 1" in program for program in programs] == [False, False, True, False]


def test_rows_tell_what_was_exact(tiny_engine: OwnEngine):
    source = tiny_engine.source("none")
    (way,) = ways("span", has_fim=False, is_unhealed_too=False)
    expected = part(write(tiny_engine, source, span("x" * 9), way)[:9])
    (row,) = rows_of(tiny_engine, InfillSet("span", (expected, part("\0"))))
    assert (row.set, row.cursor, row.context, row.ending) == ("span", "given", "prefix", "cut")
    assert (row.n, row.num_exact, row.exact_match, row.healing) == (2, 1, 0.5, "on")
    assert (row.num_passed, row.pass_rate) == (None, None)


def test_rows_tell_what_passed(tiny_engine: OwnEngine):
    one = InfillSet("single", (INFILLING,) * 4)
    rows = rows_of(tiny_engine, one, judge=lambda programs: [True, False, False, False])
    assert [(row.num_passed, row.pass_rate) for row in rows] == [(1, 0.25), (1, 0.25)]
    assert msgspec.json.decode(msgspec.json.encode(rows[0]))["set"] == "single"


def test_suffix_is_read_by_a_model_that_was_trained_to(tiny_engine: OwnEngine):
    rows = rows_of(with_fim(tiny_engine), InfillSet("multi", (INFILLING,)))
    assert [(row.context, row.ending) for row in rows] == [
        ("prefix", "cut"),
        ("prefix+suffix", "cut"),
        ("prefix+suffix", "own"),
    ]


def test_text_goes_on_to_the_end_only_where_that_counts(tiny_engine: OwnEngine):
    own = with_fim(tiny_engine)
    source = own.source("none")
    cut, ended = ways("span", has_fim=True, is_unhealed_too=False)
    assert 3 <= len(write(own, source, span("abc"), cut)) < 20
    assert len(write(own, source, span("abc"), ended)) > 20
