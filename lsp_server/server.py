"""The table of features, and the edge to pygls: its protocol class, converter and messages.

pygls keeps documents of its own; ours replace them, because its copies are made from scratch on
each change.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, cast

from cattrs import Converter
from lsprotocol import types
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInternalError,
    JsonRpcInvalidParams,
    PyglsError,
)
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter, lsp_method

from lsp_server.features import (
    acceptance,
    configuration,
    document_sync,
    engine_status,
    menu,
    notebooks,
    other_files,
)
from lsp_server.features.inline_completion import inline_completion
from lsp_server.settings import SECTION
from lsp_server.state import EngineNote, Level, State
from specengine.launch import program_version
from specengine.trouble import log_trouble, take_over_loop

logger = logging.getLogger(__name__)

STATUS_METHOD: Final = "specengine/status"
ANSWER_LIMIT_S: Final = 2.0
"""An editor that does not tell its settings in this time gets the defaults."""

PROGRESS_TOKEN: Final = "specengine-loading"
_QUOTING: Final = {
    error.CODE: error.MESSAGE for error in (JsonRpcInternalError, JsonRpcInvalidParams)
}
"""Errors whose messages come from exceptions, and what is said in their place."""

_LEVELS: Final[Mapping[Level, types.MessageType]] = {
    "error": types.MessageType.Error,
    "warning": types.MessageType.Warning,
    "info": types.MessageType.Info,
}


class Protocol(LanguageServerProtocol):
    """pygls' protocol without its documents, and with an answer to malformed requests."""

    def structure_message(self, data: dict[str, Any]) -> Any:
        """Turn an object into a message; None for one that cannot be, which is answered here."""
        try:
            return super().structure_message(data)
        except JsonRpcException as error:
            logger.warning("malformed message %r refused", data.get("method"))
            if "id" in data and "method" in data:
                self._send_response(data["id"], error=error.to_response_error())
            return None

    def handle_message(self, message: Any) -> None:
        """Handle a message; None was malformed."""
        if message is not None:
            super().handle_message(message)

    def _send_response(
        self,
        msg_id: int | str,
        result: Any | None = None,
        error: types.ResponseError | None = None,
    ) -> None:
        """Send a response; editors log errors, so one that quotes an exception loses its words."""
        if error is not None and error.code in _QUOTING:
            error = types.ResponseError(error.code, _QUOTING[error.code])
        super()._send_response(msg_id, result, error)

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> Any:
        """Call our handler only."""
        self._own_handler(types.TEXT_DOCUMENT_DID_OPEN)(params)

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> Any:
        """Call our handler only."""
        self._own_handler(types.TEXT_DOCUMENT_DID_CHANGE)(params)

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> Any:
        """Call our handler only."""
        self._own_handler(types.TEXT_DOCUMENT_DID_CLOSE)(params)

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def lsp_notebook_document__did_open(self, params: types.DidOpenNotebookDocumentParams) -> Any:
        """Call our handler only."""
        self._own_handler(types.NOTEBOOK_DOCUMENT_DID_OPEN)(params)

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def lsp_notebook_document__did_change(
        self, params: types.DidChangeNotebookDocumentParams
    ) -> Any:
        """Call our handler only."""
        self._own_handler(types.NOTEBOOK_DOCUMENT_DID_CHANGE)(params)

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def lsp_notebook_document__did_close(self, params: types.DidCloseNotebookDocumentParams) -> Any:
        """Call our handler only."""
        self._own_handler(types.NOTEBOOK_DOCUMENT_DID_CLOSE)(params)

    def _own_handler(self, method: str) -> Callable[[object], object]:
        features = cast("dict[str, Callable[[object], object]]", self.fm.features)  # pyright: ignore[reportUnknownMemberType]
        return features[method]


class Server(LanguageServer):
    """The language server."""

    def __init__(self) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]  # untyped *args in pygls
            "specengine-lsp",
            program_version(),
            protocol_cls=Protocol,
            converter_factory=make_converter,
            notebook_document_sync=notebooks.OPTIONS,
        )
        reporter = engine_status.EngineReporter()
        self.state = State(ClientEditor(self), reporter)
        reporter.state = self.state

    def report_server_error(
        self, error: Exception, source: type[PyglsError] | type[JsonRpcException]
    ) -> None:
        """Log it; no message of the protocol is worth a pop-up."""
        # pygls hands over an error of its own in the place of the one that was raised.
        log_trouble(logger, source.__name__, sys.exception() or error)


class ClientEditor:
    """Sends messages to the editor; it never waits for an answer (pygls#621)."""

    def __init__(self, server: LanguageServer) -> None:
        self._server = server
        self._is_progressing = False

    def show(self, text: str, level: Level) -> None:
        """Put a line in front of the user."""
        self._server.window_show_message(types.ShowMessageParams(_LEVELS[level], text))

    def log(self, text: str) -> None:
        """Add a line to the editor's log of this server."""
        self._server.window_log_message(types.LogMessageParams(types.MessageType.Info, text))

    def tell_status(self, note: EngineNote) -> None:
        """Send our own notification; an editor that does not know it ignores it."""
        self._server.protocol.notify(STATUS_METHOD, asdict(note))

    def begin_progress(self, title: str) -> None:
        """Ask for a progress bar and fill it, if the editor has any."""
        window = self._server.client_capabilities.window
        if self._is_progressing or window is None or not window.work_done_progress:
            return
        self._is_progressing = True
        create = types.WorkDoneProgressCreateParams(PROGRESS_TOKEN)
        self._server.window_work_done_progress_create(create)
        self._send_progress(types.WorkDoneProgressBegin(title, percentage=0))

    def report_progress(self, text: str, fraction: float) -> None:
        """Say how far it is."""
        if self._is_progressing:
            percentage = min(100, max(0, round(fraction * 100)))
            self._send_progress(types.WorkDoneProgressReport(message=text, percentage=percentage))

    def end_progress(self, text: str) -> None:
        """Take the bar away."""
        if self._is_progressing:
            self._is_progressing = False
            self._send_progress(types.WorkDoneProgressEnd(message=text))

    def _send_progress(
        self,
        value: types.WorkDoneProgressBegin
        | types.WorkDoneProgressReport
        | types.WorkDoneProgressEnd,
    ) -> None:
        self._server.protocol.notify(types.PROGRESS, types.ProgressParams(PROGRESS_TOKEN, value))


def make_server() -> Server:
    """Return a server with all features; documents are handled in order, requests concurrently.

    A parameter that any type fits is ``Any`` here: pygls would pass itself for one of ``object``.
    """
    server = Server()
    state = server.state

    @server.feature(types.INITIALIZE)
    def _(params: types.InitializeParams) -> None:
        take_over_loop(asyncio.get_running_loop())
        encoding = server.workspace.position_encoding or "utf-16"
        configuration.initialize(state, params, str(getattr(encoding, "value", encoding)))
        if state.settings.completion.menu:
            _add_menu(server)

    @server.feature(types.INITIALIZED)
    def _(_params: types.InitializedParams) -> None:
        if state.is_configured or not _can_ask(server):
            configuration.initialized(state)
            return
        # This editor keeps its settings until it is asked; the engine is not started twice.
        asyncio.get_running_loop().call_later(ANSWER_LIMIT_S, configuration.initialized, state)
        _ask_configuration(server, state)

    @server.feature(types.SHUTDOWN)
    async def _(_params: None) -> None:
        await state.shut_down()

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def _(params: types.DidChangeConfigurationParams) -> None:
        if params.settings:
            configuration.did_change_configuration(state, params.settings)
        else:
            _ask_configuration(server, state)

    @server.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def _(params: types.DidChangeWorkspaceFoldersParams) -> None:
        configuration.did_change_folders(state, params)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def _(params: types.DidOpenTextDocumentParams) -> None:
        document_sync.did_open(state, params)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def _(params: types.DidChangeTextDocumentParams) -> None:
        document_sync.did_change(state, params)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def _(params: types.DidCloseTextDocumentParams) -> None:
        document_sync.did_close(state, params)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def _(params: types.DidOpenNotebookDocumentParams) -> None:
        notebooks.did_open(state, params)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def _(params: types.DidChangeNotebookDocumentParams) -> None:
        notebooks.did_change(state, params)

    @server.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def _(params: types.DidCloseNotebookDocumentParams) -> None:
        notebooks.did_close(state, params)

    @server.feature(acceptance.DID_SHOW)
    def _(_params: Any) -> None:
        """Whatever is answered counts as shown already."""

    @server.feature(acceptance.DID_ACCEPT_PARTLY)
    def _(params: Any) -> None:
        acceptance.did_accept_partly(state, params)

    @server.feature(acceptance.DID_FOCUS)
    def _(params: Any) -> None:
        acceptance.did_focus(state, params)

    @server.feature(other_files.DID_COPY)
    def _(params: Any) -> None:
        other_files.did_copy(state, params)

    @server.command(acceptance.ACCEPT_COMMAND)
    def _(*arguments: Any) -> None:
        acceptance.did_accept(state, arguments)

    @server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())
    async def _(params: types.InlineCompletionParams) -> types.InlineCompletionList | None:
        return await inline_completion(state, params)

    return server


def make_converter() -> Converter:
    """Return pygls' converter, which also takes the trigger kinds of old clients.

    vscode-languageclient 9 sends 0 for an invoked request, and 1 for an automatic one.
    """
    converter = default_converter()
    kind = types.InlineCompletionTriggerKind

    def structure(value: object, _type: object) -> types.InlineCompletionTriggerKind:
        return kind.Invoked if value in (0, kind.Invoked) else kind.Automatic

    converter.register_structure_hook(kind, structure)
    return converter


def _add_menu(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_COMPLETION, menu.options())
    async def _(params: types.CompletionParams) -> types.CompletionList:
        return await menu.completion(server.state, params)


def _can_ask(server: Server) -> bool:
    workspace = server.client_capabilities.workspace
    return workspace is not None and bool(workspace.configuration)


def _ask_configuration(server: Server, state: State) -> None:
    """Ask an editor for its settings; the answer comes by itself."""
    if not _can_ask(server):
        return

    def take(values: object) -> None:
        sections = cast("Sequence[object]", values) if isinstance(values, list | tuple) else ()
        if sections:
            configuration.did_change_configuration(state, sections[0])
        configuration.initialized(state)

    item = types.ConfigurationItem(section=SECTION)
    callback = cast("Callable[[Any], None]", take)
    server.workspace_configuration(types.ConfigurationParams([item]), callback)
