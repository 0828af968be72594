"""Facts about suggestions that are found again."""

import pytest

from lsp_server.prompt import Prompt
from lsp_server.suggestion_cache import Suggestion, SuggestionCache, remaining

SHOWN = Suggestion(Prompt("x = ", "\ny"), "foo(1)\nbar")


@pytest.mark.parametrize(
    ("prefix", "suffix", "expected"),
    [
        ("x = ", "\ny", "foo(1)\nbar"),
        ("x = fo", "\ny", "o(1)\nbar"),
        ("x = foo(", ")\ny", "1)\nbar"),
        ("x = foo(1)\nb", "\ny", "ar"),
        ("x = foo(1)\nbar", "\ny", None),
        ("x = fx", "\ny", None),
        ("x =", "\ny", None),
        ("x = fo", "\nz", None),
        ("x = fo", ")\ny", None),
        ("y = fo", "\ny", None),
    ],
)
def test_prompt_that_goes_on_as_written_is_answered(prefix: str, suffix: str, expected: str | None):
    assert expected == remaining(SHOWN, Prompt(prefix, suffix))


def test_nothing_to_say_is_remembered():
    cache = SuggestionCache()
    cache.store(Suggestion(Prompt("a", ""), ""))
    assert cache.find(Prompt("a", "")) == ""
    assert cache.find(Prompt("ab", "")) is None


def test_newest_suggestion_wins():
    cache = SuggestionCache()
    cache.store(Suggestion(Prompt("a", ""), "bcd"))
    cache.store(Suggestion(Prompt("ab", ""), "xy"))
    assert cache.find(Prompt("ab", "")) == "xy"
    assert cache.find(Prompt("abc", "")) == "d"


def test_oldest_suggestion_makes_room():
    cache = SuggestionCache(capacity=2)
    for name in "abc":
        cache.store(Suggestion(Prompt(name, ""), "text"))
    assert cache.find(Prompt("a", "")) is None
    assert cache.find(Prompt("b", "")) == "text"
    cache.clear()
    assert cache.find(Prompt("b", "")) is None
