"""Start an engine process, or join the one that already runs with the same arguments.

An address is derived from the arguments, so that editor windows with equal settings share one
engine. A file lock keeps two starts apart. It never imports torch and never ends an engine: that
exits by itself when it has been idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import msgspec
import platformdirs

from specengine.client import Address, EngineClient, TcpAddress, UnixAddress
from specengine.errors import ConfigError, EngineUnavailable
from specengine.protocol import PROTOCOL_VERSION

MAX_SOCKET_PATH_BYTES: Final = 100
"""Linux allows 107 bytes, macOS 103."""

POLL_S: Final = 0.05
"""Pause between two looks at a lock or a socket."""

MAX_LOG_BYTES: Final = 2**20
"""A longer log is renamed to ``*.1`` when an engine starts."""

NOBODY: Final = (FileNotFoundError, ConnectionRefusedError)
"""What the operating system says when no engine listens on a socket."""


@dataclass(frozen=True)
class EngineCommand:
    """The arguments of ``specengine serve`` that make one engine differ from another."""

    model: str = ""
    """Empty is the default of models.toml."""
    drafter: str = ""
    """Empty is the engine's own choice: engine.toml, else auto."""
    arguments: tuple[str, ...] = ()
    """Further ones, as they stand on a command line."""
    idle_exit_s: float = 1800.0
    use_tcp: bool = not hasattr(asyncio, "open_unix_connection")
    """Listen on a loopback port instead of a Unix socket."""
    program: tuple[str, ...] = (sys.executable, "-m", "specengine.cli")
    """What is started."""


class _Listening(msgspec.Struct, forbid_unknown_fields=True):
    """What an engine on TCP writes to its listen file."""

    host: str
    port: int
    token: str


@dataclass(frozen=True)
class Places:
    """The files of one engine."""

    folder: Path
    name: str

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / f"{self.name}.sock"

    @property
    def listen_file(self) -> Path:
        """Where it writes its port, on TCP."""
        return self.folder / f"{self.name}.json"

    @property
    def lock(self) -> Path:
        """Held by whoever starts it."""
        return self.folder / f"{self.name}.lock"

    @property
    def log(self) -> Path:
        """What it writes to stderr."""
        folder = platformdirs.user_log_path("specengine", appauthor=False)
        return folder / f"engine-{self.name}.log"


@dataclass
class Launcher:
    """Opens connections to the engine of one command; holds the process if it started it."""

    command: EngineCommand
    program: str
    """Name and version of the caller, for the engine's log."""
    timeout_s: float = 60.0
    """Until a started engine must accept connections; loading comes after that."""
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    async def open(self) -> EngineClient:
        """Return a connection to a running engine; start one if none answers.

        Raises:  EngineUnavailable when it cannot be started, dies, or does not listen in time;
            ConfigError when the runtime folder is not safe, or the model's path has no meaning.
        """
        places = places_of(self.command)
        if (client := await self._join(places)) is not None:
            return client
        deadline = self.clock() + self.timeout_s
        async with self._lock(places, deadline):
            # Whoever held the lock before may have started it.
            if (client := await self._join(places)) is not None:
                return client
            self._start(places)
            return await self._await_listening(places, deadline)

    async def _join(self, places: Places) -> EngineClient | None:
        """Return a connection, or None when nobody listens; a refused greeting is an error."""
        try:
            address = address_of(self.command, places)
            return await EngineClient.connect(address, program=self.program)
        except EngineUnavailable as error:
            # A port, unlike a socket in our folder, may belong to another program by now.
            if self.command.use_tcp or isinstance(error.__cause__, NOBODY):
                return None
            raise

    def _start(self, places: Places) -> None:
        try:
            places.socket.unlink(missing_ok=True)
            places.listen_file.unlink(missing_ok=True)
            with _open_log(places.log) as log:
                self.process = subprocess.Popen(
                    command_line(self.command, places),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    cwd=places.folder,
                )
        except (OSError, ValueError) as error:  # ValueError: a null character in an argument
            raise EngineUnavailable(f"the engine cannot be started: {error}.") from error

    async def _await_listening(self, places: Places, deadline: float) -> EngineClient:
        assert self.process is not None, "only called after a start"
        while True:
            if (client := await self._join(places)) is not None:
                return client
            if (code := self.process.poll()) is not None:
                raise EngineUnavailable(
                    f"the engine ended with code {code}: {_last_line(places.log)}",
                    hint=f"Its log is {places.log}.",
                )
            if self.clock() > deadline:
                raise EngineUnavailable(
                    f"the engine did not listen within {self.timeout_s:.0f} s.",
                    hint=f"Its log is {places.log}.",
                )
            await self.sleep(POLL_S)

    @contextlib.asynccontextmanager
    async def _lock(self, places: Places, deadline: float) -> AsyncGenerator[None]:
        with _open_lock(places.lock) as file:
            while not _try_lock(file):
                if self.clock() > deadline:
                    raise EngineUnavailable(
                        "another program has been starting the engine too long."
                    )
                await self.sleep(POLL_S)
            yield  # closing the file gives the lock back


def places_of(command: EngineCommand) -> Places:
    """Return the files of an engine with these arguments; makes their folder.

    Engines of another protocol version or environment have other files, and so never meet.
    """
    parts = (
        absolute_model(command.model),
        command.drafter,
        *command.arguments,
        "tcp" if command.use_tcp else "unix",
        str(PROTOCOL_VERSION),
        sys.prefix,
    )
    name = hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]
    places = Places(runtime_folder(), name)
    if not command.use_tcp and len(os.fsencode(places.socket)) > MAX_SOCKET_PATH_BYTES:
        return Places(_private_folder(_temporary_folder()), name)
    return places


def absolute_model(text: str) -> str:
    """Return a model as an engine with another working directory finds it; names stay names.

    Raises:  ConfigError when its home folder or the working directory is not there.
    """
    is_path = "/" in text or os.sep in text or text.startswith("~")
    if not is_path and not text.lower().endswith(".gguf"):
        return text
    try:
        return str(Path(text).expanduser().absolute())
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"the model {text!r} cannot be found: {error}.") from error


def address_of(command: EngineCommand, places: Places) -> Address:
    """Return where an engine of this command listens.

    Raises:  EngineUnavailable when an engine on TCP has not written its port.
    """
    if not command.use_tcp:
        return UnixAddress(str(places.socket))
    try:
        listening = msgspec.json.decode(places.listen_file.read_bytes(), type=_Listening)
    except (OSError, msgspec.DecodeError) as error:
        raise EngineUnavailable(f"no engine has written {places.listen_file}.") from error
    return TcpAddress(listening.host, listening.port, listening.token)


def command_line(command: EngineCommand, places: Places) -> list[str]:
    """Return the command line that starts the engine."""
    door = (
        ["--listen-file", str(places.listen_file)]
        if command.use_tcp
        else ["--socket", str(places.socket)]
    )
    model = ["--model", absolute_model(command.model)] if command.model else []
    drafter = ["--drafter", command.drafter] if command.drafter else []
    return [
        *command.program,
        "serve",
        *model,
        *drafter,
        *door,
        "--idle-exit",
        f"{command.idle_exit_s:g}",
        *command.arguments,
    ]


def runtime_folder() -> Path:
    """Return our folder for sockets and locks, which only this user can enter.

    Raises:  ConfigError when it cannot be made, belongs to somebody else or is open to others.
    """
    if os.name == "nt" or sys.platform == "darwin":
        return _private_folder(platformdirs.user_runtime_path("specengine", appauthor=False))
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return _private_folder(Path(base) / "specengine" if base else _temporary_folder())


def program_version() -> str:
    """Return the installed version of this package, for greetings."""
    try:
        return importlib.metadata.version("specengine")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _temporary_folder() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"specengine-{user}"


def _private_folder(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made: {error.strerror}.",
            hint="Set XDG_RUNTIME_DIR to a folder of your own.",
        ) from error
    if not hasattr(os, "getuid"):
        return folder  # Windows: the folder is in the user's profile
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(
            f"{folder} is not a folder of this user.",
            hint="Remove it, or set XDG_RUNTIME_DIR to a folder of your own.",
        )
    if found.st_mode & 0o077:
        raise ConfigError(f"{folder} is open to other users.", hint=f"Run: chmod 700 {folder}")
    return folder


def _open_lock(path: Path) -> IO[bytes]:
    try:
        return path.open("ab")
    except OSError as error:
        raise EngineUnavailable(f"the start of an engine cannot be locked: {error}.") from error


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _open_log(path: Path) -> Generator[IO[bytes]]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "ab") as log:
        yield log


def _last_line(path: Path) -> str:
    """Return the last line of a log that says something."""
    try:
        lines = path.read_bytes()[-4096:].decode(errors="replace").splitlines()
    except OSError:
        return "it wrote no log"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
