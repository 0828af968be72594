"""Facts about reading a trace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lsp_server import trace_log
from lsp_server.trace_log import Outcome, TraceEvent, TraceLog, TraceRecord
from specengine.errors import ConfigError
from specengine.trace import reading
from specengine.trace.reading import PHASES, SHOWING, default_path, read_trace
from tests.specengine.trace.traces import write


def test_what_the_language_server_writes_is_read(tmp_path: Path):
    log = TraceLog(tmp_path / "t.jsonl", 10_000)
    record = TraceRecord(3, 5.0, language="go", outcome=Outcome.SHOWN, drafter="d", steps=2)
    record.ms.verify, record.ms.total = 1.5, 2.5
    log.write(record)
    log.write_event(TraceEvent("", 3, 6.0, "accepted", "go", "m", "d", 9, 7, 1.25))
    trace = read_trace(tmp_path / "t.jsonl")
    (request,), (event,) = trace.requests, trace.events
    assert (request.request, request.language, request.drafter, request.steps) == (3, "go", "d", 2)
    assert (request.ms["verify"], request.total_ms, request.has_text) == (1.5, 2.5, True)
    assert (event.event, event.num, event.chars, event.after_s) == ("accepted", 7, 9, 1.25)
    assert request.session == event.session == log.session
    assert trace.num_unreadable == 0


def test_names_are_those_of_the_language_server():
    assert {*PHASES, "total"} == set(trace_log.Milliseconds.__struct_fields__)
    assert set(Outcome) >= SHOWING
    assert default_path() == trace_log.default_path()


def test_file_before_this_one_is_read_too(tmp_path: Path):
    write(tmp_path / "t.jsonl.1", {"request": 1, "time": 1.0})
    path = write(tmp_path / "t.jsonl", {"request": 2, "time": 2.0})
    assert [request.request for request in read_trace(path).requests] == [1, 2]


def test_lines_are_in_the_order_of_their_times(tmp_path: Path):
    path = write(tmp_path / "t", {"request": 2, "time": 2.0}, {"request": 1, "time": 1.0})
    assert [request.request for request in read_trace(path).requests] == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        '{"request": 1, "ti',
        "[]",
        "null",
        '"x"',
        '{"request": "a", "time": 1}',
        '{"time": 1}',
        '{"request": 1, "time": -1}',
        '{"request": 1, "time": 1e300}',
        '{"request": 1, "time": 1, "ms": {"total": -5}}',
        '{"request": 1, "time": 1, "ms": {"total": "x"}}',
        '{"event": 1, "request": 1, "time": 1}',
        "[" * 100_000,
    ],
)
def test_lines_that_are_none_are_counted(tmp_path: Path, line: str):
    path = write(tmp_path / "t", line, {"request": 1, "time": 1.0}, "")
    trace = read_trace(path)
    assert (len(trace.requests), trace.num_unreadable) == (1, 1)


def test_missing_trace_is_told_with_what_to_do(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no trace at .*trace\.path"):
        read_trace(tmp_path / "none")


def test_pipe_and_folder_are_no_trace(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="no trace"):
            read_trace(path)


def test_too_long_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "MAX_BYTES", 10)
    with pytest.raises(ConfigError, match="longer than 10 bytes"):
        read_trace(write(tmp_path / "t", {"request": 1, "time": 1.0}))
