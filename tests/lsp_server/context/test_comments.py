"""Facts about other files as comments."""

from __future__ import annotations

import pytest

from lsp_server.context.comments import as_comments


@pytest.mark.parametrize(("language", "sign"), [("python", "#"), ("go", "//"), ("lua", "--")])
def test_each_line_is_a_comment(language: str, sign: str):
    text = as_comments([("a/b.x", "one\n\n  two\n")], language)
    assert text == f"{sign} From a/b.x:\n{sign} one\n{sign}\n{sign}   two\n{sign}\n"


def test_nothing_is_nothing():
    assert as_comments([], "python") == ""
