from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from specengine.bench import keystrokes
from specengine.bench.editor import Editor, Ghost
from specengine.bench.keystrokes import (
    Example,
    Phases,
    Played,
    Script,
    Trace,
    percentile,
    read_trace,
    row_of,
)
from specengine.bench.typist import Stroke, keys_of
from specengine.bench.workloads import example_file
from specengine.launch import EngineCommand
from specengine.protocol import Done, PhaseTimes, StopReason, TokenCounts
from specengine.settings import EngineSettings

COMMAND = EngineCommand("tiny", "suffix")
EXAMPLE = Example("class A:\n    x = 1\n\n", "    def f(self):\n        pass", "\n\n\ny = 2\n")


def record(request: int, outcome: str, steps: int = 0) -> keystrokes.Record:
    tokens = TokenCounts(prefilled=3 if steps else 0)
    ms = Phases(context=0.5, prefill=1.0, draft=2.0, verify=10.0 * steps, postprocess=0.25)
    late = 1 if outcome == "superseded" else 0
    return keystrokes.Record(request, outcome, steps, tokens, ms, late_steps=late)


class FakeEditor:
    """Notes what it is told; requests show what the test says, or one character."""

    def __init__(self, *shown: str) -> None:
        self.documents: list[str] = []
        self.typed: list[str] = []
        self.shown = list(shown)
        self.text, self.cursor = "", 0
        self.num_closed = 0
        self.num_requests = 0

    def open(self, name: str, text: str, cursor: int) -> None:
        self.documents.append(text[:cursor])
        self.text, self.cursor = text, cursor

    def close(self) -> None:
        self.num_closed += 1

    def type(self, text: str) -> None:
        self.typed.append(text)
        self._insert(text, 0)

    def type_pair(self, opener: str, closer: str) -> None:
        self.typed.append(opener + closer)
        self._insert(opener + closer, 0)
        self.cursor -= 1

    def type_over(self, text: str) -> None:
        self.typed.append(text)
        self._insert(text, len(text))

    def accept(self, ghost: Ghost) -> None:
        self.typed.append(f"accept {ghost.text!r}")
        self._insert(ghost.text, ghost.num_covered)

    def delete(self, num_chars: int) -> None:
        self.typed.append("delete")
        self.text = self.text[: self.cursor - num_chars] + self.text[self.cursor :]
        self.cursor -= num_chars

    def _insert(self, text: str, num_covered: int) -> None:
        self.text = self.text[: self.cursor] + text + self.text[self.cursor + num_covered :]
        self.cursor += len(text)

    async def suggest(self) -> Ghost:
        self.num_requests += 1
        text = self.shown[self.num_requests - 1] if self.shown else "x"
        return Ghost(text, 1.0, self.num_requests)


def fake(*shown: str) -> tuple[FakeEditor, Editor]:
    editor = FakeEditor(*shown)
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
    ahead = [record(1, "superseded", steps=3), record(9, "adopted", steps=5)]
    played = Played(ghosts, num_accepted=5, num_chars=20)
    row = row_of("session", played, Trace(records, ahead), COMMAND)
    assert (row.policy, row.model, row.drafter, row.keys) == ("session", "tiny", "suffix", 4)
    assert (row.p50_ms, row.p95_ms, row.p99_ms) == (80.0, 250.0, 250.0)
    assert (row.shown, row.shown_100ms, row.shown_300ms) == (0.75, 0.5, 0.75)
    assert row.passes == 15, "of request 9 nothing was seen here"
    assert row.passes_per_shown_char == round(15 / 7, 4)
    assert row.tokens_per_shown_char == round((15 + 4 * 3) / 7, 4)
    assert (row.accepted, row.passes_per_accepted_char) == (0.25, 3.0)
    assert row.passes_wasted == round(5 / 15, 4)
    assert (row.passes_late, row.passes_ahead) == (1.0, 0.2)
    assert row.server_overhead_p99_ms == 2.0
    assert row.prefilled_p50 == 3
    assert row.passes_p50 == 5
    assert row.engine_p50_ms == 53.0


def test_row_without_the_engine_has_no_engine_columns():
    played, trace = Played([Ghost("a", 1.0, 1)]), Trace({1: record(1, "cached")})
    row = row_of("type_through", played, trace, COMMAND)
    assert row.passes_p50 is None
    assert (row.passes, row.passes_per_shown_char) == (0, 0.0)
    assert row.passes_wasted is None
    assert row.passes_per_accepted_char is None


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


def test_example_is_cut_around_one_method():
    text = example_file().read_text("utf-8")
    example = Example.cut(text)
    assert example.before + example.typed + example.after == text
    assert example.before.endswith("\n")
    assert example.after.startswith("\n\n")
    assert "".join(keys_of(example.typed)) == example.typed


def test_each_cold_document_differs_from_its_first_character_on():
    noted, editor = fake()
    ghosts = asyncio.run(keystrokes._open_documents(editor, EXAMPLE))  # pyright: ignore[reportPrivateUsage]
    assert len(ghosts) == keystrokes.NUM_COLD == noted.num_closed
    assert len({text.partition("\n")[0] for text in noted.documents}) == keystrokes.NUM_COLD
    assert all(text.endswith("    def f(self):\n        ") for text in noted.documents)


def insert(text: str, num_done: int | None, pause_s: float = 0.0) -> Stroke:
    return Stroke("insert", text, pause_s, num_done)


def play(editor: Editor, typed: str, *strokes: Stroke) -> Played:
    played = Played()
    script = Script("a.py", "x = ", typed, "\n")
    asyncio.run(keystrokes.play_script(editor, script, strokes, played))
    return played


def test_person_sends_every_key_and_asks_after_each():
    noted, editor = fake()
    strokes = [
        insert("a", 1),
        Stroke("pair", "(", 0.0, 2),
        insert("y", None),
        Stroke("delete", "", 0.0, None),
        insert("b", 3),
        Stroke("over", ")", 0.0, 4),
    ]
    played = play(editor, "a(b)", *strokes)
    assert noted.typed == ["a", "()", "y", "delete", "b", ")"]
    assert noted.text == "x = a(b)\n"
    assert [ghost.request for ghost in played.ghosts] == [1, 2, 3, 4, 5, 6]
    assert (played.num_accepted, played.num_chars) == (0, 4)


def test_right_suggestion_is_accepted_in_a_pause(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keystrokes, "READ_S", 0.01)
    monkeypatch.setattr(keystrokes, "ACCEPTED_PAUSE_S", 0.0)
    noted, editor = fake("bcd\n", "  e wrong", "e", "")
    strokes = [
        insert("a", 1, 0.01),
        insert("q", None),
        insert("b", 2),
        insert("\n  ", 7),
        insert("e", 8),
    ]
    played = play(editor, "abcd\n  e", *strokes)
    assert noted.typed == ["a", "accept 'bcd\\n'", "  ", "e"], "the mistake before b is spared too"
    assert noted.text == "x = abcd\n  e\n"
    assert (played.num_accepted, played.num_chars) == (4, 8)


def test_suggestion_is_not_accepted_in_a_hurry_or_if_it_is_wrong_or_short(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(keystrokes, "READ_S", 0.01)
    noted, editor = fake("bcdef", "cdefX", "def", "")
    strokes = [insert("a", 1), insert("b", 2, 0.01), insert("c", 3, 0.01), insert("d", 4)]
    play(editor, "abcdef", *strokes)
    assert noted.typed == ["a", "b", "c", "d"]


def test_large_file_has_its_length_and_the_example_in_the_middle():
    large = keystrokes.enlarged(Example.cut(example_file().read_text("utf-8")))
    text = large.before + large.typed + large.after
    assert abs(text.count("\n") - keystrokes.LARGE_LINES) < 20
    assert 0.3 < len(large.before) / len(text) < 0.7


def test_scripts_have_more_text_than_keys():
    scripts = keystrokes.scripts_of(EXAMPLE, 500)
    assert sum(len(script.typed) for script in scripts) > 1000
    assert scripts[0].typed == EXAMPLE.typed


def test_engine_of_a_run_is_joined_by_nobody_else(monkeypatch: pytest.MonkeyPatch):
    first = keystrokes.own_command(EngineSettings(model="m", draft_model="d"), 1)
    other = keystrokes.own_command(EngineSettings(model="m", draft_model="d"), 2)
    monkeypatch.setattr("os.getpid", lambda: -1)
    second = keystrokes.own_command(EngineSettings(model="m", draft_model="d"), 1)
    assert len({first.arguments, other.arguments, second.arguments}) == 3
    assert first.arguments[-2:] == ("--draft-model", "d")


def test_trace_is_read_by_request_number(tmp_path: Path):
    file = tmp_path / "trace.jsonl"
    line = {"request": 7, "outcome": "shown", "steps": 3, "tokens": {"prefilled": 2}, "ms": {}}
    ahead = {**line, "trigger": "ahead", "steps": 1}
    file.write_text(
        "".join(json.dumps(one) + "\n" for one in ({**line, "language": "python"}, ahead))
    )
    trace = read_trace(file)
    assert trace.requests[7].tokens.prefilled == 2
    assert [record.steps for record in trace.ahead] == [1]
