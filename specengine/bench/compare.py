"""Engines side by side: the same weights, prompts and threads, each engine in its own process.

In each run all processes are started anew, one after the other, and then work in turn at every
prompt, so that a slow moment of the machine hits all of them. Never do two work at once, but all
are in memory together. Knows no engine, and nothing of what becomes of the times (`peer_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Protocol

from specengine.bench.contestants import Peer, Written
from specengine.bench.decode import OnPrompt, TokenSet
from specengine.bench.peer_process import Recipe
from specengine.errors import EngineUnavailable

FIRST_TOKEN_LENGTH: Final = 1024
"""Of the longest prompt whose first token is waited for."""


@dataclass
class Sample:
    """What one contestant needed in one run."""

    start_up_s: float
    build: str
    prefill_ms: dict[int, float] = field(default_factory=dict[int, float])
    """By the length of the prompt."""
    resume_ms: float = 0.0
    written: dict[str, list[Written]] = field(default_factory=dict[str, list[Written]])
    """By the name of the set, prompt by prompt."""
    peak_bytes: int | None = None


class Started(Peer, Protocol):
    """A contestant in a process."""

    build: str
    start_up_s: float

    def peak_bytes(self) -> int | None:
        """Return the most memory that it has held so far, if the system tells."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass(frozen=True)
class Tasks:
    """What all contestants are given."""

    sets: Sequence[TokenSet]
    prompts: Sequence[Sequence[int]]
    """One for each length at which reading is measured."""

    @property
    def first_token_prompt(self) -> Sequence[int]:
        """Return the prompt whose first token is waited for."""
        short = [prompt for prompt in self.prompts if len(prompt) <= FIRST_TOKEN_LENGTH]
        return max(short, key=len)


@dataclass(frozen=True)
class Comparison:
    """How and among whom."""

    recipes: Sequence[Recipe]
    runs: int
    start: Callable[[Recipe], Started]
    """Raises EngineUnavailable when there is no way to."""
    on_task: OnPrompt
    on_left_out: Callable[[str], None]
    """Told in a line of a contestant that can go on no further; there are no rows of it."""


def compare(comparison: Comparison, tasks: Tasks) -> dict[Recipe, list[Sample]]:
    """Let all contestants do all tasks in each run; return what those needed that did."""
    runs: list[dict[Recipe, Sample]] = []
    recipes = comparison.recipes
    for number in range(comparison.runs):
        runs.append(_run_once(comparison, recipes, tasks, number))
        recipes = list(runs[-1])
    comparison.on_task(1.0, "done")
    return {recipe: [run[recipe] for run in runs] for recipe in recipes}


def _run_once(
    comparison: Comparison, recipes: Sequence[Recipe], tasks: Tasks, number: int
) -> dict[Recipe, Sample]:
    """Return what each contestant needed that did all tasks."""
    steps = _steps(tasks)
    with ExitStack() as stack:
        turns = _Turns(comparison, stack)
        turns.start(recipes, number / comparison.runs)
        for at, (detail, step) in enumerate(steps):
            done = (number + at / len(steps)) / comparison.runs
            comparison.on_task(done, f"run {number + 1} of {comparison.runs}, {detail}")
            turns.each(step)
        return turns.samples


Step = Callable[[Started, Sample], None]
"""Lets a contestant do one task, and notes what it needed."""


def _steps(tasks: Tasks) -> list[tuple[str, Step]]:
    """Return all that is to be done, with a few words on each."""

    def read(prompt: Sequence[int]) -> Step:
        def step(peer: Started, sample: Sample) -> None:
            sample.prefill_ms[len(prompt)] = peer.write(prompt, 1).prefill_ms

        return step

    def write(one_set: TokenSet, prompt: Sequence[int]) -> Step:
        def step(peer: Started, sample: Sample) -> None:
            written = peer.write(prompt, one_set.num_tokens)
            sample.written.setdefault(one_set.name, []).append(written)

        return step

    def resume(peer: Started, sample: Sample) -> None:
        sample.resume_ms = peer.resume_ms(tasks.first_token_prompt)

    def weigh(peer: Started, sample: Sample) -> None:
        sample.peak_bytes = peer.peak_bytes()

    reading = [(f"{len(prompt)} tokens", read(prompt)) for prompt in tasks.prompts]
    writing = [
        (one_set.name, write(one_set, prompt))
        for one_set in tasks.sets
        for prompt in one_set.prompts
    ]
    return [*reading, ("a stored prompt", resume), *writing, ("memory", weigh)]


class _Turns:
    """Those who are still in a run, in their order; who fails is told of and leaves."""

    def __init__(self, comparison: Comparison, stack: ExitStack) -> None:
        self.samples: dict[Recipe, Sample] = {}
        self._comparison = comparison
        self._stack = stack
        self._peers: dict[Recipe, Started] = {}

    def start(self, recipes: Sequence[Recipe], done: float) -> None:
        """Start all, one after the other; ``done`` is the share of all runs that is over."""
        for recipe in recipes:
            self._comparison.on_task(done, f"{recipe} starts")
            try:
                peer = self._comparison.start(recipe)
            except EngineUnavailable as error:
                self._comparison.on_left_out(f"left out: {error}")
                continue
            self._stack.callback(peer.close)
            self._peers[recipe] = peer
            self.samples[recipe] = Sample(peer.start_up_s, peer.build)

    def each(self, step: Step) -> None:
        """Let all take their turn."""
        for recipe, peer in list(self._peers.items()):
            try:
                step(peer, self.samples[recipe])
            except EngineUnavailable as error:
                self._comparison.on_left_out(f"left out: {error}")
                del self._peers[recipe], self.samples[recipe]
