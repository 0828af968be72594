"""Facts about suggestions that are found again."""

import pytest

from lsp_server.prompt import Prompt
from lsp_server.suggestion_cache import Suggestion, SuggestionCache, remaining

SHOWN = Suggestion(Prompt("x = ", "\ny"), "fun(1)\nbar")


@pytest.mark.parametrize(
    ("prefix", "suffix", "expected"),
    [
        ("x = ", "\ny", "fun(1)\nbar"),
        ("x = fu", "\ny", "n(1)\nbar"),
        ("x = fun(", ")\ny", "1)\nbar"),
        ("x = fun(1)\nb", "\ny", "ar"),
        ("x = fun(1)\nbar", "\ny", None),
        ("x = fx", "\ny", None),
        ("x =", "\ny", None),
        ("x = fu", "\nz", None),
        ("x = fu", ")\ny", None),
        ("y = fu", "\ny", None),
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
