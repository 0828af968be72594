"""Facts about the log of exceptions that nobody expected."""

from __future__ import annotations

import logging

import pytest

from lsp_server.trouble import log_trouble

logger = logging.getLogger("test")


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


def test_exception_that_was_never_raised_has_no_place(caplog: pytest.LogCaptureFixture):
    log_trouble(logger, "it failed", ValueError("secret"))
    assert caplog.messages == ["it failed: ValueError at ?"]
