"""Facts about the pause before a request."""

import pytest

from lsp_server.debounce import KeystrokePace

MAX_MS = 60


def typed(*times_ms: float, answer_ms: float | None = 200) -> KeystrokePace:
    pace = KeystrokePace()
    for time_ms in times_ms:
        pace.observe(time_ms)
    if answer_ms is not None:
        pace.observe_answer(answer_ms)
    return pace


@pytest.mark.parametrize(
    ("times_ms", "now_ms", "expected"),
    [
        ((), 0, 0),
        ((1000,), 1000, 0),
        ((1000, 1040, 1080), 1080, 48),
        ((1000, 1040, 1080), 1110, 18),
        ((1000, 1040, 1080), 1200, 0),
        ((1000, 1150, 1300), 1300, 60),
        ((1000, 1300, 1600), 1600, 0),
        ((1000, 1040, 1080, 9000), 9000, 0),
    ],
    ids=[
        "nothing typed",
        "a single key",
        "in a burst",
        "later in it",
        "the next key is overdue",
        "at most so long",
        "the answer comes before the next key",
        "after a pause",
    ],
)
def test_wait_ends_when_the_next_key_is_overdue(
    times_ms: tuple[float, ...], now_ms: float, expected: float
):
    assert typed(*times_ms).delay_ms(now_ms, MAX_MS) == expected


@pytest.mark.parametrize(("answer_ms", "expected"), [(30, 0), (41, 48), (None, 0)])
def test_answer_that_beats_the_next_key_is_asked_for_at_once(
    answer_ms: float | None, expected: float
):
    pace = typed(1000, 1040, 1080, answer_ms=answer_ms)
    assert pace.delay_ms(1080, MAX_MS) == expected


def test_one_slow_answer_changes_little():
    pace = typed(1000, 1040, 1080, answer_ms=5000)
    pace.observe_answer(20)
    pace.observe_answer(30)
    assert pace.delay_ms(1080, MAX_MS) == 0


def test_answers_that_never_come_are_known_to_be_slow():
    """Else who types faster than the engine answers would never be waited for."""
    pace = typed(1000, 1100, 1200, answer_ms=None)
    for _ in range(3):
        pace.observe_answer(100, has_come=False)
    assert pace.delay_ms(1200, MAX_MS) == MAX_MS


def test_zero_turns_it_off():
    assert typed(0, 10, 20).delay_ms(20, 0) == 0


def test_speed_of_long_ago_is_forgotten():
    assert typed(0, 10, 20, 30, 230, 430, 630, 830).delay_ms(830, MAX_MS) == 0
