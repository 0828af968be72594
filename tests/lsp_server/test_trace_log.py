"""Facts about the record of each request."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import pytest

from lsp_server.trace_log import (
    Outcome,
    TraceEvent,
    TraceLog,
    TraceRecord,
    default_path,
    readable,
    readable_event,
)
from specengine.protocol import Done, PhaseTimes, StopReason, TokenCounts


def record(number: int = 1) -> TraceRecord:
    made = TraceRecord(number, 1.0, language="python", outcome=Outcome.SHOWN, exit="stopped")
    made.ms.total = 12.34567
    tokens = TokenCounts(prompt=9, reused=8, prefilled=1, drafted=4, accepted=3, emitted=5)
    ms = PhaseTimes(queue=1, prefill=2, draft=3, verify=4, total=10)
    done = Done(7, "secret", (1,), StopReason.STOPPED, None, "m", "d", 2, tokens, ms)
    made.take_engine_part(done)
    return made


def test_line_has_the_stable_fields_and_no_text(tmp_path: Path):
    path = tmp_path / "new" / "trace.jsonl"
    TraceLog(path, 10_000).write(record())
    line = path.read_text()
    assert "secret" not in line
    data = json.loads(line)
    assert set(data) == {
        "request", "time", "session", "document_version", "language", "trigger", "scope",
        "outcome", "exit",
        "model", "drafter", "drafting", "ms", "tokens", "steps", "late_steps", "upstream",
    }  # fmt: skip
    assert list(data["ms"]) == [
        "debounce", "context", "queue", "prefill", "draft", "verify", "postprocess", "total",
    ]  # fmt: skip
    assert data["ms"]["total"] == 12.346
    assert data["tokens"]["accepted"] == 3
    assert (data["model"], data["drafter"], data["steps"]) == ("m", "d", 2)


def test_file_is_for_its_user_only(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    TraceLog(path, 10_000).write(record())
    assert path.stat().st_mode & 0o077 == 0


def test_long_file_is_renamed(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    log = TraceLog(path, 1000)
    for number in range(6):
        log.write(record(number))
    assert path.stat().st_size <= 1000
    old = path.with_name("trace.jsonl.1").read_text().splitlines()
    new = path.read_text().splitlines()
    assert json.loads(old[-1])["request"] + 1 == json.loads(new[0])["request"]


def test_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").touch()
    lines: list[str] = []
    log = TraceLog(tmp_path / "file" / "trace.jsonl", 1000, lines.append)
    with caplog.at_level(logging.WARNING):
        log.write(record())
        log.write(record())
    assert len(caplog.records) == 1
    assert len(lines) == 2


def test_path_with_a_null_character_is_reported_once(caplog: pytest.LogCaptureFixture):
    log = TraceLog(Path("a\0b"), 1000)
    log.write(record())
    log.write(record())
    assert len(caplog.records) == 1


@pytest.mark.parametrize("has_reader", [False, True])
def test_pipe_is_refused_without_waiting_for_a_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_reader: bool
):
    path = tmp_path / "trace.jsonl"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if has_reader else None
    TraceLog(path, 1000).write(record())
    assert "it is off" in caplog.text
    if reader is not None:
        assert os.read(reader, 1) == b""
        os.close(reader)


def test_folder_is_refused_and_not_renamed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "trace.jsonl"
    path.mkdir()
    TraceLog(path, 1).write(record())
    assert path.is_dir()
    assert "it is off" in caplog.text


def test_line_for_people_names_outcome_and_time():
    line = readable(record())
    assert "shown (stopped) 12 ms" in line
    assert "accepted 3/4, reused 8/9" in line


def test_line_for_people_leaves_out_what_did_not_happen():
    cached = TraceRecord(7, 0.0, trigger="automatic", language="python", document_version=3)
    cached.outcome, cached.exit = Outcome.CACHED, "cached"
    assert readable(cached) == "#7 v3 python automatic: cached 0 ms"


def test_default_file_is_in_the_users_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path().name == "trace.jsonl"


CLIENTS_PATTERN = r"^#\d+ v(-?\d+) .*?: ([a-z]+)(?: \([^)]*\))? (\d+) ms"
"""How clients read the line; another shape breaks those that are installed."""


def test_line_for_people_has_the_shape_that_clients_parse():
    source = Path(__file__).parents[2] / "editors" / "vscode" / "src" / "latencyTrace.ts"
    assert f"/{CLIENTS_PATTERN}/" in source.read_text()
    for outcome in Outcome:
        made = record()
        made.outcome, made.document_version, made.trigger = outcome, -1, "automatic"
        made.exit = "stopped"
        match = re.search(CLIENTS_PATTERN, readable(made))
        assert match is not None
        assert match.groups() == ("-1", outcome.value, "12")


def test_line_of_an_event_is_not_taken_for_one_of_a_request():
    for what in ("shown", "accepted", "partly_accepted", "kept"):
        line = readable_event(TraceEvent("s", 3, 1.0, what, "go", "m", "d", 9, 7, 1.25))
        assert re.search(CLIENTS_PATTERN, line) is None
    assert line == "suggestion 3 kept: 7 of 9 characters after 1.2 s"


def test_event_is_a_line_of_its_own_with_the_session_of_its_request(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    log = TraceLog(path, 10_000)
    log.write(record())
    log.write_event(TraceEvent("", 1, 1.23456, "accepted", "go", "m", "d", 9, 7, 1.23456))
    request, event = map(json.loads, path.read_text().splitlines())
    assert "event" not in request
    assert event == {
        "session": log.session, "request": 1, "time": 1.235, "event": "accepted",
        "language": "go", "model": "m", "drafter": "d", "chars": 9, "num": 7, "after_s": 1.235,
    }  # fmt: skip
    assert request["session"] == event["session"]
