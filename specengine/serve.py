"""The engine process: one engine, its doors, signals, and the exit when nobody needs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from specengine import spans
from specengine.engine import Engine, Status
from specengine.errors import ConfigError
from specengine.http import app
from specengine.http.door import Address, HttpDoor, bind, check_exposure, read_key
from specengine.http.guard import Rules
from specengine.journal import Journal
from specengine.metrics import Metrics
from specengine.models import registry
from specengine.record import Record
from specengine.server import Server
from specengine.settings import EngineSettings
from specengine.trouble import take_over_loop

logger = logging.getLogger(__name__)

T = TypeVar("T")

IDLE_CHECK_S: Final = 1.0
"""How often the exit for want of connections is considered."""


@dataclass(frozen=True)
class HttpDoorSettings:
    """Where HTTP is answered, and who may ask."""

    address: Address
    api_key: str = field(default="", repr=False)

    @classmethod
    def parse(cls, address: str, key_file: Path | None) -> HttpDoorSettings:
        """Read what the command line says, and the key from its file or the environment.

        Raises:  ConfigError, also where everybody could reach it and there is no key.
        """
        parsed, key = Address.parse(address), read_key(key_file)
        check_exposure(parsed, key)
        return cls(parsed, key)


@dataclass(frozen=True)
class Door:
    """Where to listen: a Unix socket, or a loopback port that is written to a file; HTTP."""

    socket: Path | None = None
    listen_file: Path | None = None
    http: HttpDoorSettings | None = None

    def __post_init__(self) -> None:
        """Refuse none, and two of the same kind."""
        if self.socket and self.listen_file:
            raise ConfigError("give either --socket or --listen-file.")
        if not (self.socket or self.listen_file or self.http):
            raise ConfigError("give --socket, --listen-file or --http.")

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
    take_over_loop(loop)
    token = secrets.token_urlsafe(32) if door.listen_file else ""
    listeners: list[Callable[[Record], None]] = []

    def post(listener: Callable[[T], None], what: T) -> None:
        # The loop is closed when the process is on its way out.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(listener, what)

    def note(record: Record) -> None:
        for listener in listeners:
            listener(record)

    def publish(status: Status) -> None:
        post(server.publish, status)

    engine = Engine(settings, publish, lambda record: post(note, record))
    server = Server(engine, token=token)
    async with contextlib.AsyncExitStack() as open_things:
        if (provider := spans.provider()) is not None:
            listeners.append(spans.exporter(provider, engine.model))
            open_things.push_async_callback(asyncio.to_thread, provider.shutdown)
        http = _open_http(door.http, engine, listeners)
        listening = await _listen(server, door, token)
        own_files = {path: path.stat().st_ino for path in door.paths}
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Windows' loop has no signal handlers; there Ctrl+C ends the process.
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, stopping.set)
        engine.start()
        try:
            await _until_idle_or_stopped([server, *http], settings.idle_exit_s, stopping)
        finally:
            if listening is not None:
                listening.close()
            await asyncio.to_thread(engine.close)
            # The last answers were posted to this loop: let them be written before the end.
            await asyncio.sleep(0)
            server.close()
            for each in http:
                await each.close()
            _remove(own_files)


def _open_http(
    settings: HttpDoorSettings | None, engine: Engine, listeners: list[Callable[[Record], None]]
) -> list[HttpDoor]:
    """Return the HTTP door, if there is to be one; what it shows joins the listeners."""
    if settings is None:
        return []
    journal, metrics = Journal(), Metrics(lambda: engine.status, engine.watch)
    listeners += [journal.add, metrics.add]
    address = settings.address
    rules = Rules(address.host, settings.api_key)
    templates = list(registry.load().fim_templates.values())
    door = HttpDoor(app.build(engine, journal, metrics, rules, templates), bind(address))
    host = f"[{address.host}]" if ":" in address.host else address.host
    logger.info(
        "HTTP is answered at http://%s:%d, %s",
        host,
        door.port,
        "with the API key" if settings.api_key else "without a key",
    )
    return [door]


async def _listen(server: Server, door: Door, token: str) -> asyncio.Server | None:
    if door.socket is not None:
        _check_free(door.socket)
        old_mask = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(server.serve, door.socket)
        except OSError as error:
            raise ConfigError(f"cannot listen at {door.socket}: {error}.") from error
        finally:
            os.umask(old_mask)
    if door.listen_file is None:
        return None
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
    doors: Sequence[Server | HttpDoor], idle_exit_s: float, stopping: asyncio.Event
) -> None:
    while not stopping.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), IDLE_CHECK_S)
        if idle_exit_s and min(door.idle_s for door in doors) > idle_exit_s:
            logger.info("nobody has been connected for %.0f s; exit", idle_exit_s)
            return


def _remove(own_files: dict[Path, int]) -> None:
    """Remove the files that this process made; a successor may have put its own in their place."""
    for path, inode in own_files.items():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == inode:
                path.unlink()
