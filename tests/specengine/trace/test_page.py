"""Facts about the page of a trace; what it looks like is for eyes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specengine.cli import main
from specengine.errors import ConfigError
from specengine.trace.page import MAX_LISTED, histogram, render, write_page
from tests.specengine.trace.traces import event, request, trace, write


def embedded(page: str) -> list[dict[str, object]]:
    found = re.search(r"const requests = (.*);\n", page)
    assert found is not None
    return json.loads(found[1])


def test_page_asks_nobody_for_anything():
    page = render(trace(request(1), event(1, "shown")))
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=|url\(|@import|fetch\(|https?:", page)


def test_page_holds_every_request_with_its_phases():
    (one, other) = embedded(render(trace(request(1, total=20.0), request(2))))
    assert (one["id"], other["id"]) == (1, 2)
    ms = one["ms"]
    assert isinstance(ms, dict)
    assert (ms["prefill"], ms["verify"], ms["total"], ms["queue"]) == (10.0, 5.0, 20.0, 0.0)


def test_page_holds_the_latest_requests_of_a_long_trace():
    listed = embedded(render(trace(*(request(number) for number in range(MAX_LISTED + 5)))))
    assert (len(listed), listed[0]["id"]) == (MAX_LISTED, 5)


@pytest.mark.parametrize(
    "name", ["</script><script>alert(1)</script>", "/* requests */ []", "&<b>"]
)
def test_names_in_the_trace_stay_text(name: str):
    found = trace(request(1, language=name, outcome=name), event(1, "shown"))
    found.events[0].language = name
    page = render(found)
    assert page.count("<script>") == 1
    assert "<b>" not in page
    facts = embedded(page)[0]["facts"]
    assert isinstance(facts, dict)
    assert facts["language"] == name


def test_histogram_counts_all_times():
    picture = histogram("x", [0.01, 1.0, 1.01, 250.0, 0.0])
    counts = [int(count) for count in re.findall(r"ms: (\d+)</title>", picture)]
    assert sum(counts) == 4
    assert "x: 4 requests" in picture
    assert histogram("x", [0.0]) == ""


def test_empty_trace_makes_a_page():
    assert "no requests yet" in render(trace())


def test_command_prints_the_report_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = write(tmp_path / "t", {"request": 1, "time": 1.0, "outcome": "shown", "steps": 1})
    main(["trace", str(path), "--html", str(tmp_path / "t.html")])
    assert "1 requests in 1 sessions" in capsys.readouterr().out
    assert embedded((tmp_path / "t.html").read_text())


def test_command_says_in_one_line_that_there_is_no_trace(tmp_path: Path):
    with pytest.raises(SystemExit, match="no trace at"):
        main(["trace", str(tmp_path / "none")])


def test_page_that_cannot_be_written_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(trace(), tmp_path)
