"""One engine request, followed to its end: what it has written, and whether that still answers.

It ends the request as soon as the text is all there, or can no longer be wanted. It knows no
document and no other request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from lsp_server.block import EndFinder, Site
from lsp_server.documents import Edit
from lsp_server.place import Place
from lsp_server.postprocess import stream_end, to_lf
from lsp_server.prompt import Prompt
from lsp_server.stop_rules import opening_blanks_len, opening_len
from lsp_server.suggestion_cache import Suggestion
from lsp_server.typed import Typed
from specengine.client import Client
from specengine.errors import InternalFault, SpecEngineError
from specengine.protocol import CancelCause, Chunk, Complete, Done, StopReason
from specengine.trouble import log_trouble

logger = logging.getLogger(__name__)


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
        self._is_sent = False
        self._is_ended = False
        self._num_chunks = 0
        self._held_back = ""
        """A carriage return, until the next chunk tells whether it is half a line end."""
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
        if self._is_sent and not self._is_ended:
            self._client.cancel(self._message.request, cause)
        self._is_ended = True
        self._settle()

    def _agrees(self, typed: str) -> bool:
        typed = to_lf(typed)
        is_written = self.text.startswith(typed)
        return is_written or (self.is_running and typed.startswith(self.text))

    async def _follow(self) -> None:
        if self._is_ended:
            self.finished.set_result(None)
            return
        done: Done | None = None
        self._is_sent = True
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
        piece = self._held_back + chunk.text
        self._held_back = "\r" if piece.endswith("\r") else ""
        self.text += to_lf(piece.removesuffix("\r"))
        self._drop_opening_blanks()
        if (end := self._end()) is not None:
            self.text = self.text[:end]
            self._is_ended = True
            self._client.stop(self._message.request)
            self._settle()
        elif not self._agrees(self._typed.text):
            self.cancel(CancelCause.SUPERSEDED)
        elif (lines := self.whole_lines)[opening_len(lines, self.plan.place) :].strip():
            _resolve(self.has_line)

    def _drop_opening_blanks(self) -> None:
        """Let the text begin where the suggestion will, as what is typed is held against it."""
        if self.plan.forced or self._typed.text:
            return
        known = self.plan.known
        own = self.text[len(known) :]
        self.text = known + own[opening_blanks_len(own, self.plan.place) :]

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
