from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from specengine.bench.editor import Editor, start_editor
from specengine.errors import EngineUnavailable
from specengine.protocol import EngineState, EngineStatus
from tests.fake_engine import FakeEngine, status

pytestmark = pytest.mark.e2e


def ignore(fraction: float, detail: str) -> None:
    pass


Scene = Callable[[Editor, FakeEngine], Awaitable[None]]


def play(folder: Path, scene: Scene, first_status: EngineStatus | None = None) -> None:
    """Run a scene between the real language server and an engine that does as told."""

    async def run() -> None:
        engine = FakeEngine(folder / "engine.sock", first_status)
        await engine.listen()
        settings = {
            "engine": {"socket": str(engine.path)},
            "trace": {"path": str(folder / "trace.jsonl")},
        }

        try:
            async with asyncio.timeout(20), start_editor(settings, ignore) as editor:
                await scene(editor, engine)
        finally:
            await engine.kill()

    asyncio.run(run())


def test_suggestion_follows_what_is_typed(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        await editor.wait_ready()
        editor.open("a.py", "x = 1\n\n# end\n", 6)
        editor.type("é = y")
        editor.delete(1)
        asked = asyncio.ensure_future(editor.suggest())
        request = await engine.next_request()
        assert request.message.prefix == "x = 1\né = "
        request.answer("x + 1")
        ghost = await asked
        assert (ghost.text, ghost.request) == ("x + 1", 1)
        assert (await editor.next_trace()).startswith("#1 v2 python automatic")
        editor.type("x")
        assert (await editor.suggest()).text == " + 1"
        assert "cached" in await editor.next_trace()
        assert editor.text == "x = 1\né = x\n# end\n"
        editor.close()

    play(tmp_path, scene)


def test_model_that_cannot_be_loaded_is_an_error_of_ours(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        with pytest.raises(EngineUnavailable, match="no weights"):
            await editor.wait_ready()

    play(tmp_path, scene, status(EngineState.FAILED, "no weights"))


def test_loading_is_waited_for(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        waiting = asyncio.ensure_future(editor.wait_ready())
        await engine.connected.wait()
        assert not waiting.done()
        engine.send_status(status())
        await waiting

    play(tmp_path, scene, status(EngineState.LOADING, "half"))


def test_server_that_dies_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("specengine.bench.editor.SERVER", (sys.executable, "-c", "exit(3)"))

    async def run() -> None:
        async with asyncio.timeout(20), start_editor({}, ignore):
            pass

    with pytest.raises(EngineUnavailable, match="the language server"):
        asyncio.run(run())
