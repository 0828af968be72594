"""The HTTP door: where it listens, with which key, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from specengine.errors import ConfigError
from specengine.http import connection
from specengine.http.guard import is_loopback
from specengine.http.problems import MAX_HEAD_BYTES

logger = logging.getLogger(__name__)

KEY_VARIABLE: Final = "SPECENGINE_API_KEY"

MIN_KEY_CHARS: Final = 16
"""A shorter one could be guessed."""

BACKLOG: Final = 128
"""Connections that the system may hold until they are accepted."""

SHUTDOWN_S: Final = 2
"""Answers that are not taken by then are broken off."""


@dataclass(frozen=True)
class Address:
    """Where to listen, checked."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT``, ``[IPv6]:PORT`` or ``:PORT``, which is on loopback.

        Raises:  ConfigError.
        """
        no_address = ConfigError(
            f"--http {text!r} is no address.", hint="Write HOST:PORT, such as 127.0.0.1:8012."
        )
        try:
            parts = urlsplit(f"//{text}")
            host, port = parts.hostname or "127.0.0.1", parts.port
        except ValueError:
            raise no_address from None
        if port is None or parts.netloc != text or "@" in text:
            raise no_address
        return cls(host, port)


def read_key(key_file: Path | None, environment: Mapping[str, str] | None = None) -> str:
    """Return the API key from a file, else from the environment, else nothing.

    Raises:  ConfigError when the file cannot be read, anybody may read it, or the key is short.
    """
    environment = os.environ if environment is None else environment
    where = KEY_VARIABLE if key_file is None else str(key_file)
    key = environment.get(KEY_VARIABLE, "") if key_file is None else _from_file(key_file)
    key = key.strip()
    if key_file is None and not key:
        return ""
    if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"the API key in {where} is not usable.",
            hint=f"Use at least {MIN_KEY_CHARS} printable ASCII characters, for example from "
            "openssl rand -hex 32.",
        )
    return key


def _from_file(file: Path) -> str:
    try:
        if os.name == "posix" and file.stat().st_mode & 0o077:
            raise ConfigError(f"others may read {file}.", hint=f"Run: chmod 600 {file}")
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the API key cannot be read from {file}: {error}.") from error


def check_exposure(address: Address, api_key: str) -> None:
    """Refuse to be reachable from other machines without a key.

    Raises:  ConfigError.
    """
    if not is_loopback(address.host) and not api_key:
        raise ConfigError(
            f"--http {address.host} can be reached from other machines, and there is no API key.",
            hint=f"Set {KEY_VARIABLE} or give --api-key-file; or listen on 127.0.0.1.",
        )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class HttpDoor:
    """A listening door; whoever opens it must close it."""

    def __init__(self, app: ASGIApp, listening: socket.socket) -> None:
        self._app = app
        self._listening = listening
        self._unused_since = time.monotonic()
        self._num_open = 0
        self._server = _Server(
            uvicorn.Config(
                self._counted,
                http=connection.Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_level="warning",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_keep_alive=int(connection.KEEP_ALIVE_S),
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )
        self._running = asyncio.create_task(self._server.serve([listening]))

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return int(self._listening.getsockname()[1])

    @property
    def idle_s(self) -> float:
        """Return how long nobody has asked anything, in seconds; 0 while somebody does."""
        return 0.0 if self._num_open else time.monotonic() - self._unused_since

    async def close(self) -> None:
        """Take no more connections, and end those that are open."""
        self._server.should_exit = True
        await self._running

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._num_open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_open -= 1
            self._unused_since = time.monotonic()


def bind(address: Address) -> socket.socket:
    """Return a socket at an address.

    Raises:  ConfigError when it is not ours or not free.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, proto=socket.IPPROTO_TCP)
        # Only sockets that name their protocol are set by asyncio to send at once; else each answer
        # waits 40 ms between head and body, for the peer's delayed acknowledgement.
        listening = socket.socket(found[0][0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise ConfigError(f"{address.host} cannot be listened at: {error}.") from error
    try:
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(found[0][4])
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen at {address.host}:{address.port}: {error}.") from error
    return listening
