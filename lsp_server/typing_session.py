"""The run that follows the typing user: one engine request of a document, and who waits for it.

An edit that goes on as the run writes (or may write) leaves it running for the next request; any
other ends it in the engine at once, without waiting for the editor to cancel. Whoever waits is
answered exactly once. It knows no LSP types, no settings and no clock of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lsp_server.block import EndFinder, Site
from lsp_server.documents import Edit
from lsp_server.held_prompt import HeldPrompt
from lsp_server.place import Place
from lsp_server.postprocess import stream_end, to_lf
from lsp_server.prompt import Anchor, Budget, Prompt
from lsp_server.stop_rules import opening_len
from lsp_server.suggestion_cache import Suggestion, SuggestionCache
from lsp_server.trouble import log_trouble
from lsp_server.typed import Typed
from specengine.client import Client
from specengine.errors import InternalFault, SpecEngineError
from specengine.protocol import CancelCause, Chunk, Complete, Done, StopReason

logger = logging.getLogger(__name__)

CANCEL_GRACE_S: Final = 0.05
"""VS Code cancels before it tells what was typed; so long a cancelled run waits for the edit."""

ADOPTION_GRACE_S: Final = 0.4
"""And so long a run that agrees with an edit waits for the request that follows it."""

AHEAD_DELAY_S: Final = 0.15
"""A suggestion must stand so long, with nobody typing, before it is gone on from."""


class TimerHandle(Protocol):
    """What ``loop.call_later`` returns."""

    def cancel(self) -> None:
        """Do not call."""


CallLater = Callable[[float, Callable[[], None]], TimerHandle]


@dataclass(frozen=True)
class RunPlan:
    """What a run is for."""

    prompt: Prompt
    """At the place to fill, behind ``known``."""
    cursor: int
    """Where the user was when it began, in code points of the document."""
    forced: str
    """Text that the suggestion must begin with; sent as the end of the prefix."""
    site: Site
    place: Place
    known: str = ""
    """Text between cursor and place that is only proposed: the suggestion on the screen, for a run
    that looks ahead."""


@dataclass(frozen=True)
class Question:
    """What a run begins with."""

    client: Client
    message: Complete
    plan: RunPlan


class Run:
    """One request in the engine, followed to its end."""

    def __init__(self, question: Question) -> None:
        self.plan = plan = question.plan
        self.text = plan.known + plan.forced
        """LF; what is known and forced first, then what has come."""
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the text is final; the engine's ``Done`` may still be under way."""
        self.has_line: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is a whole line to show, or nothing more to wait for."""
        self.finished: asyncio.Future[Done | None] = asyncio.get_running_loop().create_future()
        """The engine's last word, None if it failed."""
        self.error: SpecEngineError | None = None
        self.is_refuted = False
        """The user typed something else, or the engine ended it: its text is void."""
        self.is_complete = False
        """What was asked for is all there: a block or a statement has ended by itself."""
        self.late_steps = 0
        """Passes that the engine has made after the text was final, known when it has finished."""
        self.owner = 0
        """Number of the LSP request that counts its tokens: the last one that it answers."""
        self._client = question.client
        self._message = question.message
        self._typed = Typed(plan.cursor)
        self._finder = EndFinder(plan.site)
        self._is_ended = False
        self._num_chunks = 0
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="engine-run")

    @property
    def cursor(self) -> int:
        """Where the user's cursor must be for this run to answer, in code points."""
        return self._typed.cursor

    @property
    def remaining(self) -> str:
        """The text behind what the user has typed of it."""
        return self.text[len(to_lf(self._typed.text)) :]

    @property
    def is_reached(self) -> bool:
        """Whether all that was proposed before its place is typed, so that it can answer."""
        return len(to_lf(self._typed.text)) >= len(self.plan.known)

    @property
    def suggestion(self) -> Suggestion:
        """Return its text as an answer at its place."""
        text = self.text[len(self.plan.known) :]
        return Suggestion(self.plan.prompt, text, is_ahead=bool(self.plan.known))

    @property
    def whole_lines(self) -> str:
        """The part of ``remaining`` that ends with a line."""
        return self.remaining.rpartition("\n")[0]

    @property
    def is_running(self) -> bool:
        """Whether more text may come."""
        return not self.settled.done()

    def go_on(self, typed: Typed) -> None:
        """Take note of what was typed between what it is for and its beginning."""
        self._typed = typed

    def follow(self, edit: Edit) -> bool:
        """Take note of an edit; return whether the run still answers."""
        typed = self._typed.after(edit)
        if typed is None or not self._agrees(typed.text):
            return False
        self._typed = typed
        if self.is_running and self.has_line.done() and not self.whole_lines.strip():
            # The lines so far are accepted; whoever asks next waits for another one.
            self.has_line = asyncio.get_running_loop().create_future()
        return True

    def cancel(self, cause: CancelCause) -> None:
        """End it in the engine now; its text is void."""
        self.is_refuted = True
        if not self._is_ended:
            self._is_ended = True
            self._client.cancel(self._message.request, cause)
        self._settle()

    def _agrees(self, typed: str) -> bool:
        typed = to_lf(typed)
        is_written = self.text.startswith(typed)
        return is_written or (self.is_running and typed.startswith(self.text))

    async def _follow(self) -> None:
        done: Done | None = None
        stream = self._client.complete(self._message)
        try:
            async with contextlib.aclosing(stream):
                async for answer in stream:
                    if isinstance(answer, Done):
                        done = answer
                        self._is_ended = True
                    else:
                        self._take(answer)
            if done is not None:
                self._take_done(done)
        except SpecEngineError as error:
            self.error = error
        except Exception as error:
            log_trouble(logger, "a run failed", error)
            self.error = InternalFault("the suggestion could not be followed.")
        finally:
            self._is_ended = True
            self._settle()
            if not self.finished.done():
                self.finished.set_result(done)

    def _take(self, chunk: Chunk) -> None:
        if not self.is_running:
            return
        self._num_chunks += 1
        self.text += to_lf(chunk.text)
        if (end := self._end()) is not None:
            self.text = self.text[:end]
            self._is_ended = True
            self._client.stop(self._message.request)
            self._settle()
        elif not self._agrees(self._typed.text):
            self.cancel(CancelCause.SUPERSEDED)
        elif (lines := self.whole_lines)[opening_len(lines, self.plan.place) :].strip():
            _resolve(self.has_line)

    def _take_done(self, done: Done) -> None:
        if not self.is_running:
            # A pass that writes nothing visible sends no chunk, so this is the most there can be.
            self.late_steps = max(0, done.steps - self._num_chunks)
            return
        if done.stop_reason is StopReason.CANCELLED:
            self.is_refuted = True
        self.is_complete = done.stop_reason is StopReason.END_TOKEN
        own = self.text[len(self.plan.known) :]
        if done.stop_reason is StopReason.LENGTH and "\n" in own:
            self.text = self.plan.known + own.rpartition("\n")[0]

    def _end(self) -> int | None:
        """Where the text ends for good: with its block, or by a rule; the earlier one."""
        num_known, num_forced = len(self.plan.known), len(self.plan.forced)
        own = self.text[num_known:]
        begin = max(num_forced, opening_len(own, self.plan.place))
        block_end = self._finder.find(own[begin:])
        rule_end = stream_end(own, self.plan.place)
        ends = [] if block_end is None else [begin + block_end]
        ends += [] if rule_end is None else [rule_end]
        if not ends:
            return None
        self.is_complete = block_end is not None and min(ends) == begin + block_end
        return num_known + min(ends)

    def _settle(self) -> None:
        _resolve(self.settled)
        _resolve(self.has_line)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass
class Ticket:
    """One LSP request that waits; superseded at most once."""

    superseded: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Done, with the reason, when an answer is no longer wanted."""

    def supersede(self, reason: str) -> None:
        """Let the request be answered with nothing."""
        if not self.superseded.done():
            self.superseded.set_result(reason)

    async def wait(self, awaited: asyncio.Future[None], timeout_s: float | None = None) -> bool:
        """Wait for something; return whether it came while the ticket was still wanted."""
        await asyncio.wait(
            {self.superseded, awaited}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        return awaited.done() and not self.superseded.done()

    async def pause(self, seconds: float) -> bool:
        """Wait for some time; return whether the ticket is still wanted."""
        if seconds > 0:
            await asyncio.wait({self.superseded}, timeout=seconds)
        return not self.superseded.done()


@dataclass
class Lookahead:
    """What comes behind a shown suggestion: asked for unless the user goes elsewhere."""

    known: str
    """The suggestion; LF."""
    ask: Callable[[], Question | None]
    """Returns what to ask, or None if that is not possible now."""
    on_end: Callable[[Run, bool], None]
    """Called once, if there was a run, with whether its text was wanted."""
    typed: Typed
    run: Run | None = None

    @property
    def cursor(self) -> int:
        """Where the user's cursor must be for the suggestion to be still there."""
        return self.typed.cursor

    @property
    def remaining(self) -> str:
        """What of the suggestion is not typed yet."""
        return self.known[len(to_lf(self.typed.text)) :]

    def follow(self, edit: Edit) -> bool:
        """Take note of an edit; return whether the question still makes sense."""
        typed = self.typed.after(edit)
        if typed is None:
            return False
        self.typed = typed
        if self.run is not None:
            return self.run.follow(edit)
        text = to_lf(typed.text)
        return text != self.known and self.known.startswith(text)


class TypingSession:
    """What one document has going on."""

    def __init__(self, call_later: CallLater) -> None:
        self.anchor: Anchor | None = None
        """Where the prompt begins while the user types."""
        self._cache = SuggestionCache()
        self._call_later = call_later
        self._held: HeldPrompt | None = None
        self._run: Run | None = None
        self._latest: Run | None = None
        """The last one that was begun, for whether the engine has done with it."""
        self._alternatives: list[Run] = []
        """Runs that one waiting request has beside that one."""
        self._ticket: Ticket | None = None
        self._timer: TimerHandle | None = None
        self._ahead: Lookahead | None = None
        self._ahead_timer: TimerHandle | None = None

    def begin(self) -> Ticket:
        """A request has come: the one before it gets nothing."""
        if self._ticket is not None:
            self._ticket.supersede("newer_request")
        self._ticket = Ticket()
        self._drop_alternatives()
        if self._run is not None:
            # Unless it is adopted now, nobody will: the cursor has moved.
            self._arm(0.0, CancelCause.SUPERSEDED)
        return self._ticket

    def end(self, ticket: Ticket, *, is_cancelled: bool) -> None:
        """A request is answered, or was cancelled by the editor: then its run may go on briefly."""
        if self._ticket is ticket:
            self._ticket = None
            self._drop_alternatives()
            if is_cancelled and self._run is not None:
                self._arm(CANCEL_GRACE_S, CancelCause.CLIENT)

    def take_edits(self, edits: Sequence[Edit]) -> None:
        """The document has changed: keep what agrees with it, end what does not, now."""
        if self._ticket is not None:
            self._ticket.supersede("document_changed")
        self._drop_alternatives()
        for edit in edits:
            self._held = None if self._held is None else self._held.after(edit)
        if self._ahead is not None:
            if not all(map(self._ahead.follow, edits)):
                self.drop_ahead()
            elif self._ahead.run is None:
                self._arm_ahead()
        if self._run is None:
            return
        if all(map(self._run.follow, edits)):
            self._arm(ADOPTION_GRACE_S, CancelCause.SUPERSEDED)
        else:
            self.drop_run(CancelCause.SUPERSEDED)

    def prompt_at(self, cursor: int, budget: Budget, build: Callable[[], Prompt]) -> Prompt:
        """Return the prompt that is held while the user types, or the one that ``build`` makes."""
        held = None if self._held is None else self._held.at(cursor, budget)
        if held is None:
            held = build()
            self._held = HeldPrompt(held, Typed(cursor), budget)
        return held

    def find_cached(self, prompt: Prompt) -> Suggestion | None:
        """Return what a finished suggestion says here; see ``SuggestionCache.find``."""
        return self._cache.find(prompt)

    def note_shown(self, prompt: Prompt, text: str) -> None:
        """Keep what stands on the screen: whoever types along or comes back sees the same."""
        self._cache.store(Suggestion(prompt, text, is_shown=True))

    def adopt(self, cursor: int, forced: str) -> Run | None:
        """Return the run that answers at a cursor with the forced text; end one that does not."""
        run = self._run
        if run is not None and run.cursor == cursor and run.remaining.startswith(forced):
            self._disarm()
            return self._run
        self.drop_run(CancelCause.SUPERSEDED)
        return self._adopt_ahead(cursor, forced)

    def start(self, question: Question) -> Run:
        """Begin a run in the place of any other."""
        self.drop_ahead()
        self.drop_run(CancelCause.SUPERSEDED)
        run = self._run = self._begin(question)
        return run

    def start_alternative(self, question: Question) -> Run:
        """Begin a run beside the one that was started; it ends with the request."""
        run = Run(question)
        self._alternatives.append(run)
        return run

    def look_ahead(self, ahead: Lookahead) -> None:
        """Go on behind a suggestion that is shown, as soon as nothing else has to be done."""
        old = self._ahead
        if old is not None and (old.cursor, old.remaining) == (ahead.cursor, ahead.known):
            return  # what is shown is the rest of what it goes on from
        self.drop_ahead()
        self._ahead = ahead
        self._arm_ahead()

    def drop_ahead(self) -> None:
        """End the run that nobody has asked for."""
        self._end_ahead(is_wanted=False)

    def drop_run(self, cause: CancelCause) -> None:
        """End the run, if there is one."""
        self._disarm()
        if self._run is not None:
            self._run.cancel(cause)
            self._run = None

    def close(self) -> None:
        """The document is closed."""
        if self._ticket is not None:
            self._ticket.supersede("document_closed")
        self._drop_alternatives()
        self.drop_ahead()
        self.drop_run(CancelCause.CLIENT)
        self._held = None
        self._cache.clear()

    def _begin(self, question: Question) -> Run:
        run = self._latest = Run(question)
        run.settled.add_done_callback(lambda _: self._take_settled(run))
        return run

    def _take_settled(self, run: Run) -> None:
        if run.error is None and not run.is_refuted:
            self._cache.store(run.suggestion)
        if self._run is run:
            self._disarm()
            self._run = None

    def _adopt_ahead(self, cursor: int, forced: str) -> Run | None:
        """Return the run that has looked ahead to a cursor, if it is still at work."""
        ahead = self._ahead
        if ahead is not None and ahead.cursor != cursor:
            self.drop_ahead()
        run = ahead.run if ahead is not None else None
        if run is None or not run.is_reached or not run.remaining.startswith(forced):
            return None
        self._end_ahead(is_wanted=True)
        if not run.is_running:
            return None  # its text is found like any other that is finished
        self._run = run
        return run

    def _arm_ahead(self) -> None:
        self._disarm_ahead()
        self._ahead_timer = self._call_later(AHEAD_DELAY_S, self._begin_ahead)

    def _begin_ahead(self) -> None:
        assert self._ahead is not None, "its timer ends with it"
        is_idle = self._latest is None or self._latest.finished.done()
        if self._ticket is not None or self._run is not None or not is_idle:
            self._arm_ahead()
        elif (question := self._ahead.ask()) is not None:
            self._ahead.run = self._begin(question)
            self._ahead.run.go_on(self._ahead.typed)
        else:
            self._ahead = None

    def _end_ahead(self, *, is_wanted: bool) -> None:
        self._disarm_ahead()
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.run is None:
            return
        if not is_wanted:
            ahead.run.cancel(CancelCause.SUPERSEDED)
        ahead.on_end(ahead.run, is_wanted)

    def _drop_alternatives(self) -> None:
        for run in self._alternatives:
            run.cancel(CancelCause.SUPERSEDED)
        self._alternatives.clear()

    def _arm(self, seconds: float, cause: CancelCause) -> None:
        self._disarm()
        self._timer = self._call_later(seconds, lambda: self.drop_run(cause))

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _disarm_ahead(self) -> None:
        if self._ahead_timer is not None:
            self._ahead_timer.cancel()
            self._ahead_timer = None
