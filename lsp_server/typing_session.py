"""What one document has going on while its user types: the run that follows, and who waits for it.

An edit that goes on as the run writes (or may write) leaves it running for the next request; any
other ends it in the engine at once, without waiting for the editor to cancel. Whoever waits is
answered exactly once. It knows no LSP types, no settings and no clock of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lsp_server.documents import Edit
from lsp_server.held_prompt import HeldPrompt
from lsp_server.postprocess import to_lf
from lsp_server.prompt import Anchor, Budget, Prompt
from lsp_server.run import Question, Run
from lsp_server.suggestion_cache import Suggestion, SuggestionCache
from lsp_server.typed import Typed
from specengine.protocol import CancelCause

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

    def held_prompt(self, cursor: int, budget: Budget) -> Prompt | None:
        """Return the prompt that is held while the user types; None if one has to be made."""
        return None if self._held is None else self._held.at(cursor, budget)

    def hold(self, prompt: Prompt, cursor: int, budget: Budget) -> None:
        """Keep a prompt as it is, but for what is typed at its cursor from now on."""
        self._held = HeldPrompt(prompt, Typed(cursor), budget)

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
