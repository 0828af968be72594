"""Facts about the prompt that a typing user goes on from."""

from __future__ import annotations

import pytest

from lsp_server.documents import Edit
from lsp_server.held_prompt import MAX_TYPED_CHARS, HeldPrompt
from lsp_server.prompt import Budget, Prompt
from lsp_server.typed import Typed

BUDGET = Budget(4000, 1000)
HELD = HeldPrompt(Prompt("def f(", "\nx = 1\n"), Typed(6), BUDGET)


def after(*edits: Edit) -> HeldPrompt | None:
    held: HeldPrompt | None = HELD
    for edit in edits:
        held = None if held is None else held.after(edit)
    return held


def test_typed_text_goes_on_with_the_prefix_alone():
    held = after(Edit(6, 6, "a"), Edit(7, 7, ", b"))
    assert held is not None
    assert held.at(10, BUDGET) == Prompt("def f(a, b", "\nx = 1\n")


def test_bracket_that_the_editor_closes_leaves_the_suffix_as_it_is():
    """A model that reads the suffix first would have to read all of the prompt again."""
    held = after(Edit(6, 6, "[]"), Edit(7, 7, "a"))
    assert held is not None
    assert held.at(8, BUDGET) == Prompt("def f([a", "\nx = 1\n")


def test_line_end_of_windows_is_typed_as_one():
    held = after(Edit(6, 6, "a\r\n"))
    assert held is not None
    assert held.at(9, BUDGET) == Prompt("def f(a\n", "\nx = 1\n")


@pytest.mark.parametrize(
    ("cursor", "budget"),
    [(3, BUDGET), (6, Budget(4000, 999))],
    ids=["the cursor jumps", "other limits"],
)
def test_other_place_makes_a_new_one(cursor: int, budget: Budget):
    assert HELD.at(6, BUDGET) == HELD.prompt
    assert HELD.at(cursor, budget) is None


def test_change_elsewhere_makes_a_new_one():
    assert after(Edit(9, 9, "y")) is None
    assert after(Edit(0, 1, "")) is None


@pytest.mark.parametrize(
    ("num_chars", "budget", "is_held"),
    [
        (MAX_TYPED_CHARS, BUDGET, True),
        (MAX_TYPED_CHARS + 1, BUDGET, False),
        (94, Budget(100, 10), True),
        (95, Budget(100, 10), False),
    ],
)
def test_long_typing_makes_a_new_one(num_chars: int, budget: Budget, is_held: bool):
    held = HeldPrompt(HELD.prompt, Typed(6), budget).after(Edit(6, 6, "x" * num_chars))
    assert held is not None
    assert (held.at(6 + num_chars, budget) is not None) is is_held
