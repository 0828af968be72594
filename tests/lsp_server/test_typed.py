"""Facts about what is known to be typed after an edit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsp_server.documents import Edit
from lsp_server.typed import Typed

PAIR = Typed(10, "f(", ")")


@pytest.mark.parametrize(
    ("typed", "edit", "expected"),
    [
        (Typed(10), Edit(10, 10, "a"), Typed(10, "a")),
        (Typed(10, "a"), Edit(11, 11, "bc"), Typed(10, "abc")),
        (Typed(10, "abc"), Edit(12, 13, ""), Typed(10, "ab")),
        (Typed(10, "re"), Edit(10, 12, "return"), Typed(10, "return")),
        (Typed(10, "f"), Edit(11, 11, "()"), PAIR),
        (Typed(10, "f([", "])"), Edit(13, 13, "{}"), Typed(10, "f([{", "}])")),
        (PAIR, Edit(12, 12, "x"), Typed(10, "f(x", ")")),
        (PAIR, Edit(12, 13, ")"), Typed(10, "f()")),
        (PAIR, Edit(12, 13, "x)"), Typed(10, "f(x)")),
        (PAIR, Edit(11, 13, ""), Typed(10, "f")),
        (Typed(10, "f(x", ")"), Edit(12, 13, ""), PAIR),
        (Typed(10, "\n        else:"), Edit(11, 15, ""), Typed(10, "\n    else:")),
        (Typed(10, "{", "}"), Edit(11, 11, "\n    \n"), Typed(10, "{\n    ", "\n}")),
        (Typed(10, "{", "}"), Edit(11, 11, "\r\n\t\r\n"), Typed(10, "{\r\n\t", "\r\n}")),
        (PAIR, Edit(12, 12, "\n        \n    "), Typed(10, "f(\n        ", "\n    )")),
    ],
)
def test_edit_at_the_cursor_goes_on(typed: Typed, edit: Edit, expected: Typed):
    assert typed.after(edit) == expected
    assert expected.cursor == 10 + len(expected.text)


@pytest.mark.parametrize(
    ("typed", "edit"),
    [
        (Typed(10), Edit(9, 9, "a")),
        (Typed(10), Edit(11, 11, "a")),
        (Typed(10, "a"), Edit(9, 11, "")),
        (Typed(10, "f(x", ")"), Edit(10, 12, "")),
        (Typed(10), Edit(10, 12, "a")),
        (PAIR, Edit(12, 14, ")")),
        (PAIR, Edit(12, 13, "x")),
        (PAIR, Edit(11, 12, "")),
    ],
    ids=[
        "before",
        "behind",
        "over the place itself",
        "an opener inside goes and its closer stays",
        "over what stood behind the cursor",
        "over more than was closed",
        "the closer is replaced by something else",
        "the opener goes and its closer stays",
    ],
)
def test_edit_elsewhere_does_not(typed: Typed, edit: Edit):
    assert typed.after(edit) is None


BEFORE, BEHIND = "f = (", ")\nx"
PIECES = st.sampled_from(["a", "(", ")", "()", "[]", '""', "'", "\n", "", "ab)", "\n  \n"])
EDITS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 3), PIECES), max_size=8)


@given(EDITS)
def test_what_is_known_is_what_stands_there(edits: list[tuple[int, int, str]]):
    """Whatever is edited: as long as it goes on, nothing else of the document has changed."""
    document = BEFORE + BEHIND
    typed: Typed | None = Typed(len(BEFORE))
    for start, num_removed, text in edits:
        start = min(start, len(document))
        end = min(start + num_removed, len(document))
        document = document[:start] + text + document[end:]
        typed = typed.after(Edit(start, end, text))
        if typed is None:
            return
        assert document == BEFORE + typed.text + typed.closers + BEHIND
