"""Facts about the log of exceptions that nobody expected."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from pathlib import Path

import pytest

import specengine
from specengine.trouble import (
    MAX_FRAMES,
    Formatter,
    log_trouble,
    places_of,
    take_over_loop,
    take_over_threads,
)

logger = logging.getLogger("test")

ROOT = Path(specengine.__file__).parents[1]
FORMATTER = "trouble.py"
"""The one file that may handle tracebacks."""


def fail() -> None:
    raise ValueError("secret")


def caught() -> ValueError:
    try:
        fail()
    except ValueError as error:
        return error
    raise AssertionError


def test_kind_and_place_are_logged_but_not_the_message(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG):
        try:
            "\ud800secret".encode()
        except UnicodeEncodeError as error:
            log_trouble(logger, "it failed", error)
    assert "it failed: UnicodeEncodeError at" in caplog.text
    assert "test_trouble.py" in caplog.text
    assert "secret" not in caplog.text
    assert "ud800" not in caplog.text


def test_exception_that_is_being_handled_need_not_be_named(caplog: pytest.LogCaptureFixture):
    try:
        fail()
    except ValueError:
        log_trouble(logger, "it failed")
    assert caplog.messages[0].startswith("it failed: ValueError at ")
    assert " fail < " in caplog.messages[0], "the innermost place comes first"


def test_exception_that_was_never_raised_has_no_place(caplog: pytest.LogCaptureFixture):
    log_trouble(logger, "it failed", ValueError("secret"))
    assert caplog.messages == ["it failed: ValueError at ?"]


def test_what_led_to_it_is_told_without_its_words():
    error = KeyError("secret")
    error.__cause__ = caught()
    assert re.fullmatch(r"KeyError at \?, after ValueError at .*", places_of(error))
    assert "secret" not in places_of(error)


def test_what_was_left_out_on_purpose_is_not_told():
    error = KeyError("secret")
    error.__context__, error.__cause__ = caught(), None
    error.__suppress_context__ = True
    assert places_of(error) == "KeyError at ?"


def test_deep_recursion_tells_its_innermost_places():
    def dig(depth: int) -> None:
        if depth == 0:
            fail()
        dig(depth - 1)

    with pytest.raises(ValueError, match="secret") as raised:
        dig(100)
    assert places_of(raised.value).count(" < ") == MAX_FRAMES - 1


def test_records_of_others_lose_the_words_too():
    record = logging.LogRecord("other", logging.ERROR, "", 0, "it failed", None, None)
    error = caught()
    record.exc_info = (type(error), error, error.__traceback__)
    shown = Formatter("%(message)s").format(record)
    assert shown.startswith("it failed\nValueError at ")
    assert "secret" not in shown


def test_callback_that_fails_is_logged_without_words(caplog: pytest.LogCaptureFixture):
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        take_over_loop(loop)
        loop.call_soon(int, "secret")
        await asyncio.sleep(0)

    asyncio.run(scene())
    assert "a task or a callback failed: ValueError at " in caplog.text
    assert "secret" not in caplog.text


def test_complaint_of_the_loop_without_an_exception_is_logged(caplog: pytest.LogCaptureFixture):
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        take_over_loop(loop)
        loop.call_exception_handler({"message": "a task was destroyed", "task": "secret"})

    asyncio.run(scene())
    assert caplog.messages == ["a task was destroyed"]


def test_thread_ends_without_its_words(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    take_over_threads()
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert "a thread ended: ValueError at " in caplog.text
    assert "secret" not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.parametrize("package", ["lsp_server", "specengine"])
def test_nobody_logs_an_exception_otherwise(package: str):
    """A handler of somebody's own may have another formatter than ours."""
    words = re.compile(r"logger\.exception|exc_info|traceback\.(?:print|format)_")
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if file.name != FORMATTER and words.search(line)
    ]
    assert found == []
