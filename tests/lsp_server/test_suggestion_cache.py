"""Facts about suggestions that are found again."""

import pytest

from lsp_server.prompt import Prompt
from lsp_server.suggestion_cache import Suggestion, SuggestionCache, remaining


def found(cache: SuggestionCache, prefix: str) -> str | None:
    suggestion = cache.find(Prompt(prefix, ""))
    return None if suggestion is None else suggestion.text


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
    assert found(cache, "a") == ""
    assert found(cache, "ab") is None


def test_newest_suggestion_wins():
    cache = SuggestionCache()
    cache.store(Suggestion(Prompt("a", ""), "bcd"))
    cache.store(Suggestion(Prompt("ab", ""), "xy"))
    assert found(cache, "ab") == "xy"
    assert found(cache, "abc") == "d"


@pytest.mark.parametrize(("newer", "expected"), [("bcdef", "bcdef"), ("bc", "bcd"), ("x", "bcd")])
def test_what_is_on_the_screen_stays_or_grows(newer: str, expected: str):
    cache = SuggestionCache()
    cache.store(Suggestion(Prompt("a", ""), "bcd", is_shown=True))
    cache.store(Suggestion(Prompt("a", ""), newer))
    assert found(cache, "a") == expected


def test_oldest_suggestion_makes_room():
    cache = SuggestionCache(capacity=2)
    for name in "abc":
        cache.store(Suggestion(Prompt(name, ""), "text"))
    assert found(cache, "a") is None
    assert found(cache, "b") == "text"
    cache.clear()
    assert found(cache, "b") is None


def test_rest_of_what_was_shown_is_told_apart():
    cache = SuggestionCache()
    cache.store(Suggestion(Prompt("a", ""), "bcd", is_shown=True))
    assert cache.find(Prompt("ab", "")) == Suggestion(Prompt("ab", ""), "cd", is_shown=True)
