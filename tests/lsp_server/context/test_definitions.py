"""Facts about definitions and how much of them is shown."""

from __future__ import annotations

import pytest

from lsp_server.context.definitions import MAX_MEMBERS, Definition, find_definitions
from lsp_server.syntax import KeptTree, grammar_of

LONG = "\n".join(f"        step_{number}()" for number in range(12))


def found(language: str, text: str) -> list[Definition]:
    grammar = grammar_of(language)
    assert grammar is not None
    return find_definitions(text, KeptTree(grammar))


def test_short_definition_is_shown_whole():
    text = "@dataclass\nclass Job:\n    name: str\n    cost: int = 1\n"
    assert found("python", text) == [Definition("Job", 0, text)]


def test_long_function_is_shown_by_its_head():
    text = f"def run(\n    job: Job,\n) -> None:\n    if True:\n{LONG}\n"
    assert found("python", text) == [Definition("run", 0, "def run(\n    job: Job,\n) -> None:\n")]


def test_long_class_is_shown_by_the_heads_of_its_members():
    text = f"class Queue(Base):\n    def push(self, job):\n{LONG}\n\n    def size(self): ...\n"
    (queue,) = found("python", text)
    assert queue.text == "class Queue(Base):\n"
    assert [member.text for member in queue.members] == [
        "    def push(self, job):\n",
        "    def size(self): ...\n",
    ]


def test_members_are_limited():
    members = "\n".join(f"    def m{number}(self): ..." for number in range(3 * MAX_MEMBERS))
    (many,) = found("python", f"class Many:\n{members}\n")
    assert len(many.members) == MAX_MEMBERS


@pytest.mark.parametrize(
    ("language", "text", "names"),
    [
        ("typescript", "export const f = (a: number) => a;\nexport function g() {}\n", ["f", "g"]),
        ("javascript", "class A { b() {} }\n", ["A"]),
        ("go", "package a\ntype Job struct { N int }\nfunc (q *Q) Push() {}\n", ["Job", "Push"]),
        ("rust", "struct Job;\nimpl Job { fn a() {} }\nmod m { fn b() {} }\n", ["Job", "Job", "b"]),
        ("c", "struct job { int a; };\nint *push(int n) { return 0; }\n", ["job", "push"]),
        ("cpp", "namespace n { class Q { }; }\nint Q::pop() { return 1; }\n", ["Q", "pop"]),
        ("java", "class A { int b() { return 1; } }\n", ["A"]),
        ("python", "x = 1\n", []),
        ("python", "def (:\n", []),
    ],
)  # fmt: skip
def test_definitions_have_their_names(language: str, text: str, names: list[str]):
    assert [definition.name for definition in found(language, text)] == names
