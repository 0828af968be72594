"""The run that follows the typing user: one engine request of a document, and who waits for it.

An edit that goes on as the run writes (or may write) leaves it running for the next request; any
other ends it in the engine at once, without waiting for the editor to cancel. Whoever waits is
answered exactly once. It knows no LSP types, no settings and no clock of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from lsp_server.block import Site, find_end
from lsp_server.documents import Edit
from lsp_server.place import Place
from lsp_server.postprocess import stream_end, to_lf
from lsp_server.prompt import Anchor, Prompt
from lsp_server.stop_rules import opening_len
from lsp_server.suggestion_cache import AUTO_CLOSED, Suggestion, SuggestionCache
from specengine.client import EngineClient
from specengine.errors import InternalFault, SpecEngineError
from specengine.protocol import CancelCause, Chunk, Complete, Done, StopReason

logger = logging.getLogger(__name__)

CANCEL_GRACE_S: Final = 0.05
"""VS Code cancels before it tells what was typed; so long a cancelled run waits for the edit."""

ADOPTION_GRACE_S: Final = 0.4
"""And so long a run that agrees with an edit waits for the request that follows it."""


class TimerHandle(Protocol):
    """What ``loop.call_later`` returns."""

    def cancel(self) -> None:
        """Do not call."""


CallLater = Callable[[float, Callable[[], None]], TimerHandle]


@dataclass(frozen=True)
class RunPlan:
    """What a run is for."""

    prompt: Prompt
    cursor: int
    """In code points of the document."""
    forced: str
    """Text that the suggestion must begin with, after the cursor; part of the sent prefix."""
    site: Site
    place: Place


class Run:
    """One request in the engine, followed to its end."""

    def __init__(self, client: EngineClient, message: Complete, plan: RunPlan) -> None:
        self.plan = plan
        self.text = plan.forced
        """LF; what is forced first, then what has come."""
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the text is final; the engine's ``Done`` may still be under way."""
        self.has_line: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is a whole line to show, or nothing more to wait for."""
        self.finished: asyncio.Future[Done | None] = asyncio.get_running_loop().create_future()
        """The engine's last word, None if it failed."""
        self.error: SpecEngineError | None = None
        self.is_refuted = False
        """The user typed something else, or the engine ended it: its text is void."""
        self.owner = 0
        """Number of the LSP request that counts its tokens: the last one that it answers."""
        self._client = client
        self._message = message
        self._typed = ""
        self._is_ended = False
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="engine-run")

    @property
    def cursor(self) -> int:
        """Where the user's cursor must be for this run to answer, in code points."""
        return self.plan.cursor + len(self._typed)

    @property
    def remaining(self) -> str:
        """The text behind what the user has typed of it."""
        return self.text[len(to_lf(self._typed)) :]

    @property
    def whole_lines(self) -> str:
        """The part of ``remaining`` that ends with a line."""
        return self.remaining.rpartition("\n")[0]

    @property
    def is_running(self) -> bool:
        """Whether more text may come."""
        return not self.settled.done()

    def follow(self, edit: Edit) -> bool:
        """Take note of an edit; return whether the run still answers."""
        typed = self._typed_after(edit)
        if typed is None or not self._agrees(typed):
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

    def _typed_after(self, edit: Edit) -> str | None:
        is_at_cursor = edit.start == edit.end == self.cursor
        if is_at_cursor:
            # Editors close brackets by themselves; the cursor stays between them.
            opener = edit.text[:1]
            is_pair = len(edit.text) == 2 and AUTO_CLOSED.get(opener) == edit.text[1]
            return self._typed + (opener if is_pair else edit.text)
        is_backspace = not edit.text and edit.end == self.cursor and edit.start >= self.plan.cursor
        return self._typed[: edit.start - self.plan.cursor] if is_backspace else None

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
        except Exception:
            logger.exception("a run failed")
            self.error = InternalFault("the suggestion could not be followed.")
        finally:
            self._is_ended = True
            self._settle()
            if not self.finished.done():
                self.finished.set_result(done)

    def _take(self, chunk: Chunk) -> None:
        if not self.is_running:
            return
        self.text += to_lf(chunk.text)
        if (end := self._end()) is not None:
            self.text = self.text[:end]
            self._is_ended = True
            self._client.stop(self._message.request)
            self._settle()
        elif not self._agrees(self._typed):
            self.cancel(CancelCause.SUPERSEDED)
        elif (lines := self.whole_lines)[opening_len(lines, self.plan.place) :].strip():
            _resolve(self.has_line)

    def _take_done(self, done: Done) -> None:
        if not self.is_running:
            return
        if done.stop_reason is StopReason.CANCELLED:
            self.is_refuted = True
        if done.stop_reason is StopReason.LENGTH and "\n" in self.text:
            self.text = self.text.rpartition("\n")[0]

    def _end(self) -> int | None:
        """Where the text ends for good: with its block, or by a rule; the earlier one."""
        opening = opening_len(self.text, self.plan.place)
        block_end = find_end(self.plan.site, self.text[opening:])
        ends = (
            None if block_end is None else opening + block_end,
            stream_end(self.text, self.plan.place),
        )
        return min((end for end in ends if end is not None), default=None)

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


class TypingSession:
    """What one document has going on."""

    def __init__(self, call_later: CallLater) -> None:
        self.anchor: Anchor | None = None
        """Where the prompt begins while the user types."""
        self._cache = SuggestionCache()
        self._call_later = call_later
        self._run: Run | None = None
        self._ticket: Ticket | None = None
        self._timer: TimerHandle | None = None

    def begin(self) -> Ticket:
        """A request has come: the one before it gets nothing."""
        if self._ticket is not None:
            self._ticket.supersede("newer_request")
        self._ticket = Ticket()
        if self._run is not None:
            # Unless it is adopted now, nobody will: the cursor has moved.
            self._arm(0.0, CancelCause.SUPERSEDED)
        return self._ticket

    def end(self, ticket: Ticket, *, is_cancelled: bool) -> None:
        """A request is answered, or was cancelled by the editor: then its run may go on briefly."""
        if self._ticket is ticket:
            self._ticket = None
            if is_cancelled and self._run is not None:
                self._arm(CANCEL_GRACE_S, CancelCause.CLIENT)

    def take_edits(self, edits: Iterable[Edit]) -> None:
        """The document has changed: keep the run if it agrees, else end it now."""
        if self._ticket is not None:
            self._ticket.supersede("document_changed")
        if self._run is None:
            return
        if all(self._run.follow(edit) for edit in edits):
            self._arm(ADOPTION_GRACE_S, CancelCause.SUPERSEDED)
        else:
            self.drop_run(CancelCause.SUPERSEDED)

    def find_cached(self, prompt: Prompt) -> str | None:
        """Return what a finished suggestion says here; see ``SuggestionCache.find``."""
        return self._cache.find(prompt)

    def adopt(self, cursor: int, forced: str) -> Run | None:
        """Return the run that answers at a cursor with the forced text; end one that does not."""
        run = self._run
        if run is not None and run.cursor == cursor and run.remaining.startswith(forced):
            self._disarm()
            return self._run
        self.drop_run(CancelCause.SUPERSEDED)
        return None

    def start(self, client: EngineClient, message: Complete, plan: RunPlan) -> Run:
        """Begin a run in the place of any other."""
        self.drop_run(CancelCause.SUPERSEDED)
        run = self._run = Run(client, message, plan)
        run.settled.add_done_callback(lambda _: self._take_settled(run))
        return run

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
        self.drop_run(CancelCause.CLIENT)
        self._cache.clear()

    def _take_settled(self, run: Run) -> None:
        if run.error is None and not run.is_refuted:
            self._cache.store(Suggestion(run.plan.prompt, run.text))
        if self._run is run:
            self._disarm()
            self._run = None

    def _arm(self, seconds: float, cause: CancelCause) -> None:
        self._disarm()
        self._timer = self._call_later(seconds, lambda: self.drop_run(cause))

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
