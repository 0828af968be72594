# pyright: standard
# pygls' client has no types that strict checking could use.
"""An editor without a window: one document, one cursor, and the real language server behind it.

It says what real editors say, over stdio. It knows no screen and measures nothing but the time
between a request and its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from lsprotocol import types
from pygls.lsp.client import LanguageClient

from specengine.errors import EngineUnavailable
from specengine.launch import program_version

SERVER: Final = (sys.executable, "-m", "lsp_server.cli")
"""What is started."""

MAX_MESSAGE_BYTES: Final = 2**24

SHUTDOWN_S: Final = 5.0

OnProgress = Callable[[float, str], None]


@dataclass(frozen=True)
class Ghost:
    """What an editor would show."""

    text: str
    """Behind the cursor; empty when there is no suggestion."""
    ms: float
    """From sending the request to its answer."""
    request: int
    """Its number in the server's trace."""
    num_covered: int = 0
    """Characters behind the cursor that it replaces."""


class Editor:
    """One open document in a session with the language server."""

    def __init__(self, client: LanguageClient, on_progress: OnProgress) -> None:
        self.text = ""
        self.cursor = 0
        """In code points of ``text``."""
        self._client = client
        self._uri = ""
        self._version = 0
        self._num_requests = 0
        self._traces: asyncio.Queue[str] = asyncio.Queue()
        self._is_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        @client.feature(types.WINDOW_LOG_MESSAGE)
        def _(params: types.LogMessageParams) -> None:
            self._take_log(params.message)

        @client.feature(types.WINDOW_SHOW_MESSAGE)
        def _(params: types.ShowMessageParams) -> None:
            if params.type is types.MessageType.Error:
                self._fail(params.message)

        @client.feature(types.WINDOW_WORK_DONE_PROGRESS_CREATE)
        def _(params: types.WorkDoneProgressCreateParams) -> None:
            return None

        @client.feature("specengine/status")
        def _(params: Any) -> None:
            """The progress and the log say the same."""

        @client.feature(types.PROGRESS)
        def _(params: types.ProgressParams) -> None:
            value = cast("Mapping[str, object]", params.value)
            percentage = value.get("percentage")
            if isinstance(percentage, int):
                on_progress(percentage / 100, str(value.get("message") or value.get("title")))

    async def wait_ready(self) -> None:
        """Return when the engine has loaded its model.

        Raises:  EngineUnavailable when it cannot.
        """
        await self._is_ready

    def open(self, name: str, text: str, cursor: int) -> None:
        """Open another document, in Python."""
        self._uri, self.text, self.cursor = f"untitled:{name}", text, cursor
        item = types.TextDocumentItem(self._uri, "python", self._version, text)
        self._client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def close(self) -> None:
        """Close the document."""
        document = types.TextDocumentIdentifier(self._uri)
        self._client.text_document_did_close(types.DidCloseTextDocumentParams(document))

    def type(self, text: str) -> None:
        """Insert text at the cursor, as one change."""
        self._change(self.cursor, text)

    def type_pair(self, opener: str, closer: str) -> None:
        """Insert an opener with what closes it, and leave the cursor between, as editors do."""
        self._change(self.cursor, opener + closer)
        self.cursor -= len(closer)

    def type_over(self, text: str) -> None:
        """Replace what stands behind the cursor by the same, as who types a closed bracket does."""
        start, self.cursor = self.cursor, self.cursor + len(text)
        self._change(start, text)

    def accept(self, ghost: Ghost) -> None:
        """Take a suggestion over, as one change."""
        start, self.cursor = self.cursor, self.cursor + ghost.num_covered
        self._change(start, ghost.text)

    def delete(self, num_chars: int) -> None:
        """Delete text before the cursor, as one change."""
        self._change(self.cursor - num_chars, "")

    async def suggest(self) -> Ghost:
        """Ask for a suggestion at the cursor, as editors do after a key."""
        params = types.InlineCompletionParams(
            types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic),
            types.TextDocumentIdentifier(self._uri),
            self._position(self.cursor),
        )
        self._num_requests += 1
        request, started = self._num_requests, time.perf_counter()
        answer = await self._client.text_document_inline_completion_async(params)
        ms = (time.perf_counter() - started) * 1000
        items = answer.items if isinstance(answer, types.InlineCompletionList) else answer or []
        if not items:
            return Ghost("", ms, request)
        shown, item_range = self._behind_cursor(items[0]), items[0].range
        end = item_range.end.character if item_range is not None else params.position.character
        return Ghost(shown, ms, request, end - params.position.character)

    async def next_trace(self) -> str:
        """Return the log line of the next request that has not been returned yet."""
        return await self._traces.get()

    def _behind_cursor(self, item: types.InlineCompletionItem) -> str:
        text = item.insert_text
        shown = text if isinstance(text, str) else text.value
        start = item.range.start.character if item.range is not None else None
        column = self._position(self.cursor).character
        return shown[column - (column if start is None else start) :]

    def _change(self, start: int, text: str) -> None:
        self._version += 1
        where = types.Range(self._position(start), self._position(self.cursor))
        change = types.TextDocumentContentChangePartial(where, text)
        document = types.VersionedTextDocumentIdentifier(self._version, self._uri)
        self._client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))
        self.text = self.text[:start] + text + self.text[self.cursor :]
        self.cursor = start + len(text)

    def _position(self, at: int) -> types.Position:
        before = self.text[:at]
        return types.Position(before.count("\n"), at - (before.rfind("\n") + 1))

    def _take_log(self, line: str) -> None:
        if line.startswith("#"):
            self._traces.put_nowait(line)
        elif line.startswith("engine ready") and not self._is_ready.done():
            self._is_ready.set_result(None)

    def _fail(self, what: str) -> None:
        if not self._is_ready.done():
            self._is_ready.set_exception(EngineUnavailable(what))


@contextlib.asynccontextmanager
async def start_editor(
    settings: Mapping[str, object], on_progress: OnProgress
) -> AsyncGenerator[Editor]:
    """Start the language server and greet it; end it with the context.

    ``settings`` are those that an editor would send at ``initialize``.

    Raises:  EngineUnavailable when the server ends at once.
    """
    client = LanguageClient("specengine-editor", program_version())
    editor = Editor(client, on_progress)
    await client.start_io(*SERVER, env=dict(os.environ), limit=MAX_MESSAGE_BYTES)
    try:
        await _greet(client, settings)
        client.initialized(types.InitializedParams())
        yield editor
    finally:
        # A server that has died answers nothing; what it died of is told already.
        with contextlib.suppress(TimeoutError, RuntimeError, OSError):
            async with asyncio.timeout(SHUTDOWN_S):
                await client.shutdown_async(None)
            client.exit(None)
        await _end(client)


async def _end(client: LanguageClient) -> None:
    process = client._server
    try:
        async with asyncio.timeout(SHUTDOWN_S):
            await client.stop()
    except TimeoutError:
        if process is not None and process.returncode is None:
            process.kill()


async def _greet(client: LanguageClient, settings: Mapping[str, object]) -> None:
    try:
        await client.initialize_async(_greeting(settings))
    except (RuntimeError, OSError) as error:
        raise EngineUnavailable(f"the language server has gone: {error}.") from error


def _greeting(settings: Mapping[str, object]) -> types.InitializeParams:
    capabilities = types.ClientCapabilities(
        window=types.WindowClientCapabilities(work_done_progress=True),
        general=types.GeneralClientCapabilities(
            position_encodings=[types.PositionEncodingKind.Utf32]
        ),
        text_document=types.TextDocumentClientCapabilities(
            inline_completion=types.InlineCompletionClientCapabilities()
        ),
    )
    return types.InitializeParams(
        capabilities, process_id=os.getpid(), initialization_options=dict(settings)
    )
