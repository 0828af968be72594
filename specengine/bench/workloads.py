"""The texts that benchmarks complete, from HumanEval files inside this package.

It knows no engine and no tokenizer, and runs nothing.

Source:  Chen et al. 2021, arXiv 2107.03374; Bavarian et al. 2022, arXiv 2207.14255.
"""

from __future__ import annotations

import gzip
import importlib.resources
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from specengine.errors import ConfigError

SETS: Final = ("humaneval", "infilling", "edits")
"""Names of the sets that decoding is measured on."""

CLASSES: Final = (
    "rename",
    "boilerplate",
    "tests",
    "json",
    "yaml",
    "html",
    "calls",
    "prose",
    "noise",
)
"""Names of further sets, of a few prompts of one kind each."""

INFILL_SETS: Final = ("single", "multi", "span")
"""Names of the sets that filling in is measured on."""

NUM_TOKENS: Final = 64
"""Length of a continuation."""
NUM_TOKENS_BETWEEN: Final = 32
"""Of one between two texts, which ends by itself: as much as is missing at least."""
MIN_MISSING_CHARS: Final = 128
"""That many tokens of code are hardly ever less."""

T = TypeVar("T")


class Problem(msgspec.Struct, frozen=True):
    """A function to write."""

    prompt: str
    """Imports, signature and docstring."""
    canonical_solution: str
    entry_point: str
    test: str


class Infilling(msgspec.Struct, frozen=True):
    """A part of a function that is missing."""

    prompt: str
    suffix: str
    canonical_solution: str
    """What is missing: whole lines with indentation and ends, or a span that begins anywhere."""
    test: str
    """Defines ``check``, which takes the function."""
    entry_point: str
    """Its name."""


@dataclass(frozen=True)
class InfillSet:
    """Parts to fill in."""

    name: str
    infillings: tuple[Infilling, ...]

    @property
    def has_whole_lines(self) -> bool:
        """Whether what is missing begins and ends where lines do."""
        return self.name != "span"


@dataclass(frozen=True)
class Place:
    """Where a text goes on: behind one, and before another if that is not empty."""

    prefix: str
    suffix: str = ""


@dataclass(frozen=True)
class PromptSet:
    """Places where so many tokens are to be written."""

    name: str
    places: tuple[Place, ...]
    num_tokens: int = NUM_TOKENS


def prompt_sets(limit: int, names: Sequence[str] = SETS) -> list[PromptSet]:
    """Return sets of the decode benchmark, cut to ``limit`` places each.

    No prefix ends in white space: a model writes a new line and its indentation as one token, and
    behind half of it some end the text at once.
    """
    problems = load_problems()
    prompts = {
        "humaneval": [problem.prompt for problem in problems],
        "edits": edits(problems),
        **load_classes(),
    }
    sets = {
        name: PromptSet(name, tuple(Place(text.rstrip()) for text in texts[:limit]))
        for name, texts in prompts.items()
    }
    sets["infilling"] = PromptSet("infilling", long_gaps(limit), NUM_TOKENS_BETWEEN)
    return [sets[name] for name in names]


def long_gaps(limit: int) -> tuple[Place, ...]:
    """Return gaps of several lines that ``NUM_TOKENS_BETWEEN`` do not fill, spread over all."""
    gaps = [
        Place(gap.prompt.rstrip(), f"\n{gap.suffix}")
        for gap in load_infillings("multi")
        if len(gap.canonical_solution) >= MIN_MISSING_CHARS
    ]
    return spread(gaps, limit)


def load_classes() -> dict[str, list[str]]:
    """Return the prompts of each class: where copying pays, and where nothing can be guessed."""
    file = importlib.resources.files("specengine.bench") / "data" / "prompts.toml"
    known = tomllib.loads(file.read_text("utf-8"))
    return {name: known[name]["prompts"] for name in CLASSES}


def edits(problems: Sequence[Problem]) -> list[str]:
    """Return texts whose continuation repeats, with differences, what stands above it.

    That is where copying from the file pays, and much of editing is of this kind. They are made
    from the problems in turn: behind a solved function the user has begun a second version of it
    (up to the first line of its body), or below two classes of the same form has begun a third (up
    to its first line). What a model writes there is its own; nothing makes it copy.
    """
    return [
        _second_version(problem) if number % 2 == 0 else _third_class(problems[number - 2 :][:3])
        for number, problem in enumerate(problems[2:], 2)
    ]


def load_problems() -> list[Problem]:
    """Return the 164 problems of HumanEval."""
    return _load("HumanEval.jsonl.gz", Problem)


def infill_sets(names: Sequence[str], limit: int) -> list[InfillSet]:
    """Return sets of the infill benchmark, of each ``limit`` gaps that are spread over all."""
    return [InfillSet(name, spread(load_infillings(name), limit)) for name in names]


def spread(items: Sequence[T], limit: int) -> tuple[T, ...]:
    """Return so many items at equal distances; neighbours come from one function."""
    num = min(limit, len(items))
    return tuple(items[at * len(items) // num] for at in range(num))


def load_infillings(name: str) -> list[Infilling]:
    """Return all of a set, from problems 0 to 81: 441 lines, 565 runs of lines, or 82 spans."""
    return _load(f"infilling-{name}.jsonl.gz", Infilling)


def example_file() -> Path:
    """Return the Python file that is typed into.

    Raises:  ConfigError when it was not installed.
    """
    package = Path(__file__).parent
    for folder in (package / "data", package.parent.parent / "examples"):
        if (file := folder / "job_queue.py").is_file():
            return file
    raise ConfigError("the example file is missing.", hint="Install SpecEngine again.")


def _second_version(problem: Problem) -> str:
    start = problem.prompt.rfind(f"def {problem.entry_point}(")
    name = rf"\b{problem.entry_point}\b"
    header = re.sub(name, f"{problem.entry_point}_checked", problem.prompt[start:])
    first_line = problem.canonical_solution.strip("\n").partition("\n")[0]
    return f"{problem.prompt}{problem.canonical_solution}\n\n{header}{first_line}"


def _third_class(problems: Sequence[Problem]) -> str:
    imports = "".join(f"from solutions import {problem.entry_point}\n" for problem in problems)
    classes = "\n\n".join(map(_command_class, problems))
    begun = classes[: classes.index("\n", classes.rindex("class "))]
    return f"from commands import Command\n{imports}\n\n{begun}"


def _command_class(problem: Problem) -> str:
    """Return a class that makes a function a command, as tools with many commands have them."""
    name = problem.entry_point
    signature = problem.prompt[problem.prompt.rfind(f"def {name}(") :].partition("\n")[0]
    parameters = signature.partition("(")[2].rpartition(")")[0]
    result = signature.rpartition(")")[2]
    names = [part.partition(":")[0].strip() for part in parameters.split(", ")]
    title = "".join(map(str.capitalize, name.split("_")))
    return (
        f"class {title}(Command):\n"
        f'    """Run {name} on what the user has given."""\n\n'
        f'    name = "{name}"\n\n'
        f"    def run(self, {parameters}){result}\n"
        f"        self.log({', '.join(names)})\n"
        f"        return {name}({', '.join(names)})\n"
    )


def _load(name: str, kind: type[T]) -> list[T]:
    folder = importlib.resources.files("specengine.bench") / "data" / "humaneval"
    lines = gzip.decompress((folder / name).read_bytes()).splitlines()
    return [msgspec.json.decode(line, type=kind) for line in lines]
