"""Facts about what becomes of suggestions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lsp_server.acceptance import KEPT_AFTER_S, Acceptance, Fate
from lsp_server.documents import Edit


class Timer:
    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds, self.call = seconds, call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Desk:
    """A document with a suggestion, a clock, and what was told."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.now_s = 0.0
        self.timers: list[Timer] = []
        self.fates: list[Fate] = []
        self.acceptance = Acceptance(
            self.fates.append, lambda: self.text, self.call_later, lambda: self.now_s
        )

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def edit(self, start: int, end: int, text: str) -> None:
        self.text = self.text[:start] + text + self.text[end:]
        self.acceptance.take_edits([Edit(start, end, text)])

    def wait(self) -> None:
        self.now_s += KEPT_AFTER_S
        for timer in self.timers:
            assert timer.seconds == KEPT_AFTER_S
            if not timer.is_cancelled:
                timer.call()

    @property
    def told(self) -> list[tuple[str, int, int]]:
        return [(fate.event, fate.num, fate.chars) for fate in self.fates]


@pytest.fixture
def desk() -> Desk:
    desk = Desk("x = \n")
    desk.acceptance.show(7, ["one + two"], 4)
    return desk


def test_what_is_shown_is_told_once(desk: Desk):
    desk.acceptance.show(8, ["one + two"], 4)
    assert desk.fates == [Fate("shown", 7, 9)]


def test_suggestion_that_goes_on_as_typed_is_the_same(desk: Desk):
    desk.edit(4, 4, "o")
    desk.acceptance.show(8, ["ne + two"], 5)
    desk.edit(5, 5, "n")
    desk.acceptance.show(9, ["e + two"], 6)
    assert desk.told == [("shown", 0, 9)]


def test_another_suggestion_is_another(desk: Desk):
    desk.acceptance.show(8, ["three"], 4)
    desk.edit(0, 0, "y")
    desk.acceptance.show(9, ["three"], 5)
    assert [fate.request for fate in desk.fates] == [7, 8, 9]


def test_edit_that_inserts_all_accepts(desk: Desk):
    desk.now_s = 1.5
    desk.edit(4, 4, "one + two")
    assert desk.fates[1:] == [Fate("accepted", 7, 9, 9, 1.5)]


def test_edit_that_replaces_the_word_before_it_accepts():
    desk = Desk("x = on\n")
    desk.acceptance.show(7, ["e + two"], 6)
    desk.edit(4, 6, "one + two")
    assert desk.told[1:] == [("accepted", 7, 7)]


def test_rest_of_a_suggestion_that_was_typed_in_part_can_be_accepted(desk: Desk):
    desk.edit(4, 4, "o")
    desk.edit(5, 5, "ne + two")
    assert desk.told[1:] == [("accepted", 8, 9)]


def test_word_is_accepted_partly_and_the_rest_later(desk: Desk):
    desk.edit(4, 4, "one")
    desk.edit(7, 7, " + two")
    assert desk.told[1:] == [("partly_accepted", 3, 9), ("accepted", 6, 9)]


def test_keys_are_not_accepted(desk: Desk):
    for number, key in enumerate("one + two"):
        desk.edit(4 + number, 4 + number, key)
    assert desk.told == [("shown", 0, 9)]


def test_pair_that_the_editor_closes_is_one_key():
    desk = Desk("x\n")
    desk.acceptance.show(7, ["(a)"], 1)
    desk.edit(1, 1, "()")
    assert desk.told == [("shown", 0, 3)]
    desk.acceptance.show(8, ["a)"], 2)
    assert desk.told == [("shown", 0, 3)]


def test_other_text_accepts_nothing(desk: Desk):
    desk.edit(4, 4, "onto")
    desk.edit(8, 8, "one + two")
    assert desk.told == [("shown", 0, 9)]


def test_alternative_can_be_accepted():
    desk = Desk("x = \n")
    desk.acceptance.show(7, ["one", "two + three"], 4)
    desk.edit(4, 4, "two + three")
    assert desk.told[1:] == [("accepted", 11, 3)]


def test_command_says_nothing_new_behind_the_edit(desk: Desk):
    desk.edit(4, 4, "one + two")
    desk.acceptance.accept(7)
    assert len(desk.fates) == 2


def test_command_tells_what_the_edits_did_not(desk: Desk):
    desk.edit(0, 4, "y = ")
    desk.acceptance.accept(99)
    assert len(desk.fates) == 1
    desk.acceptance.accept(7)
    desk.acceptance.accept(7)
    assert desk.told[1:] == [("accepted", 9, 9)]


def test_notification_of_a_part_says_nothing_new_behind_the_edit(desk: Desk):
    desk.edit(4, 4, "one")
    desk.acceptance.accept_partly(7, "one + two", 6)
    assert desk.told[1:] == [("partly_accepted", 3, 9)]


@pytest.mark.parametrize(
    ("num_left", "event", "num"), [(6, "partly_accepted", 3), (0, "accepted", 9)]
)
def test_edit_says_nothing_new_behind_the_notification(
    desk: Desk, num_left: int, event: str, num: int
):
    desk.acceptance.accept_partly(7, "one + two", num_left)
    desk.edit(4, 4, "one + two"[:num])
    assert desk.told[1:] == [(event, num, 9)]
    desk.wait()
    assert desk.told[2:] == [("kept", num, num)]


def test_command_may_come_before_the_edit(desk: Desk):
    desk.acceptance.accept(7)
    desk.edit(4, 4, "one + two")
    assert desk.told[1:] == [("accepted", 9, 9)]
    desk.wait()
    assert desk.told[2:] == [("kept", 9, 9)]


def test_part_of_a_rest_that_is_shown_behind_what_was_typed(desk: Desk):
    desk.edit(4, 4, "o")
    desk.acceptance.show(8, ["ne + two"], 5)
    desk.acceptance.accept_partly(8, "ne + two", 6)
    desk.edit(5, 5, "ne")
    assert desk.told[1:] == [("partly_accepted", 2, 9)]


def test_part_of_an_item_that_was_never_shown_is_nothing(desk: Desk):
    desk.acceptance.accept_partly(7, "three", 1)
    desk.acceptance.accept_partly(9, "one + two", 1)
    assert len(desk.fates) == 1


def test_text_that_stays_is_kept(desk: Desk):
    desk.edit(4, 4, "one + two")
    desk.edit(0, 0, "# a line above\n")
    desk.edit(28, 28, " + more behind")
    desk.wait()
    assert desk.fates[-1] == Fate("kept", 7, 9, 9, KEPT_AFTER_S)


def test_text_that_is_deleted_is_not_kept(desk: Desk):
    desk.edit(4, 4, "one + two")
    desk.edit(0, 14, "")
    desk.wait()
    assert desk.told[-1] == ("kept", 0, 9)


def test_text_that_is_changed_is_kept_in_part(desk: Desk):
    desk.edit(4, 4, "one + two")
    desk.edit(4, 7, "1")
    desk.wait()
    assert desk.told[-1] == ("kept", 6, 9)


def test_other_word_with_the_same_letters_is_not_kept(desk: Desk):
    desk.edit(4, 4, "one + two")
    desk.edit(4, 13, "noet(wo)")
    desk.wait()
    assert desk.told[-1] == ("kept", 0, 9)


def test_text_that_a_formatter_writes_anew_is_kept(desk: Desk):
    desk.edit(4, 4, "one + two")
    desk.edit(0, len(desk.text), "x = one + two\n")
    desk.wait()
    assert desk.told[-1] == ("kept", 9, 9)


def test_closed_document_is_compared_at_once(desk: Desk):
    desk.edit(4, 4, "one + two")
    desk.acceptance.close()
    assert desk.told[-1] == ("kept", 9, 9)
    desk.wait()
    assert len(desk.fates) == 3
