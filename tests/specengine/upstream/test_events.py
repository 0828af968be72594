"""Facts about streams of events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine.errors import UpstreamFailed
from specengine.upstream.events import (
    MAX_LINE_BYTES,
    MAX_STREAM_BYTES,
    EventReader,
    read_event,
)

STREAM = (
    b'data: {"a"}\n\n: ping\n\nevent: x\r\ndata: one\r\ndata:two\r\n\r\nid: 7\n\ndata: [DONE]\n\n'
)
EVENTS = [b'{"a"}', b"one\ntwo", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_it_does_not_matter_how_the_network_cuts(cuts: list[int]):
    reader, places = EventReader(), [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(places)]
    assert [data for piece in pieces for data in reader.feed(piece)] == EVENTS


def test_line_without_end_is_refused_when_it_is_too_long():
    reader = EventReader()
    assert reader.feed(b"data: " + b"x" * (MAX_LINE_BYTES - 6)) == []
    with pytest.raises(UpstreamFailed, match="line"):
        reader.feed(b"x")


def test_stream_without_end_is_refused_when_it_is_too_long():
    reader, line = EventReader(), b": " + b"x" * (MAX_LINE_BYTES - 3) + b"\n"
    for _ in range(MAX_STREAM_BYTES // len(line)):
        reader.feed(line)
    with pytest.raises(UpstreamFailed, match="bytes"):
        reader.feed(b"x")


@pytest.mark.parametrize(
    ("data", "text", "finish"),
    [
        (b'{"choices":[{"text":"a","index":0}]}', "a", None),
        (b'{"choices":[{"text":"","finish_reason":"stop"}]}', "", "stop"),
        (b'{"choices":[{"delta":{"content":"b"}}]}', "b", None),
        (b'{"choices":[{"delta":{}}]}', "", None),
        (b'{"content":"c","stop":false}', "c", None),
        (b'{"content":"","stop":true,"stop_type":"eos"}', "", "eos"),
        (b'{"content":"","stop":true}', "", "stop"),
        (b'{"choices":[],"usage":{"prompt_tokens":3}}', "", None),
        (b'{"choices":[{"text":"a"}],"error":null}', "a", None),
        (b"{}", "", None),
    ],
)
def test_all_forms_of_text_are_read(data: bytes, text: str, finish: str | None):
    event = read_event(data)
    assert (event.text, event.finish) == (text, finish)


@pytest.mark.parametrize(
    "data", [b"", b"x", b"[]", b"[" * 9999, b'{"choices":3}', b'{"content":"\xff"}']
)
def test_garbage_is_refused(data: bytes):
    with pytest.raises(UpstreamFailed, match="no completion"):
        read_event(data)


def test_error_inside_a_stream_is_one_whose_words_are_not_repeated():
    with pytest.raises(UpstreamFailed, match="error") as caught:
        read_event(b'{"error":{"message":"secret source"}}')
    assert "secret" not in str(caught.value)
