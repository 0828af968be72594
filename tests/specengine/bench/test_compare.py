from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from specengine.bench.compare import Comparison, Tasks, compare
from specengine.bench.contestants import Written
from specengine.bench.decode import TokenSet
from specengine.bench.peer_process import Recipe
from specengine.errors import EngineUnavailable

PLAIN = Recipe("specengine", "int8", "none", "/model", 2, 512)
FAST = msgspec.structs.replace(PLAIN, drafter="suffix")
TASKS = Tasks([TokenSet("short", [(1, 2), (3, 4, 5)], 4)], [(7,) * 256, (7,) * 1024, (7,) * 4096])


@dataclass
class FakePeer:
    """Takes a millisecond a token, and writes down in one list for all what it was asked."""

    recipe: Recipe
    calls: list[tuple[str, str, int]]
    fails_at: int = 1_000_000
    """Length of the prompt that it cannot read."""
    build: str = "fake"
    start_up_s: float = 0.5
    num_closed: int = 0

    @property
    def engine(self) -> str:
        return self.recipe.engine

    @property
    def drafter(self) -> str:
        return self.recipe.drafter

    def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
        self._note("write", len(prompt_ids))
        if len(prompt_ids) == self.fails_at:
            raise EngineUnavailable("it has ended.")
        length, num_decoded = float(len(prompt_ids)), num_tokens - 1
        return Written(
            (9,) * num_tokens, len(prompt_ids), length, num_decoded, num_decoded, num_decoded, 0, 0
        )

    def resume_ms(self, prompt_ids: Sequence[int]) -> float:
        self._note("resume", len(prompt_ids))
        return 1.0

    def peak_bytes(self) -> int | None:
        self._note("peak", 0)
        return 5_000_000

    def close(self) -> None:
        self.num_closed += 1

    def _note(self, what: str, length: int) -> None:
        self.calls.append((self.drafter, what, length))


@dataclass
class Stage:
    """Starts fakes, and remembers them and what was said."""

    fails_at: dict[Recipe, int] = field(default_factory=dict[Recipe, int])
    """0: it does not start."""
    calls: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    peers: list[FakePeer] = field(default_factory=list[FakePeer])
    lines: list[str] = field(default_factory=list[str])
    shares: list[float] = field(default_factory=list[float])

    def comparison(self, runs: int) -> Comparison:
        return Comparison(
            [PLAIN, FAST],
            runs,
            self._start,
            lambda share, detail: self.shares.append(share),
            self.lines.append,
        )

    def _start(self, recipe: Recipe) -> FakePeer:
        fails_at = self.fails_at.get(recipe, 1_000_000)
        if fails_at == 0:
            raise EngineUnavailable("it does not start.")
        self.peers.append(FakePeer(recipe, self.calls, fails_at))
        return self.peers[-1]


def test_contestants_take_turns_at_every_task() -> None:
    stage = Stage()
    compare(stage.comparison(runs=1), TASKS)
    tasks = [
        ("write", 256),
        ("write", 1024),
        ("write", 4096),
        ("resume", 1024),
        ("write", 2),
        ("write", 3),
        ("peak", 0),
    ]
    assert stage.calls == [(who, *task) for task in tasks for who in ("none", "suffix")]


def test_each_run_has_processes_of_its_own_which_end_with_it() -> None:
    stage = Stage()
    samples = compare(stage.comparison(runs=3), TASKS)
    assert len(stage.peers) == 6
    assert [peer.num_closed for peer in stage.peers] == [1] * 6
    assert {recipe: len(runs) for recipe, runs in samples.items()} == {PLAIN: 3, FAST: 3}
    sample = samples[FAST][0]
    assert (sample.start_up_s, sample.build, sample.peak_bytes) == (0.5, "fake", 5_000_000)
    assert sample.prefill_ms == {256: 256.0, 1024: 1024.0, 4096: 4096.0}
    assert sample.resume_ms == 1.0
    assert [one.num_prompt for one in sample.written["short"]] == [2, 3]
    assert stage.shares[-1] == 1.0
    assert stage.shares == sorted(stage.shares)


def test_one_that_does_not_start_is_left_out_with_a_line() -> None:
    stage = Stage({FAST: 0})
    samples = compare(stage.comparison(runs=2), TASKS)
    assert list(samples) == [PLAIN]
    assert stage.lines == ["left out: it does not start."]


def test_one_that_fails_on_the_way_is_left_out_and_the_others_go_on() -> None:
    stage = Stage({PLAIN: 1024})
    samples = compare(stage.comparison(runs=2), TASKS)
    assert {recipe: len(runs) for recipe, runs in samples.items()} == {FAST: 2}
    assert stage.lines == ["left out: it has ended."]
    assert [peer.num_closed for peer in stage.peers] == [1, 1, 1]


def test_processes_end_when_the_user_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()

    def interrupt(self: FakePeer, prompt_ids: Sequence[int]) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakePeer, "resume_ms", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare(stage.comparison(runs=1), TASKS)
    assert [peer.num_closed for peer in stage.peers] == [1, 1]
