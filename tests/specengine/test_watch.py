"""What is switched off, when, and for how long."""

from __future__ import annotations

import logging

import pytest

from specengine.decoding.session import Drafting
from specengine.watch import MAX_FAILURES, MAX_PAUSE_S, PAUSE_S, Watch


class Hall:
    """A watch with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_changes = 0
        self.watch = Watch(self._change, lambda: self.now)

    def _change(self) -> None:
        self.num_changes += 1

    def plain(self, num_passes: int, ms: float) -> None:
        """Tell passes without a draft: a token each."""
        self._note("", Drafting(timed_tokens=num_passes, verify_ms=num_passes * ms))

    def _note(self, name: str, told: Drafting) -> None:
        self.watch.note({name: told})
        self.watch.note_pace({name: told})

    def drafted(
        self, num_drafts: int, accepted: int, ms: float = 1.0, name: str = "suffix"
    ) -> None:
        """Tell drafts of four tokens, so many of which were accepted each time."""
        told = Drafting(
            drafts=num_drafts,
            drafted=4 * num_drafts,
            accepted=accepted * num_drafts,
            timed_tokens=(accepted + 1) * num_drafts,
            draft_ms=0.1 * ms * num_drafts,
            verify_ms=0.9 * ms * num_drafts,
        )
        self._note(name, told)


def test_a_drafter_that_pays_stays_on() -> None:
    hall = Hall()
    for _ in range(50):
        hall.plain(50, 1.0)
        hall.drafted(50, 2)
    assert not hall.watch.switched_off
    assert hall.num_changes == 0


def test_a_drafter_slower_than_plain_decoding_is_switched_off_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hall = Hall()
    hall.plain(400, 1.0)
    with caplog.at_level(logging.WARNING):
        hall.drafted(400, 0, ms=1.5)
    (off,) = hall.watch.switched_off
    assert (off.kind, off.name) == ("drafter", "suffix")
    assert off.reason == "1.5 ms a token with its drafts, 1.0 ms without"
    assert hall.watch.usable("suffix+draft_model") == "draft_model"
    assert hall.watch.usable("suffix") == "none"
    assert hall.watch.summary == f"drafter suffix is off: {off.reason}"
    assert off.reason in caplog.text
    assert hall.num_changes == 1


def test_a_few_slow_drafts_prove_nothing() -> None:
    hall = Hall()
    hall.plain(400, 1.0)
    hall.drafted(40, 0, ms=9.0)
    assert not hall.watch.switched_off


def test_without_plain_passes_nothing_is_judged() -> None:
    hall = Hall()
    hall.drafted(4000, 0, ms=9.0)
    assert not hall.watch.switched_off


def test_what_was_switched_off_is_tried_again_after_ever_longer_pauses() -> None:
    hall = Hall()
    hall.plain(400, 1.0)
    expected = PAUSE_S
    for _ in range(8):
        hall.drafted(400, 0, ms=1.5)
        assert hall.watch.is_off("drafter", "suffix")
        hall.now += expected - 1
        assert hall.watch.is_off("drafter", "suffix")
        hall.now += 1
        assert not hall.watch.is_off("drafter", "suffix")
        assert hall.watch.usable("suffix") == "suffix"
        assert not hall.watch.summary
        expected = min(2 * expected, MAX_PAUSE_S)


def test_a_wish_for_a_slow_drafter_is_granted_for_a_broken_one_not() -> None:
    hall = Hall()
    hall.watch.switch_off("drafter", "suffix", "slow", pause_s=5)
    assert hall.watch.allowed("suffix") == "suffix"
    hall.watch.switch_off("drafter", "suffix", "broken")
    assert hall.watch.allowed("suffix") == "none"
    hall.now = 1e9
    assert hall.watch.is_broken("drafter", "suffix")


def test_acceptance_far_below_its_own_long_run_raises_the_alarm_until_it_recovers() -> None:
    hall = Hall()
    for _ in range(30):
        hall.drafted(100, 3)
    assert not hall.watch.alarms
    for _ in range(4):
        hall.drafted(100, 1)
    assert hall.watch.alarms == ["suffix"]
    assert hall.num_changes == 1
    recent, long_run = hall.watch.acceptance["suffix"]
    assert recent < 0.5 * long_run
    for _ in range(4):
        hall.drafted(100, 3)
    assert not hall.watch.alarms
    assert hall.num_changes == 2


def test_a_drafter_that_was_never_good_raises_no_alarm() -> None:
    hall = Hall()
    for _ in range(50):
        hall.drafted(100, 0)
    assert not hall.watch.alarms


def test_drafters_are_judged_apart() -> None:
    hall = Hall()
    hall.plain(400, 1.0)
    hall.drafted(400, 0, ms=1.5, name="suffix")
    hall.drafted(400, 2, ms=1.5, name="draft_model")
    assert [off.name for off in hall.watch.switched_off] == ["suffix"]


def test_a_drafter_that_fails_again_and_again_is_off_for_good() -> None:
    hall = Hall()
    for _ in range(MAX_FAILURES - 1):
        hall.watch.note_failure("suffix")
    hall.watch.note_success("suffix")
    for _ in range(MAX_FAILURES - 1):
        hall.watch.note_failure("suffix")
    assert not hall.watch.switched_off
    hall.watch.note_failure("suffix")
    assert hall.watch.is_broken("drafter", "suffix")
    assert "failed on 3 requests" in hall.watch.summary
    assert hall.num_changes == 1


def test_drafters_that_were_asked_together_are_off_together() -> None:
    hall = Hall()
    for _ in range(MAX_FAILURES):
        hall.watch.note_failure("suffix+draft_model")
    assert hall.watch.usable("suffix+draft_model") == "none"
