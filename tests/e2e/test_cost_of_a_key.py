"""What a key costs: counted by the real engine with the real model, behind the real server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from specengine.bench.editor import Editor, Ghost, start_editor
from specengine.bench.keystrokes import Example
from specengine.bench.workloads import example_file

pytestmark = [pytest.mark.e2e, pytest.mark.model]

MAX_PREFILLED = 3
"""Tokens that may be read for a key."""

WAIT_S = 120.0


@dataclass
class Cost:
    """What a request's line in the trace says."""

    outcome: str
    exit: str
    steps: int
    prefilled: int


class Typist:
    """Types into the example where one of its methods begins, and waits for each answer."""

    def __init__(self, editor: Editor, folder: Path) -> None:
        self.editor = editor
        self.trace = folder / "trace.jsonl"

    async def open(self, at: str) -> Ghost:
        """Open the example as it is when a method of it is written up to there."""
        example = Example.cut(example_file().read_text("utf-8"))
        before = example.before + example.typed[: example.typed.index(at) + len(at)]
        self.editor.open("example.py", before + example.after, len(before))
        return await self.editor.suggest()

    async def key(self, text: str) -> tuple[Ghost, Cost]:
        self.editor.type(text)
        return await self.answer()

    async def answer(self) -> tuple[Ghost, Cost]:
        ghost = await self.editor.suggest()
        return ghost, await self.cost(ghost.request)

    async def cost(self, request: int) -> Cost:
        """Return what a request has cost, when its line has been written."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for line in self.trace.read_text("utf-8").splitlines():
                    data = json.loads(line)
                    is_request = "event" not in data and data["trigger"] != "ahead"
                    if is_request and data["request"] == request:
                        return Cost(
                            data["outcome"],
                            data["exit"],
                            data["steps"],
                            data["tokens"]["prefilled"],
                        )
                await asyncio.sleep(0.01)


def play(folder: Path, scene: Callable[[Typist], Awaitable[None]]) -> None:
    async def run() -> None:
        engine = {"arguments": ["--idle-exit", f"5.{os.getpid()}"]}  # an engine of its own
        settings = {
            "engine": engine,
            "completion": {"maxDebounceMs": 0, "patienceMs": 0, "lookAhead": False},
            "trace": {"path": str(folder / "trace.jsonl")},
        }
        async with asyncio.timeout(WAIT_S), start_editor(settings, lambda *_: None) as editor:
            await editor.wait_ready()
            await scene(Typist(editor, folder))

    asyncio.run(run())


def test_a_key_that_agrees_costs_no_pass(tmp_path: Path, default_model_dir: Path) -> None:
    async def scene(typist: Typist) -> None:
        ghost = await typist.open("        job.error = str(error)\n        if ")
        assert len(ghost.text) > 4
        for at in range(4):
            rest, cost = await typist.key(ghost.text[at])
            assert rest.text == ghost.text[at + 1 :]
            assert cost == Cost("cached", "cached", 0, 0)
        typist.editor.delete(4)
        again, cost = await typist.answer()
        assert again.text == ghost.text
        assert cost == Cost("cached", "cached", 0, 0)

    play(tmp_path, scene)


def test_a_key_that_disagrees_costs_three_tokens_at_most(
    tmp_path: Path, default_model_dir: Path
) -> None:
    async def scene(typist: Typist) -> None:
        await typist.open("        job.error = str(error)\n        ")
        costs: list[Cost] = []
        for key in "zebra_count = self._":
            _, cost = await typist.key(key)
            costs.append(cost)
        asked = [cost for cost in costs if cost.outcome != "cached"]
        assert len(asked) > 5, "this is not what the model would write"
        assert max(cost.prefilled for cost in asked) <= MAX_PREFILLED, costs

    play(tmp_path, scene)


def test_a_bracket_that_the_editor_closes_costs_no_more(
    tmp_path: Path, default_model_dir: Path
) -> None:
    """The text behind the cursor is read first: were the bracket in it, all would be read again."""

    async def scene(typist: Typist) -> None:
        await typist.open("        job.error = str(error)\n        ")
        await typist.key("zq")
        typist.editor.type_pair("(", ")")
        ghost, cost = await typist.answer()
        assert cost.prefilled <= MAX_PREFILLED
        assert not ghost.text.endswith("))")

    play(tmp_path, scene)
