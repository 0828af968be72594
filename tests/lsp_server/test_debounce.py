"""Facts about the pause before a request."""

import pytest

from lsp_server.debounce import KeystrokePace


def typed(*times_ms: float) -> KeystrokePace:
    pace = KeystrokePace()
    for time_ms in times_ms:
        pace.observe(time_ms)
    return pace


@pytest.mark.parametrize(
    ("times_ms", "now_ms", "expected"),
    [
        ((), 0, 0),
        ((1000,), 1000, 0),
        ((1000, 1040, 1080), 1080, 20),
        ((1000, 1040, 1080), 1110, 10),
        ((1000, 1040, 1080), 1200, 0),
        ((1000, 1150, 1300), 1300, 0),
        ((1000, 1040, 1080, 9000), 9000, 0),
    ],
)
def test_only_a_burst_waits(times_ms: tuple[float, ...], now_ms: float, expected: float):
    assert expected == typed(*times_ms).delay_ms(now_ms, 20)


def test_zero_turns_it_off():
    assert typed(0, 10, 20).delay_ms(20, 0) == 0


def test_speed_of_long_ago_is_forgotten():
    assert typed(0, 10, 20, 30, 230, 430, 630, 830).delay_ms(830, 20) == 0
