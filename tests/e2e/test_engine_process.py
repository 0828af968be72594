"""``specengine serve`` and ``complete`` as processes, with a tiny model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from specengine.client import Address, EngineClient, TcpAddress, UnixAddress
from specengine.errors import EngineFailed, EngineUnavailable
from specengine.protocol import Complete, Done, EngineState, StopReason
from tests.specengine.tiny import save_tiny_model

pytestmark = pytest.mark.e2e

WAIT_S = 60.0
SPECENGINE = (sys.executable, "-m", "specengine.cli")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@contextmanager
def engine_process(model: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*SPECENGINE, "serve", "--model", str(model), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


async def connect(address: Address, process: subprocess.Popen[bytes]) -> EngineClient:
    """Return a connection as soon as the process listens."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await EngineClient.connect(address, program="test")
            except EngineUnavailable:
                assert process.poll() is None, process.communicate()[1].decode()
                await asyncio.sleep(0.02)


async def ask(client: EngineClient) -> Done:
    message = Complete(client.next_request(), "a", "def f(self):\n", max_tokens=4)
    async with asyncio.timeout(WAIT_S):
        *_, done = [part async for part in client.complete(message)]
    assert isinstance(done, Done)
    return done


def test_an_engine_on_a_socket_serves_and_ends_cleanly(model: Path, tmp_path: Path) -> None:
    socket = tmp_path / "run" / "engine.sock"

    async def scene(process: subprocess.Popen[bytes]) -> None:
        client = await connect(UnixAddress(str(socket)), process)
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        assert (await ask(client)).stop_reason is StopReason.LENGTH
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            await client.wait_closed()
        await client.close()

    with engine_process(model, "--socket", str(socket)) as process:
        asyncio.run(scene(process))
        assert process.wait(WAIT_S) == 0
    assert not socket.exists()


def test_an_engine_leaves_the_socket_of_another_alone(model: Path, tmp_path: Path) -> None:
    """It refuses one that answers, and removes only its own file when it leaves."""
    path = tmp_path / "s"

    async def scene(process: subprocess.Popen[bytes]) -> None:
        await (await connect(UnixAddress(str(path)), process)).close()
        second = await asyncio.create_subprocess_exec(
            *SPECENGINE, "serve", "--model", str(model), "--socket", str(path), stderr=-1
        )
        _, said = await asyncio.wait_for(second.communicate(), WAIT_S)
        assert second.returncode == 1
        assert b"listens at" in said
        path.unlink()
        path.write_text("a successor's")
        process.send_signal(signal.SIGTERM)

    with engine_process(model, "--socket", str(path)) as process:
        asyncio.run(scene(process))
        assert process.wait(WAIT_S) == 0
    assert path.read_text() == "a successor's"


def test_an_engine_on_loopback_tells_port_and_token_in_a_private_file(
    model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "engine.json"

    async def scene(process: subprocess.Popen[bytes]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not file.exists():
                assert process.poll() is None
                await asyncio.sleep(0.02)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        told = msgspec.json.decode(file.read_bytes())
        address = TcpAddress(told["host"], told["port"], told["token"])
        client = await connect(address, process)
        assert (await ask(client)).stop_reason is StopReason.LENGTH
        await client.close()
        with pytest.raises(EngineUnavailable):
            await EngineClient.connect(TcpAddress(told["host"], told["port"], ""), program="test")

    with engine_process(model, "--listen-file", str(file)) as process:
        asyncio.run(scene(process))


def test_an_engine_that_nobody_needs_exits(model: Path, tmp_path: Path) -> None:
    arguments = ("--socket", str(tmp_path / "s"), "--idle-exit", "0.1")
    with engine_process(model, *arguments) as process:
        assert process.wait(WAIT_S) == 0


def test_an_engine_whose_model_cannot_be_loaded_says_so_to_its_clients(
    model: Path, tmp_path: Path
) -> None:
    broken = save_tiny_model(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"")

    async def scene(process: subprocess.Popen[bytes]) -> None:
        client = await connect(UnixAddress(str(tmp_path / "s")), process)
        with pytest.raises(EngineFailed, match="safetensors"):
            await ask(client)
        client.query_status()
        with pytest.raises(EngineFailed):
            await ask(client)
        assert client.status is not None
        assert client.status.state is EngineState.FAILED
        assert "model.safetensors" in client.status.detail
        await client.close()

    with engine_process(broken, "--socket", str(tmp_path / "s")) as process:
        asyncio.run(scene(process))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("serve", "--socket", "s", "--model", "smollm"), "No model is named 'smollm'"),
        (("serve", "--model", "smollm2-135m"), "--socket"),
        (("serve", "--socket", "s", "--precision", "int3"), "precision"),
        (("complete", "nothing.py"), "PATH:LINE:COLUMN"),
        (("complete", "nothing.py:1:1"), "cannot read"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    done = subprocess.run(
        [*SPECENGINE, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("specengine: ")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_complete_starts_an_engine_and_joins_it(model: Path, tmp_path: Path) -> None:
    """Both runs print the same text; the second finds the first one's engine and KV."""
    file = tmp_path / "code.py"
    file.write_text("def f(self):\n    return self\n" * 20, "utf-8")
    environment = os.environ | {"XDG_RUNTIME_DIR": str(private_folder(tmp_path))}
    environment |= {"SPECENGINE_DRAFTER": "suffix", "SPECENGINE_IDLE_EXIT_S": "3"}
    command = [*SPECENGINE, "complete", f"{file}:40:5", "--model", str(model), "--json"]
    command += ["--max-tokens", "5"]
    answers: list[dict[str, object]] = []
    for _ in range(2):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=True
        )
        answers.append(json.loads(done.stdout))
    first, second = answers
    assert set(first) == {"text", "tokens", "stop_reason", "model", "drafter", "timings"}
    assert first["text"] == second["text"]
    timings = second["timings"]
    assert isinstance(timings, dict)
    assert timings["reused"] > 0
    assert first["drafter"] == "suffix"


def private_folder(parent: Path) -> Path:
    folder = parent / "runtime"
    folder.mkdir(mode=0o700)
    return folder
