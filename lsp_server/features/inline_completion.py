"""``textDocument/inlineCompletion``: from a cursor to at most one suggestion.

A request is answered exactly once: with a list, or with null when a newer one or an edit has
taken its place. Each writes one trace record, whatever becomes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import logging
import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from lsprotocol import types

from lsp_server.block import Scope, find_site
from lsp_server.documents import Document, Snapshot
from lsp_server.place import Place
from lsp_server.postprocess import num_covered, postprocess, to_lf, with_line_ends
from lsp_server.prompt import Budget, Prompt, build_prompt
from lsp_server.quoting import SCAN_CHARS, window_above
from lsp_server.state import OpenDocument, State
from lsp_server.syntax import grammar_of
from lsp_server.trace_log import Outcome, TraceRecord
from lsp_server.typing_session import Run, RunPlan, Ticket
from specengine.client import EngineClient
from specengine.errors import EngineUnavailable, SpecEngineError
from specengine.protocol import Complete, Done, SamplingOptions

logger = logging.getLogger(__name__)

READ_ONLY_SCHEMES: Final = frozenset(("git", "output", "debug", "vscode-scm", "review", "gitlens"))
PROSE_LANGUAGES: Final = frozenset(("markdown", "plaintext", "latex", "restructuredtext", ""))

NUM_NEXT_LINES: Final = 8
"""Lines below the cursor's that the rules look at."""

_NEXT_CHARS: Final = 2000
_REST_CHARS: Final = 500
_SITE_CHARS: Final = 4000


async def inline_completion(
    state: State, params: types.InlineCompletionParams
) -> types.InlineCompletionList | None:
    """Return a list with one suggestion or none, or None when the request is superseded."""
    started_ms = state.now_ms()
    record = TraceRecord(state.next_request(), time.time())
    is_invoked = params.context.trigger_kind == types.InlineCompletionTriggerKind.Invoked
    record.trigger = "invoked" if is_invoked else "automatic"
    request = _Request(state, params, record)
    try:
        return await request.answer()
    except asyncio.CancelledError:
        _conclude(record, Outcome.CANCELLED, "client")
        raise
    except SpecEngineError as error:
        _conclude(record, Outcome.ERROR, error.code)
        if not isinstance(error, EngineUnavailable):  # the link tells that, once for all requests
            state.show_once(error.code, str(error), "warning")
    except Exception:
        _conclude(record, Outcome.ERROR, "internal")
        logger.exception("request %d failed", record.request)
    finally:
        record.ms.total = state.now_ms() - started_ms
        request.write_record()
    return _items()


@dataclass
class _View:
    """What a request sees; taken once, before the first wait."""

    opened: OpenDocument
    snapshot: Snapshot
    forced: str
    """What the editor's popup has selected, behind the cursor: the suggestion goes on from it."""
    start: int
    """Where the item's range begins."""
    prompt: Prompt
    place: Place


class _Request:
    """One request on its way."""

    def __init__(
        self, state: State, params: types.InlineCompletionParams, record: TraceRecord
    ) -> None:
        self.state = state
        self.params = params
        self.record = record
        self.run: Run | None = None

    async def answer(self) -> types.InlineCompletionList | None:
        opened = self.state.documents.get(self.params.text_document.uri)
        if opened is None:
            return self._empty("unknown_document")
        self.record.language = opened.document.language
        self.record.document_version = opened.document.version
        ticket = opened.session.begin()
        is_cancelled = False
        try:
            return await self._answer_in(opened, ticket)
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        finally:
            opened.session.end(ticket, is_cancelled=is_cancelled)

    def write_record(self) -> None:
        """Write the record, with the engine's numbers as soon as they are there."""
        record, run = self.record, self.run
        if run is None:
            self.state.trace.write(record)
            return

        def write(finished: asyncio.Future[Done | None]) -> None:
            done = finished.result()
            if done is not None and run.owner == record.request:
                record.take_engine_part(done)
            self.state.trace.write(record)

        # The answer leaves when the text is final; the engine's last frame may come a pass later.
        run.finished.add_done_callback(write)

    async def _answer_in(
        self, opened: OpenDocument, ticket: Ticket
    ) -> types.InlineCompletionList | None:
        snapshot = opened.document.snapshot(self.params.position)
        if reason := exit_before(self.state, opened.document, snapshot):
            return self._empty(reason)
        with self._phase("context"):
            view = self._view(opened, snapshot)
        run = opened.session.adopt(snapshot.cursor, view.forced)
        cached = opened.session.find_cached(view.prompt) if run is None else None
        if cached is not None and cached.startswith(view.forced):
            return self._finish(view, cached, Outcome.CACHED, "cached")
        if run is not None:
            self._own(run)
            if not await self._wait_for_text(run, ticket):
                return self._superseded(ticket)
            if not run.settled.done():
                return self._finish(view, run.whole_lines, Outcome.ADOPTED, "whole_lines")
            if run.error is None and not run.is_refuted:
                return self._finish(view, run.remaining, Outcome.ADOPTED, "adopted")
        return await self._ask(view, ticket)

    async def _ask(self, view: _View, ticket: Ticket) -> types.InlineCompletionList | None:
        """Put the question to the engine."""
        with self._phase("debounce"):
            if not await ticket.pause(self._delay_s(view.opened)):
                return self._superseded(ticket)
        with self._phase("queue"):
            client = await self._client(ticket)
        if ticket.superseded.done():
            return self._superseded(ticket)
        if client is None:
            return self._empty("engine_unavailable")
        run = self._start(view, client)
        self._own(run)
        if not await self._wait_for_text(run, ticket):
            return self._superseded(ticket)
        if not run.settled.done():
            # The run goes on; it answers whoever accepts these lines or types along.
            return self._finish(view, run.whole_lines, Outcome.SHOWN, "whole_lines")
        if run.error is not None:
            raise run.error
        if run.is_refuted:
            self._conclude(Outcome.SUPERSEDED, "engine_cancelled")
            return None
        done = run.finished.result() if run.finished.done() else None
        return self._finish(
            view, run.remaining, Outcome.SHOWN, done.stop_reason if done is not None else "stopped"
        )

    async def _wait_for_text(self, run: Run, ticket: Ticket) -> bool:
        """Wait for the whole text, or after some time for a line; return whether it is wanted."""
        patience_ms = self.state.settings.completion.patience_ms
        if self.record.trigger == "invoked" or patience_ms <= 0:
            return await ticket.wait(run.settled)
        if await ticket.wait(run.settled, patience_ms / 1000):
            return True
        return await ticket.wait(run.has_line)

    def _start(self, view: _View, client: EngineClient) -> Run:
        completion = self.state.settings.completion
        grammar = grammar_of(view.snapshot.language)
        snapshot = view.snapshot
        before = to_lf(snapshot.text[max(0, snapshot.cursor - _SITE_CHARS) : snapshot.cursor])
        site = find_site(before + view.forced, view.place.rest, grammar)
        self.record.scope = site.scope
        is_line = site.scope is Scope.LINE
        message = Complete(
            request=client.next_request(),
            # Windows share an engine: one may not supersede the other's request.
            document=f"{os.getpid()}:{snapshot.uri}",
            prefix=view.prompt.prefix + view.forced,
            suffix=view.prompt.suffix,
            max_tokens=completion.line_max_tokens if is_line else completion.max_tokens,
            sampling=SamplingOptions(temperature=completion.temperature, seed=completion.seed),
        )
        plan = RunPlan(view.prompt, snapshot.cursor, view.forced, site, view.place)
        return view.opened.session.start(client, message, plan)

    async def _client(self, ticket: Ticket) -> EngineClient | None:
        """Return the connection; wait for the attempt that is under way, if there is one."""
        link = self.state.link
        if link is None:
            return None
        if self.record.trigger == "invoked":
            link.retry()
        if link.client is None and (attempt := link.attempt) is not None:
            await ticket.wait(attempt, self.state.settings.engine.wait_ms / 1000)
        return link.client

    def _view(self, opened: OpenDocument, snapshot: Snapshot) -> _View:
        start, forced = _selection(opened.document, snapshot, self.params.context)
        prompt, opened.session.anchor = build_prompt(
            snapshot, grammar_of(snapshot.language), self._budget(), opened.session.anchor
        )
        return _View(opened, snapshot, forced, start, prompt, place_of(snapshot))

    def _budget(self) -> Budget:
        context = self.state.settings.context
        num_tokens = context.max_prompt_tokens
        client = self.state.link.client if self.state.link is not None else None
        if client is not None and client.status is not None and client.status.prompt_tokens > 0:
            num_tokens = min(num_tokens, client.status.prompt_tokens)
        return Budget.of_tokens(num_tokens, context.suffix_share)

    def _delay_s(self, opened: OpenDocument) -> float:
        if self.record.trigger == "invoked":
            return 0.0
        max_ms = self.state.settings.completion.max_debounce_ms
        return opened.pace.delay_ms(self.state.now_ms(), max_ms) / 1000

    def _finish(
        self, view: _View, text: str, outcome: Outcome, reason: str
    ) -> types.InlineCompletionList:
        with self._phase("postprocess"):
            processed = postprocess(text, view.place)
            if not processed.text:
                return self._empty(processed.emptied_by if text else "nothing_written")
            item = _item(view, processed.text)
        self._conclude(outcome, reason)
        return _items(item)

    def _own(self, run: Run) -> None:
        self.run = run
        run.owner = self.record.request

    def _empty(self, reason: str) -> types.InlineCompletionList:
        self._conclude(Outcome.EMPTY, reason)
        return _items()

    def _superseded(self, ticket: Ticket) -> None:
        self._conclude(Outcome.SUPERSEDED, ticket.superseded.result())

    def _conclude(self, outcome: Outcome, reason: str) -> None:
        _conclude(self.record, outcome, reason)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Generator[None]:
        started_ms = self.state.now_ms()
        try:
            yield
        finally:
            spent_ms = self.state.now_ms() - started_ms
            setattr(self.record.ms, name, getattr(self.record.ms, name) + spent_ms)


def exit_before(state: State, document: Document, snapshot: Snapshot) -> str:
    """Return why a suggestion cannot help here, or an empty string."""
    completion = state.settings.completion
    if not completion.enabled:
        return "disabled"
    if document.is_oversized:
        return "file_too_large"
    if document.uri.partition(":")[0] in READ_ONLY_SCHEMES:
        return "read_only"
    if any(fnmatch.fnmatch(document.name, pattern) for pattern in completion.ignored_files):
        return "ignored_file"
    if _is_word(snapshot.before[-1:]) and _is_word(snapshot.rest[:1]):
        return "inside_word"
    if not snapshot.text or snapshot.text.isspace():
        return "empty_document"
    return ""


def place_of(snapshot: Snapshot) -> Place:
    """Return what the rules on the text must know of a cursor."""
    below = to_lf(snapshot.text[snapshot.line_end : snapshot.line_end + _NEXT_CHARS])
    next_lines = [line for line in below.split("\n")[1:] if line.strip()][:NUM_NEXT_LINES]
    is_prose = snapshot.language in PROSE_LANGUAGES
    grammar = grammar_of(snapshot.language)
    above_start = max(0, snapshot.line_start - 2 * SCAN_CHARS)  # twice: CR LF becomes one
    above = to_lf(snapshot.text[above_start : snapshot.line_start])[-SCAN_CHARS:]
    return Place(
        snapshot.before,
        snapshot.rest[:_REST_CHARS],
        tuple(next_lines),
        is_prose,
        window_above(above, grammar),
        grammar,
    )


def _selection(
    document: Document, snapshot: Snapshot, context: types.InlineCompletionContext
) -> tuple[int, str]:
    """Return where the popup's selected text begins, and what of it is not typed yet.

    Something else than a word before the cursor that the selected one completes is ignored:
    Neovim 0.12 sends the visual selection here.
    """
    info = context.selected_completion_info
    if info is None or "\n" in info.text:
        return snapshot.cursor, ""
    start, end = document.offset(info.range.start), document.offset(info.range.end)
    typed = snapshot.text[start:end]
    is_before_cursor = end == snapshot.cursor and start >= snapshot.line_start
    if not is_before_cursor or not info.text.startswith(typed):
        return snapshot.cursor, ""
    return start, info.text[len(typed) :]


def _item(view: _View, text: str) -> types.InlineCompletionItem:
    snapshot, document = view.snapshot, view.opened.document
    end = snapshot.cursor + num_covered(text, snapshot.rest)
    typed = snapshot.text[view.start : snapshot.cursor]
    item_range = types.Range(document.position(view.start), document.position(end))
    return types.InlineCompletionItem(typed + with_line_ends(text, snapshot.eol), range=item_range)


def _items(*items: types.InlineCompletionItem) -> types.InlineCompletionList:
    return types.InlineCompletionList(items=list(items))


def _conclude(record: TraceRecord, outcome: Outcome, reason: str) -> None:
    record.outcome, record.exit = outcome, str(reason)


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
