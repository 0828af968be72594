"""Facts about starting an engine, with a small program in its place."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specengine import launch
from specengine.client import TcpAddress, UnixAddress
from specengine.errors import ConfigError, EngineUnavailable
from specengine.launch import (
    MAX_SOCKET_PATH_BYTES,
    EngineCommand,
    Launcher,
    absolute_model,
    address_of,
    command_line,
    places_of,
    runtime_folder,
)

ROOT = Path(__file__).parents[2]

PROGRAM = f"""
import asyncio, json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.fake_engine import FakeEngine

async def main():
    arguments = sys.argv[1:]
    with open(os.environ["STARTS"], "a") as file:
        print(os.getpid(), file=file)
    path = Path(arguments[arguments.index("--socket") + 1])
    await FakeEngine(path).listen()
    await asyncio.sleep(20)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))


def program(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "engine.py"
    path.write_text(text)
    return (sys.executable, str(path))


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[list[int]]:
    """The processes that were started; ended with the test."""
    found: list[int] = []
    yield found
    if (tmp_path / "starts").exists():
        found.extend(int(line) for line in (tmp_path / "starts").read_text().split())
    for pid in set(found):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.e2e
def test_engine_is_started_once_and_then_joined(tmp_path: Path, pids: list[int]):
    """Also by two windows that open at the same moment."""

    async def run() -> None:
        command = EngineCommand("m", program=program(tmp_path, PROGRAM))
        launchers = [Launcher(command, "test") for _ in range(2)]
        clients = await asyncio.gather(*(launcher.open() for launcher in launchers))
        clients.append(await Launcher(command, "test").open())
        starts = (tmp_path / "starts").read_text().split()
        assert len(starts) == 1
        (started,) = [one.process for one in launchers if one.process is not None]
        assert os.getsid(started.pid) == started.pid, "it does not end with the editor's terminal"
        for client in clients:
            assert client.is_connected
            await client.close()
        started.kill()
        started.wait()
        assert places_of(command).socket.exists(), "a killed engine leaves its socket"
        again = Launcher(command, "test")
        client = await again.open()
        await client.close()
        assert again.process is not None
        again.process.kill()
        again.process.wait()
        (tmp_path / "starts").unlink()

    asyncio.run(run())


def test_engine_that_dies_is_told_with_its_last_words(tmp_path: Path):
    text = "import sys; print('no such model', file=sys.stderr); sys.exit(3)"
    launcher = Launcher(EngineCommand("m", program=program(tmp_path, text)), "test")
    with pytest.raises(EngineUnavailable, match="code 3: no such model Its log is ") as caught:
        asyncio.run(launcher.open())
    assert str(places_of(launcher.command).log) in str(caught.value)


def test_program_that_is_not_there_is_told():
    launcher = Launcher(EngineCommand("m", program=("/no/such/program",)), "test")
    with pytest.raises(EngineUnavailable, match="cannot be started"):
        asyncio.run(launcher.open())


@pytest.mark.parametrize("model", ["a\0b", "a\ud800b"])
def test_model_that_no_command_line_can_hold_is_told(tmp_path: Path, model: str):
    launcher = Launcher(EngineCommand(model, program=program(tmp_path, "")), "test")
    with pytest.raises(EngineUnavailable, match="cannot be started"):
        asyncio.run(launcher.open())


def test_log_folder_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "state").touch()
    launcher = Launcher(EngineCommand("m", program=program(tmp_path, "")), "test")
    with pytest.raises(EngineUnavailable, match=r"cannot be started: .*state"):
        asyncio.run(launcher.open())


def test_runtime_folder_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match=r"cannot be made: .* Set XDG_RUNTIME_DIR"):
        asyncio.run(Launcher(EngineCommand("m"), "test").open())


def test_lock_that_cannot_be_opened_is_told():
    command = EngineCommand("m")
    places_of(command).lock.mkdir()
    with pytest.raises(EngineUnavailable, match="cannot be locked"):
        asyncio.run(Launcher(command, "test").open())


def test_engine_that_never_listens_is_given_up(tmp_path: Path):
    now_s = [0.0]

    async def sleep(seconds: float) -> None:
        now_s[0] += 1.0

    command = EngineCommand("m", program=program(tmp_path, "import time; time.sleep(20)"))
    launcher = Launcher(command, "test", 5.0, sleep, lambda: now_s[0])
    with pytest.raises(EngineUnavailable, match="did not listen within 5 s"):
        asyncio.run(launcher.open())
    assert launcher.process is not None
    launcher.process.kill()
    launcher.process.wait()


def test_start_by_another_program_is_waited_for(tmp_path: Path):
    now_s = [0.0]

    async def sleep(seconds: float) -> None:
        now_s[0] += 1.0

    command = EngineCommand("m", program=program(tmp_path, ""))
    with places_of(command).lock.open("ab") as file:
        assert launch._try_lock(file)
        launcher = Launcher(command, "test", 5.0, sleep, lambda: now_s[0])
        with pytest.raises(EngineUnavailable, match="another program"):
            asyncio.run(launcher.open())
    assert launcher.process is None


def test_arguments_decide_the_socket():
    command = EngineCommand("m")
    assert places_of(command) == places_of(EngineCommand("m", idle_exit_s=1.0))
    others = [
        EngineCommand("n"),
        EngineCommand("m", "suffix"),
        EngineCommand("m", arguments=("--precision", "float32")),
        EngineCommand("m", use_tcp=True),
    ]
    assert len({places_of(other).name for other in (command, *others)}) == 5


def test_command_line_says_where_to_listen():
    command = EngineCommand("m", "none", ("--threads", "2"), 60.0, program=("engine",))
    places = places_of(command)
    assert command_line(command, places) == [
        "engine", "serve", "--model", "m", "--drafter", "none",
        "--socket", str(places.socket), "--idle-exit", "60", "--threads", "2",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["./tiny", "tiny/", "models/../tiny", "tiny.gguf", "Tiny.GGUF"])
def test_path_of_a_model_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
):
    """The engine has another working directory than whoever starts it."""
    monkeypatch.chdir(tmp_path)
    assert absolute_model(text) == str(tmp_path / text)
    command = EngineCommand(text)
    line = command_line(command, places_of(command))
    assert line[line.index("--model") + 1] == str(tmp_path / text)
    assert places_of(command) == places_of(EngineCommand(str(tmp_path / text)))


def test_model_in_the_home_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert absolute_model("~/tiny") == str(tmp_path / "tiny")


@pytest.mark.parametrize("text", ["", "tiny", "qwen2.5-coder-0.5b"])
def test_name_of_a_model_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str):
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert absolute_model(text) == text


@pytest.mark.parametrize("text", ["~nosuchuser/tiny", "~a\0b/tiny"])
def test_home_folder_of_nobody_is_told(text: str):
    with pytest.raises(ConfigError, match="cannot be found"):
        absolute_model(text)


def test_drafter_is_left_to_the_engine_unless_named():
    """Else its engine.toml and environment would never count."""
    command = EngineCommand("m")
    assert "--drafter" not in command_line(command, places_of(command))


def test_engine_on_a_port_writes_its_address():
    command = EngineCommand("m", use_tcp=True)
    places = places_of(command)
    line = command_line(command, places)
    assert line[line.index("--listen-file") + 1] == str(places.listen_file)
    assert "--socket" not in line
    with pytest.raises(EngineUnavailable, match="no engine has written"):
        address_of(command, places)
    places.listen_file.write_text("{")
    with pytest.raises(EngineUnavailable):
        address_of(command, places)
    places.listen_file.write_text('{"host": "127.0.0.1", "port": 7, "token": "t"}')
    assert address_of(command, places) == TcpAddress("127.0.0.1", 7, "t")


def test_engine_on_a_socket_has_its_path_as_address():
    command = EngineCommand("m")
    places = places_of(command)
    assert address_of(command, places) == UnixAddress(str(places.socket))


def test_folder_is_for_this_user_only(tmp_path: Path):
    folder = runtime_folder()
    assert folder == tmp_path / "run" / "specengine"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_folder_that_is_open_to_others_is_refused():
    runtime_folder().chmod(0o755)
    with pytest.raises(ConfigError, match="open to other users"):
        runtime_folder()


def test_folder_that_is_a_link_is_refused(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "run" / "specengine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not a folder of this user"):
        runtime_folder()


def test_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch):
    runtime_folder()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ConfigError, match="not a folder of this user"):
        runtime_folder()


def test_long_folder_is_replaced_by_a_short_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * MAX_SOCKET_PATH_BYTES)))
    assert places_of(EngineCommand("m")).folder.parent == tmp_path


def test_folder_without_xdg_is_in_the_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_folder() == tmp_path / f"specengine-{os.getuid()}"


def test_long_log_is_renamed(tmp_path: Path):
    path = tmp_path / "logs" / "engine.log"
    path.parent.mkdir()
    path.write_bytes(b"x" * (launch.MAX_LOG_BYTES + 1))
    with launch._open_log(path) as log:
        log.write(b"new\n")
    assert path.read_bytes() == b"new\n"
    assert path.with_name("engine.log.1").exists()
    assert launch._last_line(path) == "new"
    assert launch._last_line(tmp_path / "none") == "it wrote no log"


def test_launch_never_imports_torch():
    code = "import sys, specengine.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
