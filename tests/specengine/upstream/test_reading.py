"""Facts about reading one answer."""

from __future__ import annotations

import pytest

from specengine.protocol import StopReason, TokenCounts
from specengine.upstream.events import (
    CachedTokens,
    Choice,
    Event,
    Timings,
    Usage,
)
from specengine.upstream.reading import MAX_CHARS_PER_TOKEN, Reading


def said(text: str, finish: str | None = None) -> Event:
    return Event(choices=(Choice(text=text, finish_reason=finish),))


class Reader:
    """A reading and what it has handed on."""

    def __init__(self, forced: str = "", *stops: str, max_tokens: int = 8) -> None:
        self.text = ""
        self.reading = Reading(forced, stops, max_tokens, self.take)

    def take(self, text: str) -> None:
        self.text += text


def test_text_behind_the_forced_is_handed_on():
    reader = Reader("\n  ")
    assert all(reader.reading.take(said(text)) for text in ("\n", "   ret", "urn"))
    assert reader.text == " return"


def test_answer_that_begins_otherwise_ends_and_hands_nothing_on():
    reader = Reader("\n  ")
    assert reader.reading.take(said("\n"))
    assert not reader.reading.take(said("x"))
    assert reader.reading.is_misaligned
    assert reader.text == ""


def test_answer_that_ends_inside_the_forced_text_begins_otherwise():
    reader = Reader("\n  ")
    assert not reader.reading.take(said("\n", "stop"))
    assert reader.reading.is_misaligned
    assert reader.reading.stop_reason is None


def test_stop_string_ends_the_text_before_it_however_it_is_cut():
    reader = Reader("", "<end>")
    assert reader.reading.take(said("a<en"))
    assert not reader.reading.take(said("d>b"))
    assert reader.text == "a"
    assert reader.reading.stop_reason is StopReason.STOP_STRING


def test_text_that_only_begins_like_a_stop_string_comes_at_the_end():
    reader = Reader("", "<end>")
    assert reader.reading.take(said("a<en", "stop"))
    assert reader.text == "a<en"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", StopReason.END_TOKEN),
        ("eos", StopReason.END_TOKEN),
        ("length", StopReason.LENGTH),
        ("limit", StopReason.LENGTH),
        ("word", StopReason.STOP_STRING),
    ],
)
def test_reason_is_the_servers(finish: str, reason: StopReason):
    reader = Reader()
    assert reader.reading.take(said("a", finish))
    assert reader.reading.stop_reason is reason


def test_request_that_the_server_gave_up_has_no_reason():
    reader = Reader()
    assert not reader.reading.take(said("a", "abort"))
    assert reader.reading.stop_reason is None


def test_mark_of_the_end_is_reason_enough():
    reader = Reader("", "<end>")
    reader.reading.take(said("a<"))
    assert reader.reading.stop_reason is None
    reader.reading.end()
    assert reader.reading.stop_reason is StopReason.END_TOKEN
    assert reader.text == "a<"


def test_server_that_writes_on_and_on_is_ended():
    reader = Reader(max_tokens=2)
    assert reader.reading.take(said("x" * 2 * MAX_CHARS_PER_TOKEN))
    assert not reader.reading.take(said("x"))
    assert reader.reading.stop_reason is StopReason.LENGTH


def test_counts_are_those_of_the_usage():
    reading = Reader().reading
    reading.take(said("a"))
    usage = Usage(10, 4, CachedTokens(7))
    reading.take(Event(usage=usage))
    assert reading.counts() == TokenCounts(prompt=10, reused=7, prefilled=3, emitted=4)


def test_counts_of_llama_cpp_tell_its_drafts():
    reading = Reader().reading
    timings = Timings(cache_n=6, prompt_n=4, predicted_n=5, draft_n=8, draft_n_accepted=3)
    reading.take(Event(content="a", stop=True, timings=timings))
    assert reading.counts() == TokenCounts(10, 6, 4, 8, 3, 5)


def test_without_counts_pieces_are_counted():
    reading = Reader().reading
    reading.take(said("a"))
    reading.take(said("b"))
    assert reading.counts() == TokenCounts(emitted=2)
