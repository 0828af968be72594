"""Facts about what other files say to the code at a cursor."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lsp_server.context.edits import EditedPlace
from lsp_server.context.other_files import (
    LEARN_LIMIT_S,
    Copied,
    OtherFile,
    OtherFiles,
    Surroundings,
)

QUEUE = OtherFile("u:q", "src/queue.py", "python", 1, "class Queue:\n    depth: int\n")
AROUND = Surroundings("u:m", "python", "queue = Queue(", ")\n", [QUEUE])


def body(prefix: str, num_lines: int = 30) -> str:
    return "".join(f"    {prefix}_{number} = compute_{prefix}()\n" for number in range(num_lines))


def find(around: Surroundings, max_chars: int = 4000) -> tuple[tuple[str, str], ...]:
    return asyncio.run(OtherFiles(lambda: 0.0).find(around, max_chars))


def test_definition_that_the_text_names_is_found():
    assert find(AROUND) == (("src/queue.py", QUEUE.text),)


def test_definition_that_nothing_names_is_not():
    assert find(replace(AROUND, before="x = other(")) == ()


def test_file_of_another_language_says_nothing():
    assert find(replace(AROUND, others=[replace(QUEUE, language="ruby")])) == ()


def test_member_that_is_named_comes_with_the_head_of_its_class():
    text = f"class Queue:\n    def push(self):\n{body('a')}\n    def other(self):\n{body('b')}"
    around = replace(AROUND, before="jobs.push(", others=[replace(QUEUE, text=text)])
    assert find(around) == (("src/queue.py", "class Queue:\n    def push(self):\n"),)


def test_name_that_the_text_defines_itself_is_its_own():
    unlike = body("unlike", 20)
    assert find(replace(AROUND, before=f"class Queue:\n{unlike}    x = Queue(")) == ()
    member = replace(QUEUE, text=f"class Queue:\n    def push(self):\n{body('a')}")
    assert find(replace(AROUND, before=f"{unlike}push = other(", others=[member])) == ()


def test_likest_lines_of_an_open_file_are_found():
    other = OtherFile("u:s", "src/similar.py", "python", 1, body("unlike", 60) + body("near", 40))
    around = Surroundings("u:m", "python", body("near", 9) + "    near_", "", [other])
    ((path, text),) = find(around)
    assert path == "src/similar.py"
    assert "near_30" in text
    assert "unlike_0" not in text


def test_edited_place_is_shown_with_the_lines_around_it():
    text = "".join(f"line_{number}\n" for number in range(20))
    at = text.index("line_10")
    other = replace(QUEUE, text=text, places=[EditedPlace(at, at + 3, 1)])
    lines = "line_8\nline_9\nline_10\nline_11\nline_12\n"
    assert find(replace(AROUND, others=[other])) == (("src/queue.py", lines),)


def test_copied_text_comes_last():
    copied = Copied("u:c", "src/a.py", "one_line\ntwo_line\nthree_line")
    assert find(replace(AROUND, copied=copied))[-1] == (
        "src/a.py", "one_line\ntwo_line\nthree_line\n",
    )  # fmt: skip
    assert find(replace(AROUND, copied=replace(copied, uri="u:m"))) == find(AROUND)
    assert find(replace(AROUND, copied=replace(copied, text="word"))) == find(AROUND)


def test_what_changes_least_comes_first():
    """The engine's stored keys and values go as far as the prompts agree."""
    text = "".join(f"line_{number}\n" for number in range(20))
    edited = OtherFile("u:e", "a_edited.py", "python", 1, text, [EditedPlace(30, 31, 1)])
    similar = OtherFile("u:s", "b_similar.py", "python", 1, body("near", 40))
    around = replace(
        AROUND, before=body("near", 9) + "    near_ = Queue(", others=[edited, similar, QUEUE]
    )
    assert [path for path, _ in find(around)] == ["src/queue.py", "b_similar.py", "a_edited.py"]


@pytest.mark.parametrize("max_chars", [0, 20, 60, 100, 300, 1000])
def test_budget_is_kept_and_definitions_are_served_first(max_chars: int):
    similar = OtherFile("u:s", "b_similar.py", "python", 1, body("near", 40))
    around = replace(AROUND, before=body("near", 9) + "    n = Queue(", others=[similar, QUEUE])
    files = find(around, max_chars)
    assert sum(len(path) + 1 + len(text) for path, text in files) <= max_chars
    assert all(text.endswith("\n") for _, text in files)
    if max_chars >= 60:
        assert files[0][0] == "src/queue.py"


def test_lines_that_stand_before_the_cursor_are_not_repeated():
    other = OtherFile("u:s", "copy.py", "python", 1, body("near", 9))
    assert find(Surroundings("u:m", "python", body("near", 9), "", [other])) == ()


def test_file_is_read_again_when_its_version_changes():
    files = OtherFiles(lambda: 0.0)
    assert asyncio.run(files.find(AROUND, 4000))
    gone = replace(QUEUE, text="x = 1\n")
    assert asyncio.run(files.find(replace(AROUND, others=[gone]), 4000))
    assert not asyncio.run(files.find(replace(AROUND, others=[replace(gone, version=2)]), 4000))
    files.forget("u:q")
    assert not asyncio.run(files.find(replace(AROUND, others=[gone]), 4000))


def test_files_wait_for_the_next_time_when_it_takes_too_long():
    times = iter([0.0, LEARN_LIMIT_S / 2, LEARN_LIMIT_S * 2, 0.0, 0.0, 0.0])
    files = OtherFiles(lambda: next(times))
    second = replace(QUEUE, uri="u:2", path="second.py", text="class Second:\n    a: int\n")
    around = replace(AROUND, before="Queue, Second", others=[QUEUE, second])
    assert [path for path, _ in asyncio.run(files.find(around, 4000))] == ["src/queue.py"]
    assert [path for path, _ in asyncio.run(files.find(around, 4000))] == [
        "second.py",
        "src/queue.py",
    ]
