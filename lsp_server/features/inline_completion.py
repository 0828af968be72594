"""``textDocument/inlineCompletion``: from a cursor to a suggestion, or several to choose from.

A request is answered exactly once: with a list, or with null when a newer one or an edit has
taken its place. Each writes one trace record, whatever becomes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

from lsprotocol import types

from lsp_server.block import Scope
from lsp_server.documents import Document, Snapshot
from lsp_server.features.acceptance import note_shown
from lsp_server.features.other_files import build_whole_prompt
from lsp_server.occasion import is_after_end, is_generated, is_inside_word, is_minified
from lsp_server.place import Place
from lsp_server.postprocess import drop_closers_below, num_covered, postprocess, with_line_ends
from lsp_server.prompt import Budget, Prompt
from lsp_server.questions import as_alternative, make_question, place_of, plan_behind, site_of
from lsp_server.run import Question, Run, RunPlan
from lsp_server.state import OpenDocument, State
from lsp_server.suggestion_cache import Suggestion
from lsp_server.syntax import grammar_of
from lsp_server.trace_log import Outcome, TraceRecord
from lsp_server.typed import Typed
from lsp_server.typing_session import Lookahead, Ticket
from specengine.client import Client
from specengine.errors import EngineUnavailable, SpecEngineError
from specengine.protocol import Done
from specengine.trouble import log_trouble

logger = logging.getLogger(__name__)


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
        answer = await request.answer()
        if answer is not None:
            note_shown(state, record.request, params, answer)
        return answer
    except asyncio.CancelledError:
        _conclude(record, Outcome.CANCELLED, "client")
        raise
    except SpecEngineError as error:
        _conclude(record, Outcome.ERROR, error.code)
        if not isinstance(error, EngineUnavailable):  # the link tells that, once for all requests
            state.show_once(error.code, str(error), "warning")
    except Exception as error:
        _conclude(record, Outcome.ERROR, "internal")
        log_trouble(logger, f"request {record.request} failed", error)
    finally:
        record.ms.total = state.now_ms() - started_ms
        request.write_record()
    return _items()


@dataclass
class _View:
    """What a request sees; its snapshot is taken once, before the first wait."""

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
        self.alternatives: list[Run] = []
        self.asked_ms = 0.0

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
                record.late_steps = run.late_steps
            self.state.trace.write(record)

        # The answer leaves when the text is final; the engine's last frame may come a pass later.
        run.finished.add_done_callback(write)

    async def _answer_in(
        self, opened: OpenDocument, ticket: Ticket
    ) -> types.InlineCompletionList | None:
        session, snapshot = opened.session, opened.document.snapshot(self.params.position)
        if reason := exit_before(self.state, opened.document, snapshot):
            session.drop_ahead()
            return self._empty(reason)
        selected = _selection(opened.document, snapshot, self.params.context)
        # Before the first wait: a run that nobody adopts ends.
        run = session.adopt(snapshot.cursor, selected[1]) if self._follows_typing else None
        with self._phase("context"):
            view = await self._view(opened, snapshot, selected, ticket)
        if ticket.superseded.done():
            return self._superseded(ticket)
        cached = session.find_cached(view.prompt) if self._follows_typing else None
        if cached is not None and not cached.text.startswith(view.forced):
            cached = None
        # Lines on the screen stay there while the run writes the rest.
        if run is not None and not (cached is not None and cached.is_shown):
            return await self._follow(run, view, ticket)
        return self._finish_cached(view, cached) if cached else await self._ask(view, ticket)

    @property
    def _is_invoked(self) -> bool:
        return self.record.trigger == "invoked"

    @property
    def _follows_typing(self) -> bool:
        """Whether what was asked before may answer; who asks explicitly wants more than that."""
        return self.state.settings.completion.follow_typing and not self._is_invoked

    async def _follow(
        self, run: Run, view: _View, ticket: Ticket
    ) -> types.InlineCompletionList | None:
        """Answer with a run that is at work already."""
        reason = "ahead" if run.plan.known else ""
        self._own(run)
        if not await self._wait_for_text(run, ticket):
            return self._superseded(ticket)
        if not run.settled.done():
            return self._finish(view, run.whole_lines, Outcome.ADOPTED, reason or "whole_lines")
        has_answer = run.error is None and not run.is_refuted
        # A run may end where the user is by now; the editor will not ask again by itself.
        if has_answer and run.remaining != view.forced:
            self._look_ahead(run, view)
            return self._finish(view, run.remaining, Outcome.ADOPTED, reason or "adopted")
        return await self._ask(view, ticket)

    async def _ask(self, view: _View, ticket: Ticket) -> types.InlineCompletionList | None:
        """Put the question to the engine."""
        if not self._is_invoked and (reason := exit_before_asking(view.snapshot, view.forced)):
            return self._empty(reason)
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
        is_wanted = await self._wait_for_text(run, ticket)
        view.opened.pace.observe_answer(self.state.now_ms() - self.asked_ms, has_come=is_wanted)
        if not is_wanted:
            return self._superseded(ticket)
        if not run.settled.done():
            # The run goes on; it answers whoever accepts these lines or types along.
            return self._finish(view, run.whole_lines, Outcome.SHOWN, "whole_lines")
        if run.error is not None:
            raise run.error
        if run.is_refuted:
            self._conclude(Outcome.SUPERSEDED, "engine_cancelled")
            return None
        others = await self._alternative_texts(ticket)
        if ticket.superseded.done():
            return self._superseded(ticket)
        done = run.finished.result() if run.finished.done() else None
        self._look_ahead(run, view)
        reason = done.stop_reason if done is not None else "stopped"
        return self._finish(view, run.remaining, Outcome.SHOWN, reason, *others)

    async def _alternative_texts(self, ticket: Ticket) -> list[str]:
        """Return what there is to choose from; whoever is late is taken as far as it has come."""
        ends_ms = self.state.now_ms() + self.state.settings.completion.patience_ms
        for other in self.alternatives:
            left_ms = max(0.0, ends_ms - self.state.now_ms())
            await ticket.wait(other.settled, left_ms / 1000)
        runs = [run for run in self.alternatives if run.error is None and not run.is_refuted]
        return [run.whole_lines if run.is_running else run.remaining for run in runs]

    async def _wait_for_text(self, run: Run, ticket: Ticket) -> bool:
        """Wait for the whole text, or after some time for a line; return whether it is wanted."""
        patience_ms = self.state.settings.completion.patience_ms
        if self._is_invoked or patience_ms <= 0:
            return await ticket.wait(run.settled)
        if await ticket.wait(run.settled, patience_ms / 1000):
            return True
        return await ticket.wait(run.has_line)

    def _start(self, view: _View, client: Client) -> Run:
        """Begin a run, and those beside it for alternatives."""
        for other in self.state.documents.values():
            other.session.drop_ahead()
        session, completion = view.opened.session, self.state.settings.completion
        widest = Scope.BLOCKS if self._is_invoked else Scope.BLOCK
        site = site_of(view.snapshot, view.place, view.forced, widest)
        self.record.scope = site.scope
        plan = RunPlan(view.prompt, view.snapshot.cursor, view.forced, site, view.place)
        question = make_question(client, view.snapshot, plan, completion)
        self.asked_ms = self.state.now_ms()
        run = session.start(question)
        self._own(run)
        for number in range(1, completion.alternatives if self._is_invoked else 1):
            self.alternatives.append(session.start_alternative(as_alternative(question, number)))
        return run

    async def _client(self, ticket: Ticket) -> Client | None:
        """Return the connection; wait for the attempt that is under way, if there is one."""
        link = self.state.link
        if link is None:
            return None
        if self._is_invoked:
            link.retry()
        if link.client is None and (attempt := link.attempt) is not None:
            await ticket.wait(attempt, self.state.settings.engine.wait_ms / 1000)
        return link.client

    async def _view(
        self, opened: OpenDocument, snapshot: Snapshot, selected: tuple[int, str], ticket: Ticket
    ) -> _View:
        (start, forced), budget, session = selected, self._budget(), opened.session
        follows = self.state.settings.completion.follow_typing
        prompt = session.held_prompt(snapshot.cursor, budget) if follows else None
        if prompt is None:
            prompt = await build_whole_prompt(self.state, opened, snapshot, budget)
            if not ticket.superseded.done():
                session.hold(prompt, snapshot.cursor, budget)
        return _View(opened, snapshot, forced, start, prompt, place_of(snapshot))

    def _budget(self) -> Budget:
        context = self.state.settings.context
        num_tokens = context.max_prompt_tokens
        client = self.state.link.client if self.state.link is not None else None
        if client is not None and client.status is not None and client.status.prompt_tokens > 0:
            num_tokens = min(num_tokens, client.status.prompt_tokens)
        return Budget.of_tokens(num_tokens, context.suffix_share)

    def _delay_s(self, opened: OpenDocument) -> float:
        if self._is_invoked:
            return 0.0
        max_ms = self.state.settings.completion.max_debounce_ms
        return opened.pace.delay_ms(self.state.now_ms(), max_ms) / 1000

    def _finish_cached(self, view: _View, cached: Suggestion) -> types.InlineCompletionList:
        reason = "ahead" if cached.is_ahead else "cached"
        if not cached.is_shown:
            return self._finish(view, cached.text, Outcome.CACHED, reason)
        # It has been through the rules; here they might cut otherwise, and it would flicker. But
        # an editor may have closed meanwhile what the text closes.
        text = drop_closers_below(cached.text, view.place)
        if not text.strip():
            return self._empty(drop_closers_below.__name__)
        self._conclude(Outcome.CACHED, reason)
        return _items(_item(view, text))

    def _finish(
        self, view: _View, text: str, outcome: Outcome, reason: str, *alternatives: str
    ) -> types.InlineCompletionList:
        with self._phase("postprocess"):
            first, *others = [postprocess(one, view.place) for one in (text, *alternatives)]
            texts = dict.fromkeys(one.text for one in (first, *others) if one.text)
            if not texts:
                return self._empty(first.emptied_by if text else "nothing_written")
            view.opened.session.note_shown(view.prompt, next(iter(texts)))
            items = [_item(view, one) for one in texts]
        self._conclude(outcome, reason)
        return _items(*items)

    def _look_ahead(self, run: Run, view: _View) -> None:
        """Have what follows the text of a settled run ready by the time that it is accepted."""
        completion = self.state.settings.completion
        shown = postprocess(run.remaining, view.place).text
        # A guess is not worth the time of somebody else's server.
        is_ours = self.state.settings.engine.backend == "local"
        if not (is_ours and completion.look_ahead and completion.follow_typing and shown):
            return
        record = TraceRecord(self.record.request, time.time(), trigger="ahead")
        record.language = self.record.language
        record.document_version = self.record.document_version
        session, link = view.opened.session, self.state.link

        def ask() -> Question | None:
            client = link.client if link is not None else None
            if client is None:
                return None
            is_ended = run.is_complete
            plan = plan_behind(view.snapshot, view.prompt, shown, is_ended=is_ended)
            if plan is None:
                return None
            record.scope = plan.site.scope
            return make_question(client, view.snapshot, plan, completion)

        on_end = partial(write_ahead_record, self.state, record)
        session.look_ahead(Lookahead(shown, ask, on_end, Typed(view.snapshot.cursor)))

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
    if document.is_read_only:
        return "read_only"
    if state.is_ignored(document):
        return "ignored_file"
    if is_inside_word(snapshot.before, snapshot.rest):
        return "inside_word"
    if not snapshot.text or snapshot.text.isspace():
        return "empty_document"
    return ""


def exit_before_asking(snapshot: Snapshot, forced: str) -> str:
    """Return why the engine need not be asked unasked, or an empty string."""
    if is_generated(snapshot.text):
        return "generated_file"
    if is_minified(snapshot.text, snapshot.line_end - snapshot.line_start):
        return "minified_file"
    grammar = grammar_of(snapshot.language)
    return "after_end" if is_after_end(snapshot.before + forced, snapshot.rest, grammar) else ""


def write_ahead_record(state: State, record: TraceRecord, run: Run, is_wanted: bool) -> None:
    """Write what a look ahead has cost, unless the request that took it over counts it."""
    _conclude(record, Outcome.ADOPTED if is_wanted else Outcome.SUPERSEDED, "ahead")

    def write(finished: asyncio.Future[Done | None]) -> None:
        done = finished.result()
        if done is not None and run.owner == 0:
            record.take_engine_part(done)
            record.late_steps = run.late_steps
            record.ms.total = done.ms.total
        state.trace.write(record)

    run.finished.add_done_callback(write)


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
