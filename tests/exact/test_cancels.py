"""Cancels on the real model: nothing is left behind, the next answer is a fresh engine's."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from specengine.bench.workloads import load_problems
from specengine.engine import Engine
from specengine.models.decoder import Decoder
from specengine.models.integer import IntegerDecoder
from specengine.models.target import Rows
from specengine.protocol import CancelCause, Complete, StopReason
from specengine.scheduler import Job, Key, Outcome
from specengine.settings import EngineSettings

pytestmark = pytest.mark.model

NUM_CANCELS = 1000 if int(os.environ.get("EXACT_PROMPTS", "2")) > 2 else 25
WAIT_S = 60.0


class Passes:
    """Does something in the middle of a pass of the target, once, whatever a pass takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left, self._work = 0, lambda: None
        for kind in (IntegerDecoder, Decoder):
            monkeypatch.setattr(kind, "forward_batch", self._counting(kind.forward_batch))

    def at(self, number: int, work: Callable[[], None]) -> None:
        """Do some work at the n-th pass from now; it takes the place of other work."""
        self._left, self._work = number, work

    def _counting(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def forward_batch(decoder: object, parts: Sequence[Rows]) -> Any:
            self._left -= 1
            if self._left == 0:
                self._work()
            return forward(decoder, parts)

        return forward_batch


def send(
    engine: Engine, number: int, document: str, prefix: str, max_tokens: int = 32
) -> Future[Outcome]:
    answer: Future[Outcome] = Future()
    engine.submit(
        Job(
            key=Key(1, number),
            message=Complete(number, document, prefix, max_tokens=max_tokens),
            on_text=lambda text: None,
            on_done=answer.set_result,
            on_failed=answer.set_exception,
            received_at=0.0,
        )
    )
    return answer


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def new_engine(model: Path) -> Engine:
    engine = Engine(EngineSettings(model=str(model)), lambda status: None)
    engine.start()
    return engine


def test_random_cancels_leave_slots_memory_and_answers_as_they_were(
    default_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, passes = random.Random(11), Passes(monkeypatch)
    text = "\n".join(problem.prompt for problem in load_problems()[:8])
    fresh = new_engine(default_model_dir)
    expected = send(fresh, 1, "kept", text).result(WAIT_S)
    fresh.close()

    engine = new_engine(default_model_dir)
    for slot in range(engine.settings.slots):
        send(engine, slot, f"warm{slot}", f"# {slot}\n" + text).result(WAIT_S)
    slots_before, memory_before = engine.prefixes.num_bytes, resident_bytes()
    outcomes = [cancelled(engine, 10 + at, text, dice, passes) for at in range(NUM_CANCELS)]
    num_cancelled = sum(outcome.stop_reason is StopReason.CANCELLED for outcome in outcomes)
    after = send(engine, 5000, "kept", text).result(WAIT_S)
    assert num_cancelled > 0.9 * NUM_CANCELS
    assert any(outcome.token_ids for outcome in outcomes), "some were cancelled while writing"
    assert any(not outcome.token_ids for outcome in outcomes), "some while reading the prompt"
    assert (after.text, after.token_ids) == (expected.text, expected.token_ids)
    assert engine.prefixes.num_leased == 0
    assert engine.prefixes.num_bytes == slots_before
    assert resident_bytes() - memory_before < 64 * 2**20
    engine.prefixes.check_integrity()
    engine.close()


def cancelled(
    engine: Engine, number: int, text: str, dice: random.Random, passes: Passes
) -> Outcome:
    """Send a request that is cancelled at a random pass, and return how it ended."""
    start = dice.randrange(0, len(text) // 2)
    prefix = text[start : start + dice.randint(1, 1500)]
    passes.at(dice.randint(1, 10), lambda: engine.cancel(Key(1, number), CancelCause.CLIENT))
    return send(engine, number, f"doc{number % 3}", prefix, max_tokens=96).result(WAIT_S)
