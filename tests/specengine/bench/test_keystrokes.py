from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from specengine.bench import keystrokes
from specengine.bench.editor import Editor, Ghost
from specengine.bench.keystrokes import Example, Key, keys_of, percentile, read_trace, row_of
from specengine.bench.workloads import example_file
from specengine.launch import EngineCommand
from specengine.protocol import Done, PhaseTimes, StopReason, TokenCounts
from specengine.settings import EngineSettings

COMMAND = EngineCommand("tiny", "suffix")
EXAMPLE = Example("class A:\n    x = 1\n\n", "    def f(self):\n        pass", "\n\n\ny = 2\n")


def record(request: int, outcome: str, steps: int = 0) -> keystrokes.Record:
    tokens = TokenCounts(prefilled=3 if steps else 0)
    ms = PhaseTimes(queue=99.0, prefill=1.0, draft=2.0, verify=10.0 * steps)
    return keystrokes.Record(request, outcome, steps, tokens, ms)


class FakeEditor:
    """Notes what it is told; every request shows one character."""

    def __init__(self) -> None:
        self.documents: list[str] = []
        self.typed: list[str] = []
        self.num_closed = 0
        self.num_requests = 0

    def open(self, name: str, text: str, cursor: int) -> None:
        self.documents.append(text[:cursor])

    def close(self) -> None:
        self.num_closed += 1

    def type(self, text: str) -> None:
        self.typed.append(text)

    async def suggest(self) -> Ghost:
        self.num_requests += 1
        return Ghost("x", 1.0, self.num_requests)


def fake() -> tuple[FakeEditor, Editor]:
    editor = FakeEditor()
    return editor, cast("Editor", editor)


def test_row_counts_what_was_shown_and_what_it_cost():
    ghosts = [
        Ghost("ab", 80.0, 1),
        Ghost("b", 2.0, 2),
        Ghost("", 50.0, 3),
        Ghost("cdef", 250.0, 4),
    ]
    records = {
        1: record(1, "shown", steps=4),
        2: record(2, "cached"),
        3: record(3, "superseded", steps=2),
        4: record(4, "adopted", steps=6),
    }
    row = row_of("typist", ghosts, records, COMMAND)
    assert (row.policy, row.model, row.drafter, row.keys) == ("typist", "tiny", "suffix", 4)
    assert (row.p50_ms, row.p95_ms, row.p99_ms) == (80.0, 250.0, 250.0)
    assert (row.shown, row.shown_100ms, row.shown_300ms) == (0.75, 0.5, 0.75)
    assert row.passes_per_shown_char == 2.0
    assert row.passes_wasted == round(2 / 12, 4)
    assert row.server_overhead_p99_ms == 2.0
    assert row.prefilled_p50 == 3
    assert row.passes_p50 == 5
    assert row.engine_p50_ms == 53.0


def test_row_without_the_engine_has_no_engine_columns():
    row = row_of("type_through", [Ghost("a", 1.0, 1)], {1: record(1, "cached")}, COMMAND)
    assert row.passes_p50 is None
    assert row.passes_per_shown_char is None
    assert row.passes_wasted is None


def test_engine_row_takes_round_trips_and_counts():
    done = Done(1, "", (), StopReason.LENGTH, None, "tiny", "none", 2, TokenCounts(), PhaseTimes())
    row = keystrokes.engine_row([(5.0, done), (7.0, done), (6.0, done)], COMMAND)
    assert (row.policy, row.keys, row.p50_ms, row.passes_p50) == ("one_more_key", 3, 6.0, 2)
    assert row.shown is None


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, 0.0), ([3.0], 99, 3.0), ([3.0, 1.0, 2.0], 50, 2.0), (list(range(1, 101)), 95, 95)],
)
def test_percentile_is_one_of_the_values(values: Sequence[float], percent: int, expected: float):
    assert percentile(values, percent) == expected


def test_new_line_and_its_indentation_are_one_key():
    keys = keys_of("if x:\n    y")
    assert [key.text for key in keys] == ["i", "f", " ", "x", ":", "\n    ", "y"]
    assert keys[0].pause_s < keys[2].pause_s < keys[5].pause_s


def test_example_is_cut_around_one_method():
    text = example_file().read_text("utf-8")
    example = Example.cut(text)
    assert example.before + example.typed + example.after == text
    assert example.before.endswith("\n")
    assert example.after.startswith("\n\n")
    assert "".join(key.text for key in keys_of(example.typed)) == example.typed


def test_each_cold_document_differs_from_its_first_character_on():
    noted, editor = fake()
    ghosts = asyncio.run(keystrokes._open_documents(editor, EXAMPLE))  # pyright: ignore[reportPrivateUsage]
    assert len(ghosts) == keystrokes.NUM_COLD == noted.num_closed
    assert len({text.partition("\n")[0] for text in noted.documents}) == keystrokes.NUM_COLD
    assert all(text.endswith("    def f(self):\n        ") for text in noted.documents)


def test_typist_sends_every_key_and_asks_after_each():
    noted, editor = fake()
    keys = [Key("a", 0), Key("b", 0)]
    ghosts = asyncio.run(keystrokes._type_at_pace(editor, EXAMPLE, keys))  # pyright: ignore[reportPrivateUsage]
    assert noted.typed == ["a", "b"]
    assert [ghost.request for ghost in ghosts] == [1, 2]


def test_engine_of_a_run_is_joined_by_nobody_else(monkeypatch: pytest.MonkeyPatch):
    first = keystrokes.own_command(EngineSettings(model="m", draft_model="d"))
    monkeypatch.setattr("os.getpid", lambda: -1)
    second = keystrokes.own_command(EngineSettings(model="m", draft_model="d"))
    assert first.arguments != second.arguments
    assert first.arguments[-2:] == ("--draft-model", "d")


def test_trace_is_read_by_request_number(tmp_path: Path):
    file = tmp_path / "trace.jsonl"
    line = {"request": 7, "outcome": "shown", "steps": 3, "tokens": {"prefilled": 2}, "ms": {}}
    file.write_text(json.dumps({**line, "language": "python"}) + "\n", "utf-8")
    assert read_trace(file)[7].tokens.prefilled == 2
