"""Facts about the circuit breaker."""

from __future__ import annotations

import pytest

from specengine.upstream.breaker import FIRST_PAUSE_S, MAX_FAILURES, MAX_PAUSE_S, Breaker


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(MAX_FAILURES):
        assert breaker.can_ask
        breaker.fail()
    return breaker


def test_some_failures_in_a_row_open_it(opened: Breaker):
    assert not opened.can_ask
    assert opened.wait_s == FIRST_PAUSE_S


def test_an_answer_between_failures_keeps_it_closed(clock: Clock):
    breaker = Breaker(clock)
    for _ in range(MAX_FAILURES * 3):
        breaker.fail()
        assert not breaker.is_healthy
        breaker.succeed()
    assert breaker.can_ask
    assert breaker.is_healthy


def test_a_final_failure_opens_it_at_once(clock: Clock):
    breaker = Breaker(clock)
    breaker.fail(is_final=True)
    assert not breaker.can_ask


def test_after_the_pause_one_request_tries_alone(opened: Breaker, clock: Clock):
    clock.now_s += FIRST_PAUSE_S
    assert opened.can_ask
    opened.begin()
    assert not opened.can_ask
    opened.succeed()
    opened.end()
    assert opened.can_ask


def test_a_trial_that_is_cancelled_lets_another_try(opened: Breaker, clock: Clock):
    clock.now_s += FIRST_PAUSE_S
    opened.begin()
    opened.end()
    assert opened.can_ask


def test_each_failed_trial_doubles_the_pause_up_to_a_limit(opened: Breaker, clock: Clock):
    pauses_s: list[float] = []
    for _ in range(40):
        pauses_s.append(opened.wait_s)
        clock.now_s += opened.wait_s
        opened.begin()
        opened.fail()
        opened.end()
    assert pauses_s[:3] == [FIRST_PAUSE_S, FIRST_PAUSE_S * 2, FIRST_PAUSE_S * 4]
    assert pauses_s[-1] == MAX_PAUSE_S


def test_a_wish_to_be_left_alone_is_no_failure(clock: Clock):
    breaker = Breaker(clock)
    breaker.rest(7)
    assert not breaker.can_ask
    assert breaker.is_healthy
    clock.now_s += 7
    assert breaker.can_ask
