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
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from lsp_server.acceptance import Acceptance, Fate
from lsp_server.context.edits import EditLog
from lsp_server.context.other_files import Copied, OtherFiles
from lsp_server.debounce import KeystrokePace
from lsp_server.documents import Document
from lsp_server.engine_link import EngineLink, LinkListener, Timing
from lsp_server.notebooks import Notebook
from lsp_server.positions import Encoding
from lsp_server.privacy import FileRules
from lsp_server.settings import EngineSettings, Settings
from lsp_server.syntax import KeptTree, grammar_of
from lsp_server.trace_log import TraceEvent, TraceLog, default_path
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
    acceptance: Acceptance
    pace: KeystrokePace = field(default_factory=KeystrokePace)
    edits: EditLog = field(default_factory=EditLog)
    tree: KeptTree | None = None
    """None for a language without a grammar."""
    last_used: int = 0
    """Tick of the last edit or request; a later one has a higher."""


@dataclass
class State:
    """Everything that outlives a message."""

    editor: Editor
    listener: LinkListener
    clock: Callable[[], float] = time.monotonic
    settings: Settings = field(default_factory=Settings)
    initial_settings: Settings = field(default_factory=Settings)
    """What the editor said at the start; later changes are read on top of it."""
    is_configured: bool = False
    """The editor has sent settings when it started."""
    is_begun: bool = False
    """Trace and link have been started for the first time."""
    problems: list[str] = field(default_factory=list[str])
    """Mistakes in the settings, to be shown when the editor is ready."""
    encoding: Encoding = "utf-16"
    documents: dict[str, OpenDocument] = field(default_factory=dict[str, OpenDocument])
    notebooks: dict[str, Notebook] = field(default_factory=dict[str, Notebook])
    link: EngineLink | None = None
    trace: TraceLog = field(default_factory=lambda: TraceLog(None, 0))
    folders: list[Path] = field(default_factory=list[Path])
    """Of the workspace."""
    rules: FileRules = field(default_factory=FileRules)
    other_files: OtherFiles = field(default_factory=OtherFiles)
    copied: Copied | None = None
    """The last thing that the user has copied, if the editor tells."""
    _ticks: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _request_numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _shown: set[str] = field(default_factory=set[str])
    _ignored: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _closing: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def now_ms(self) -> float:
        """Return the time in milliseconds; only differences mean something."""
        return self.clock() * 1000

    def next_request(self) -> int:
        """Return the number of a new request."""
        return next(self._request_numbers)

    def next_tick(self) -> int:
        """Return a number that is higher than all before."""
        return next(self._ticks)

    def set_rules(self) -> None:
        """Read files by the rules of the settings, in the folders of the workspace."""
        self.rules = FileRules(
            self.settings.completion.ignored_files,
            self.folders,
            uses_gitignore=self.settings.privacy.use_gitignore,
            clock=self.clock,
        )

    def is_ignored(self, document: Document) -> bool:
        """Whether a rule forbids to read a document; the log says once which."""
        reason = self.rules.why_ignored(document.path) if document.path is not None else ""
        if reason and (document.uri, reason) not in self._ignored:
            self._ignored.add((document.uri, reason))
            self.editor.log(f"{document.name} is not read, because of {reason}")
        return bool(reason)

    def relative_path(self, path: Path) -> str:
        """Return a path as the model sees it: from the workspace on, or the name alone."""
        holders = [folder for folder in self.rules.folders if path.is_relative_to(folder)]
        return path.relative_to(holders[0]).as_posix() if holders else path.name

    def show_once(self, key: str, text: str, level: Level) -> None:
        """Show a message unless one of this cause was shown before; log it in any case."""
        self.editor.log(text)
        if key not in self._shown:
            self._shown.add(key)
            self.editor.show(f"SpecEngine: {text}", level)

    def open(self, document: Document) -> None:
        """Take a document in; an editor may open one again without closing it."""
        self.close(document.uri)
        self.documents[document.uri] = self._opened(document, lambda: document.text)

    def open_cells(self, notebook: Notebook) -> None:
        """Take the cells of a notebook in; those of one language have one session."""
        for cell in notebook.cells:
            self.close(cell.uri)
        shared: dict[str, OpenDocument] = {}
        for cell in notebook.cells:
            read = partial(notebook.text, cell.language)
            opened = shared.setdefault(cell.language, self._opened(cell, read))
            self.documents[cell.uri] = replace(opened, document=cell)

    def close(self, uri: str) -> None:
        """Forget a document, and end what goes on in it."""
        if (opened := self.documents.pop(uri, None)) is not None:
            opened.session.close()
            opened.acceptance.close()
            self.other_files.forget(uri)

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
        self.trace = TraceLog(path, trace.max_bytes, on_line, session=self.trace.session)

    def _opened(self, document: Document, read_text: Callable[[], str]) -> OpenDocument:
        call_later = asyncio.get_running_loop().call_later
        note = partial(self.write_fate, document.language)
        grammar = grammar_of(document.language)
        return OpenDocument(
            document,
            TypingSession(call_later),
            Acceptance(note, read_text, call_later, self.clock),
            last_used=self.next_tick(),
            tree=KeptTree(grammar) if grammar is not None else None,
        )

    def write_fate(self, language: str, fate: Fate) -> None:
        """Write what became of a suggestion."""
        client = self.link.client if self.link is not None else None
        status = client.status if client is not None else None
        model, drafter = (status.model, status.drafter) if status is not None else ("", "")
        event = TraceEvent(
            self.trace.session,
            fate.request,
            time.time(),
            fate.event,
            language,
            model,
            drafter,
            fate.chars,
            fate.num,
            fate.after_s,
        )
        self.trace.write_event(event)

    async def shut_down(self) -> None:
        """End all runs and the connection; the engine stays."""
        for opened in self.documents.values():
            opened.acceptance.close()
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
