"""The texts that benchmarks complete, from HumanEval files inside this package.

It knows no engine and no token. Nothing here is ever run as code.

Source:  Chen et al. 2021, arXiv 2107.03374; Bavarian et al. 2022, arXiv 2207.14255.
"""

from __future__ import annotations

import ast
import gzip
import importlib.resources
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

SETS: Final = ("humaneval", "edits")
"""Names of the sets that decoding is measured on."""

T = TypeVar("T")


class Problem(msgspec.Struct, frozen=True):
    """A function to write."""

    prompt: str
    """Imports, signature and docstring."""
    canonical_solution: str
    entry_point: str
    test: str


class Infilling(msgspec.Struct, frozen=True):
    """A line that is missing."""

    prompt: str
    suffix: str
    canonical_solution: str
    """The line with its indentation and its end."""


@dataclass(frozen=True)
class PromptSet:
    """Texts to continue."""

    name: str
    prompts: tuple[str, ...]


def prompt_sets(limit: int) -> list[PromptSet]:
    """Return the sets of the decode benchmark, cut to ``limit`` prompts each."""
    problems = load_problems()
    humaneval = [problem.prompt for problem in problems]
    return [
        PromptSet(name, tuple(prompts[:limit]))
        for name, prompts in zip(SETS, (humaneval, edits(problems)), strict=True)
    ]


def edits(problems: Sequence[Problem]) -> list[str]:
    """Return texts whose continuation repeats, with differences, what stands above it.

    That is where copying from the file pays, and much of editing is of this kind. They are made
    from the problems in turn: after a solved function the user begins a second version of it
    (the body is to be written again), or a test of it (its asserts are, after the first two).
    Completions are the model's own and need not equal what a person would have written.
    """
    prompts: list[str] = []
    for problem in problems:
        make = _second_version if len(prompts) % 2 == 0 else _test_cases
        if (prompt := make(problem)) is not None:
            prompts.append(prompt)
    return prompts


def load_problems() -> list[Problem]:
    """Return the 164 problems of HumanEval."""
    return _load("HumanEval.jsonl.gz", Problem)


def load_infillings() -> list[Infilling]:
    """Return the single-line infillings of problems 0 to 81, 441 of them."""
    return _load("infilling-single.jsonl.gz", Infilling)


def _second_version(problem: Problem) -> str | None:
    """Return a solved function and, below, its signature and docstring under another name."""
    start = problem.prompt.rfind(f"def {problem.entry_point}(")
    if start < 0:
        return None
    header = problem.prompt[start:].replace(problem.entry_point, f"{problem.entry_point}_checked")
    return f"{problem.prompt}{problem.canonical_solution}\n\n{header}"


def _test_cases(problem: Problem) -> str | None:
    """Return a solved function and the beginning of its test: two asserts and the next word."""
    asserts = [
        line.replace("candidate(", f"{problem.entry_point}(")
        for line in problem.test.splitlines()
        if line.startswith("    assert candidate(") and _is_whole(line.strip())
    ]
    if len(asserts) < 4:
        return None
    shown = "\n".join(asserts[:2])
    test = f"def test_{problem.entry_point}():\n{shown}\n    assert"
    return f"{problem.prompt}{problem.canonical_solution}\n\n{test}"


def _is_whole(line: str) -> bool:
    try:
        ast.parse(line)
    except SyntaxError:
        return False
    return True


def _load(name: str, kind: type[T]) -> list[T]:
    folder = importlib.resources.files("specengine.bench") / "data" / "humaneval"
    lines = gzip.decompress((folder / name).read_bytes()).splitlines()
    return [msgspec.json.decode(line, type=kind) for line in lines]
