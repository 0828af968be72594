"""``specengine serve --http`` as a process, asked by the official client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from specengine.client import EngineClient, UnixAddress
from specengine.errors import EngineUnavailable
from specengine.protocol import Complete, Done
from tests.specengine.tiny import save_tiny_model

pytestmark = pytest.mark.e2e

WAIT_S = 60.0
KEY = "a key of some length"
NO_PROXY = {"NO_PROXY": "127.0.0.1"}
ADDRESS = re.compile(rb"HTTP is answered at (http://127\.0\.0\.1:\d+)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@contextmanager
def engine_process(
    model: Path, *arguments: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start an engine; give it and its address."""
    command = [sys.executable, "-m", "specengine.cli", "serve", "--model", str(model)]
    command += ["--http", "127.0.0.1:0", *arguments]
    environment = {**os.environ, **NO_PROXY, **environment}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
        try:
            yield process, _address(process)
        finally:
            process.kill()


def _address(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        said += line
        if found := ADDRESS.search(line):
            return found.group(1).decode()
    raise AssertionError(said.decode())


def test_an_engine_answers_http_and_ends_cleanly(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with engine_process(model, SPECENGINE_API_KEY=KEY) as (process, address):
        with OpenAI(base_url=f"{address}/v1", api_key=KEY, timeout=WAIT_S) as client:
            # It waits while the model loads.
            answer = client.completions.create(
                model="any", prompt="def f", max_tokens=4, temperature=0
            )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        health = json.load(urllib.request.urlopen(f"{address}/health", timeout=WAIT_S))
        assert health["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        log = process.stderr.read().decode()
        assert "def f" not in log
        assert KEY not in log
        assert "request h1: length" in log


async def connect(address: UnixAddress) -> EngineClient:
    """Return a connection as soon as the other door is open, too."""
    while True:
        try:
            return await EngineClient.connect(address, program="test")
        except EngineUnavailable:
            await asyncio.sleep(0.02)


def _metrics_with(address: str, line: str) -> str:
    """Return the metrics as soon as they have a line: the answer leaves before it is counted."""
    give_up_at = time.monotonic() + WAIT_S
    while True:
        text = urllib.request.urlopen(f"{address}/metrics", timeout=WAIT_S).read().decode()
        if line in text:
            return text
        assert time.monotonic() < give_up_at, text


def test_requests_of_both_doors_are_counted(model: Path, tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"

    async def ask() -> Done:
        client = await connect(UnixAddress(str(socket)))
        message = Complete(client.next_request(), "a", "def f(self):\n", max_tokens=4)
        *_, done = [part async for part in client.complete(message)]
        await client.close()
        assert isinstance(done, Done)
        return done

    with engine_process(model, "--socket", str(socket)) as (_, address):
        done = asyncio.run(asyncio.wait_for(ask(), WAIT_S))
        text = _metrics_with(address, 'specengine:requests_total{result="length"} 1.0')
        assert f"specengine:generation_tokens_total {done.tokens.emitted}.0" in text


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--http", "0.0.0.0:0"], "SPECENGINE_API_KEY"),
        (["--http", "8012"], "is no address"),
        (["--http", "127.0.0.1:0", "--api-key-file", "no-file"], "no-file"),
        ([], "--http"),
    ],
)
def test_a_door_that_cannot_be_is_refused_in_one_line(
    model: Path, arguments: list[str], what: str
) -> None:
    command = [sys.executable, "-m", "specengine.cli", "serve", "--model", str(model), *arguments]
    environment = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    ended = subprocess.run(
        command, capture_output=True, timeout=WAIT_S, env=environment, check=False
    )
    assert ended.returncode == 1
    assert what in ended.stderr.decode()
    assert len(ended.stderr.splitlines()) == 1
