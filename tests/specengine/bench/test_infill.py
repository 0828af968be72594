from __future__ import annotations

import pytest

from specengine.bench.infill import Cursor, ask, first_line, measure
from specengine.bench.own import OwnEngine
from specengine.bench.workloads import Infilling

INFILLING = Infilling("def f(x):\n", "    return y\n", "    y = x\n")


@pytest.mark.parametrize(
    ("cursor", "prefix", "missing"),
    [
        (Cursor.LINE_START, "def f(x):\n", "    y = x\n"),
        (Cursor.INDENTED, "def f(x):\n    ", "y = x\n"),
    ],
)
def test_cursor_stands_before_or_behind_the_indentation(cursor: Cursor, prefix: str, missing: str):
    assert ask(INFILLING, cursor) == (prefix, missing)


def test_each_cursor_is_tried_with_and_without_healing(tiny_engine: OwnEngine):
    written = first_line(tiny_engine, tiny_engine.source("none"), "def f(x):\n", heal=False)
    expected = Infilling("def f(x):\n", "", f"{written}\n")
    rows = measure(tiny_engine, [expected, INFILLING], "suffix", lambda fraction, detail: None)
    assert [(row.cursor, row.healing) for row in rows] == [
        ("line_start", "off"),
        ("line_start", "on"),
        ("indented", "off"),
        ("indented", "on"),
    ]
    assert (rows[0].n, rows[0].num_exact, rows[0].exact_match) == (2, 1, 0.5)
    assert rows[0].num_but_indentation == 1
    assert rows[0].pass_rate is None


def test_first_line_ends_before_its_line_end(tiny_engine: OwnEngine):
    line = first_line(tiny_engine, tiny_engine.source("none"), "def f(x):\n    ", heal=True)
    assert "\n" not in line
    assert line == line.rstrip()
