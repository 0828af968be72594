"""A listening door over a real socket, around an engine that the test chooses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from specengine.engine import Engine
from specengine.http import app
from specengine.http.door import Address, HttpDoor, bind
from specengine.http.guard import Rules
from specengine.journal import Journal
from specengine.metrics import Metrics
from specengine.models import registry
from specengine.settings import EngineSettings
from tests.specengine.http.scripted import ScriptedEngine
from tests.specengine.tiny import save_tiny_model

WAIT_S = 20.0

Scene = Callable[[int], Awaitable[None]]
"""What a test does with a door at a port of loopback."""

Play = Callable[..., None]

# Proxies of the machine must not stand between a test and its door.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"


@pytest.fixture(scope="package")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    settings = EngineSettings(
        model=str(folder),
        drafter="suffix",
        precision="float32",
        prompt_tokens=600,
        max_tokens=64,
    )
    engine = Engine(settings, lambda status: None)
    engine.start()
    yield engine
    engine.close()


@pytest.fixture
def play() -> Play:
    """Run a scene against a door, with a time limit."""

    def run(
        scene: Scene,
        engine: Engine | ScriptedEngine,
        rules: Rules | None = None,
        journal: Journal | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        async def with_door() -> None:
            async with asyncio.timeout(wait_s):
                kept = journal or Journal()
                allowed = rules or Rules()
                metrics = Metrics(lambda: engine.status, engine.watch)
                templates = list(registry.load(own_file=Path("none")).fim_templates.values())
                application = app.build(engine, kept, metrics, allowed, templates)
                door = HttpDoor(application, bind(Address("127.0.0.1", 0)))
                try:
                    await scene(door.port)
                finally:
                    await door.close()

        asyncio.run(with_door())

    return run
