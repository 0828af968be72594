"""The one mutable object of the server: settings, documents, and the ways out.

Features read and change it on the event loop; nothing else holds state between messages.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from lsp_server.debounce import KeystrokePace
from lsp_server.documents import Document
from lsp_server.engine_link import EngineLink, LinkListener, Timing
from lsp_server.positions import Encoding
from lsp_server.settings import EngineSettings, Settings
from lsp_server.trace_log import TraceLog, default_path
from lsp_server.typing_session import TypingSession
from lsp_server.upstream import UpstreamOpener
from specengine.client import Client, EngineClient, UnixAddress
from specengine.launch import EngineCommand, Launcher, program_version
from specengine.protocol import CancelCause

logger = logging.getLogger(__name__)

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class EngineNote:
    """What an editor is told of the engine, with ``specengine/status``, on every change."""

    state: Literal["starting", "loading", "ready", "failed", "unavailable"]
    """``unavailable``: nobody tries any more; a request or another setting begins anew."""
    model: str
    drafter: str
    progress: float
    """Of loading, 0 to 1."""
    detail: str
    """One line for people."""


class Editor(Protocol):
    """What the server can tell the editor; nothing waits for an answer."""

    def show(self, text: str, level: Level) -> None:
        """Put a line in front of the user."""

    def log(self, text: str) -> None:
        """Add a line to the editor's log of this server."""

    def tell_status(self, note: EngineNote) -> None:
        """Say what the engine does, to an editor that shows it."""

    def begin_progress(self, title: str) -> None:
        """Show that something goes on; a second call changes nothing."""

    def report_progress(self, text: str, fraction: float) -> None:
        """Say how far it is."""

    def end_progress(self, text: str) -> None:
        """Take it away."""


@dataclass
class OpenDocument:
    """A document and what goes on in it."""

    document: Document
    session: TypingSession
    pace: KeystrokePace = field(default_factory=KeystrokePace)


@dataclass
class State:
    """Everything that outlives a message."""

    editor: Editor
    listener: LinkListener
    clock: Callable[[], float] = time.monotonic
    settings: Settings = field(default_factory=Settings)
    initial_settings: Settings = field(default_factory=Settings)
    """What the editor said at the start; later changes are read on top of it."""
    problems: list[str] = field(default_factory=list[str])
    """Mistakes in the settings, to be shown when the editor is ready."""
    encoding: Encoding = "utf-16"
    documents: dict[str, OpenDocument] = field(default_factory=dict[str, OpenDocument])
    link: EngineLink | None = None
    trace: TraceLog = field(default_factory=lambda: TraceLog(None, 0))
    _request_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _shown: set[str] = field(default_factory=set[str])
    _closing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def now_ms(self) -> float:
        """Return the time in milliseconds; only differences mean something."""
        return self.clock() * 1000

    def next_request(self) -> int:
        """Return the number of a new request."""
        return next(self._request_numbers)

    def show_once(self, key: str, text: str, level: Level) -> None:
        """Show a message unless one of this cause was shown before; log it in any case."""
        self.editor.log(text)
        if key not in self._shown:
            self._shown.add(key)
            self.editor.show(f"SpecEngine: {text}", level)

    def open(self, document: Document) -> None:
        """Take a document in; an editor may open one again without closing it."""
        self.close(document.uri)
        call_later = asyncio.get_running_loop().call_later
        self.documents[document.uri] = OpenDocument(document, TypingSession(call_later))

    def close(self, uri: str) -> None:
        """Forget a document, and end what goes on in it."""
        if (opened := self.documents.pop(uri, None)) is not None:
            opened.session.close()

    def start_link(self) -> None:
        """Connect to the engine that the settings name, in the place of any other."""
        if self.link is not None:
            self._close_later(self.link)
        timing = Timing(self.clock, asyncio.sleep)
        self.link = EngineLink(client_opener(self.settings), self.listener, timing)
        self.link.start()

    def start_trace(self) -> None:
        """Write records where the settings say."""
        trace = self.settings.trace
        path = self._trace_path(trace.path) if trace.enabled else None
        on_line = self.editor.log if trace.enabled else None
        self.trace = TraceLog(path, trace.max_bytes, on_line)

    async def shut_down(self) -> None:
        """End all runs and the connection; the engine stays."""
        for opened in self.documents.values():
            opened.session.drop_ahead()
            opened.session.drop_run(CancelCause.DISCONNECT)
        if self.link is not None:
            await self.link.close()

    def _trace_path(self, text: str) -> Path | None:
        try:
            return Path(text).expanduser() if text else default_path()
        except (RuntimeError, ValueError) as error:  # the home folder of nobody
            problem = f"setting trace.path cannot be {text!r}, so the trace file is off: {error}"
            self.show_once(problem, problem, "warning")
            return None

    def _close_later(self, link: EngineLink) -> None:
        task = asyncio.get_running_loop().create_task(link.close(), name="close-link")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _EngineOpener(Protocol):
    async def __call__(self) -> EngineClient: ...


class _Opener(Protocol):
    async def __call__(self) -> Client: ...


def client_opener(settings: Settings) -> _Opener:
    """Return how to connect to whoever answers, as the settings say."""
    if settings.engine.backend == "upstream":
        return UpstreamOpener(settings.upstream, engine_opener(settings.engine)).open
    return engine_opener(settings.engine)


def engine_opener(engine: EngineSettings) -> _EngineOpener:
    """Return how to connect to the engine that the settings name."""
    program = f"specengine-lsp {program_version()} pid {os.getpid()}"
    if engine.socket:
        address = UnixAddress(engine.socket)

        async def connect() -> EngineClient:
            return await EngineClient.connect(address, program=program)

        return connect
    command = EngineCommand(engine.model, engine.drafter, engine.arguments, engine.idle_exit_s)
    return Launcher(command, program, engine.start_timeout_s).open
