"""A fake engine that runs beside a test: it writes one statement, and says what it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from specengine.protocol import Complete, EngineState
from tests.fake_engine import FakeEngine, status

STATEMENT: Final = "return a + b"
"""What it writes if it is told nothing else."""


class ScriptedEngine:
    """The ways for a test's thread to speak to the engine's."""

    def __init__(self, engine: FakeEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.path = engine.path
        self.delay_s = 0.0
        self.statement = STATEMENT
        self.alternatives: tuple[str, ...] = ()
        """What it writes for the seeds behind the first one."""
        self._engine = engine
        self._loop = loop

    def text_for(self, request: Complete) -> str:
        """Return what it writes."""
        texts = (self.statement, *self.alternatives)
        return _rest(texts[min(request.sampling.seed, len(self.alternatives))], request.prefix)

    def say(self, state: EngineState, detail: str) -> None:
        """Tell all clients what the engine is doing."""
        self._loop.call_soon_threadsafe(self._engine.send_status, status(state, detail))

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the engine's loop to its end."""
        future: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result(60)

    def kill(self) -> None:
        """Die, as a process would."""
        self.do(self._engine.kill())

    def listen(self) -> None:
        """Be there again."""
        self.do(self._engine.listen())


@contextlib.contextmanager
def scripted_engine(path: Path) -> Iterator[ScriptedEngine]:
    """Listen on a socket."""
    loop = asyncio.new_event_loop()
    engine = FakeEngine(path)
    scripted = ScriptedEngine(engine, loop)

    async def answer_all() -> None:
        while True:
            request = await engine.requests.get()
            await asyncio.sleep(scripted.delay_s)
            if not request.is_done:
                request.answer(scripted.text_for(request.message))

    thread = threading.Thread(target=loop.run_forever, name="scripted-engine")
    thread.start()
    scripted.listen()
    answering = asyncio.run_coroutine_threadsafe(answer_all(), loop)
    try:
        yield scripted
    finally:
        answering.cancel()
        scripted.kill()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _rest(statement: str, prefix: str) -> str:
    """Return what follows a prefix that ends within a statement, which begins its line."""
    for begun in range(len(statement), -1, -1):
        indentation = prefix[: len(prefix) - begun].rpartition("\n")[2]
        if prefix.endswith(statement[:begun]) and not indentation.strip():
            return statement[begun:]
    return ""
