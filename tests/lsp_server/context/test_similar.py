"""Facts about stretches that are like another."""

from __future__ import annotations

from lsp_server.context.similar import (
    STEP_LINES,
    WINDOW_LINES,
    best_window,
    windows_of,
    words_of,
)


def test_words_are_what_a_project_calls_things():
    assert words_of("def add(self, total): return total + 12 + naïve_π") == {
        "add", "total", "naïve_π",
    }  # fmt: skip


def test_windows_overlap_and_cover_all_lines():
    lines = [f"name_{number}" for number in range(3 * WINDOW_LINES)]
    windows = windows_of(lines)
    assert [window.first_line for window in windows][:3] == [0, STEP_LINES, 2 * STEP_LINES]
    assert frozenset(lines) == frozenset().union(*(window.words for window in windows))


def test_short_file_is_one_window():
    assert len(windows_of(["one_word"])) == 1


def test_the_likest_window_is_found():
    lines = ["unrelated_thing"] * 60 + ["queue_depth = retry_count", "retry_count += 1"] * 20
    best = best_window(windows_of(lines), words_of("queue_depth retry_count"))
    assert best is not None
    likeness, line = best
    assert line == 60
    assert likeness == 1.0


def test_nothing_alike_is_nothing():
    assert best_window(windows_of(["alpha_beta"]), words_of("gamma delta")) is None
    assert best_window([], words_of("gamma delta")) is None
    assert best_window(windows_of([""]), words_of("")) is None
