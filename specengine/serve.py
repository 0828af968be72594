"""The engine process: one engine, its door, signals, and the exit when nobody needs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from specengine.engine import Engine, Status
from specengine.errors import ConfigError
from specengine.server import Server
from specengine.settings import EngineSettings

logger = logging.getLogger(__name__)

IDLE_CHECK_S: Final = 1.0
"""How often the exit for want of connections is considered."""


@dataclass(frozen=True)
class Door:
    """Where to listen: a Unix socket, or a loopback port that is written to a file."""

    socket: Path | None = None
    listen_file: Path | None = None

    def __post_init__(self) -> None:
        """Refuse none and both."""
        if (self.socket is None) == (self.listen_file is None):
            raise ConfigError("give either --socket or --listen-file.")

    @property
    def paths(self) -> list[Path]:
        """Return the files that stand for the door."""
        return [path for path in (self.socket, self.listen_file) if path is not None]


def serve(settings: EngineSettings, door: Door) -> None:
    """Run an engine until a signal, or until it has been idle for long enough.

    Raises:  ConfigError before anything has started.
    """
    asyncio.run(_serve(settings, door))


async def _serve(settings: EngineSettings, door: Door) -> None:
    loop = asyncio.get_running_loop()
    token = secrets.token_urlsafe(32) if door.listen_file else ""

    def on_status(status: Status) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(server.publish, status)

    engine = Engine(settings, on_status)
    server = Server(engine, token=token)
    listening = await _listen(server, door, token)
    own_files = {path: path.stat().st_ino for path in door.paths}
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Windows' loop has no signal handlers; there Ctrl+C ends the process.
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stopping.set)
    engine.start()
    try:
        await _until_idle_or_stopped(server, settings.idle_exit_s, stopping)
    finally:
        listening.close()
        await asyncio.to_thread(engine.close)
        # The last answers were posted to this loop: let them be written before the end.
        await asyncio.sleep(0)
        server.close()
        _remove(own_files)


async def _listen(server: Server, door: Door, token: str) -> asyncio.Server:
    if door.socket is not None:
        _check_free(door.socket)
        old_mask = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(server.serve, door.socket)
        except OSError as error:
            raise ConfigError(f"cannot listen at {door.socket}: {error}.") from error
        finally:
            os.umask(old_mask)
    assert door.listen_file is not None
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()[:2]
    _write_listen_file(door.listen_file, {"host": host, "port": port, "token": token})
    return listening


def _check_free(path: Path) -> None:
    """Make the folder of a socket, and refuse a path where somebody listens already."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        return
    except OSError as error:
        raise ConfigError(f"cannot listen at {path}: {error}.") from error
    raise ConfigError(f"an engine listens at {path} already.", hint="Choose another --socket.")


def _write_listen_file(file: Path, content: dict[str, str | int]) -> None:
    partial = file.with_name(file.name + ".new")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(msgspec.json.encode(content))
    # Whoever waits for the file must never read half of it.
    partial.replace(file)


async def _until_idle_or_stopped(
    server: Server, idle_exit_s: float, stopping: asyncio.Event
) -> None:
    while not stopping.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), IDLE_CHECK_S)
        if idle_exit_s and server.idle_s > idle_exit_s:
            logger.info("nobody has been connected for %.0f s; exit", idle_exit_s)
            return


def _remove(own_files: dict[Path, int]) -> None:
    """Remove the files that this process made; a successor may have put its own in their place."""
    for path, inode in own_files.items():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == inode:
                path.unlink()
