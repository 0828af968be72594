"""Facts about the run that follows the typing user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lsp_server.block import Scope, Site
from lsp_server.documents import Edit
from lsp_server.place import Place
from lsp_server.prompt import Budget, Prompt
from lsp_server.run import Question, Run, RunPlan
from lsp_server.syntax import grammar_of
from lsp_server.typed import Typed
from lsp_server.typing_session import (
    ADOPTION_GRACE_S,
    AHEAD_DELAY_S,
    CANCEL_GRACE_S,
    Lookahead,
    TypingSession,
)
from specengine.client import EngineClient, UnixAddress
from specengine.protocol import CancelCause, Complete, StopReason
from tests.fake_engine import FakeEngine, FakeRequest

CURSOR = 10
PROMPT = Prompt("def f():\n    ", "")
PLAN = RunPlan(
    PROMPT,
    CURSOR,
    "",
    Site(Scope.BLOCK, grammar_of("python"), PROMPT.prefix),
    Place("    ", "", ()),
)


class Timer:
    """Stands for the loop's timers; a test lets the time pass."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer.Handle:
        entry = (seconds, callback)
        self.pending.append(entry)
        return Timer.Handle(self, entry)

    def fire(self) -> float:
        ((seconds, callback),) = self.pending
        self.pending.clear()
        callback()
        return seconds

    class Handle:
        def __init__(self, timer: Timer, entry: tuple[float, Callable[[], None]]) -> None:
            self.timer, self.entry = timer, entry

        def cancel(self) -> None:
            if self.entry in self.timer.pending:
                self.timer.pending.remove(self.entry)


class Stage:
    """A session with one run that the engine has received."""

    def __init__(self, client: EngineClient, engine: FakeEngine) -> None:
        self.client = client
        self.engine = engine
        self.timer = Timer()
        self.session = TypingSession(self.timer.call_later)

    async def start(self, plan: RunPlan = PLAN) -> tuple[Run, FakeRequest]:
        run = self.session.start(self.question(plan))
        return run, await self.engine.next_request()

    def question(self, plan: RunPlan = PLAN) -> Question:
        message = Complete(self.client.next_request(), "d", plan.prompt.prefix)
        return Question(self.client, message, plan)

    def cached(self, prompt: Prompt) -> str | None:
        found = self.session.find_cached(prompt)
        return None if found is None else found.text

    async def wait_text(self, run: Run, text: str) -> None:
        while run.text != text:  # noqa: ASYNC110  # a run tells nobody of each chunk
            await asyncio.sleep(0)


def play(folder: Path, scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        engine = FakeEngine(folder / "s")
        await engine.listen()
        client = await EngineClient.connect(UnixAddress(str(folder / "s")), program="test")
        try:
            async with asyncio.timeout(5):
                await scene(Stage(client, engine))
        finally:
            await client.close()
            await engine.kill()

    asyncio.run(run())


def typed(text: str, at: int = CURSOR) -> Edit:
    return Edit(at, at, text)


BLANK = replace(PLAN, place=replace(PLAN.place, grammar=grammar_of("python")))


def test_blank_lines_that_open_a_text_are_no_part_of_it(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start(BLANK)
        for text in ("\n", "    re", "turn 1\n", "\n", "x = 2\n"):
            request.write(text)
        await run.settled
        assert run.text == "return 1"
        assert stage.cached(PROMPT) == "return 1"

    play(tmp_path, scene)


def test_a_blank_line_that_was_typed_stays(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start(BLANK)
        request.write("\n")
        await stage.wait_text(run, "\n")
        assert run.follow(typed("\n"))
        request.write("    return 1")
        await stage.wait_text(run, "\n    return 1")
        assert run.remaining == "    return 1"

    play(tmp_path, scene)


def test_run_ends_where_its_block_ends(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        for text in ("return", " 1\n", "\n", "x = 2", "\ny = 3"):
            request.write(text)
        assert await request.stopped in ("return 1\n\nx = 2", "return 1\n\nx = 2\ny = 3")
        await run.settled
        assert run.text == "return 1"
        done = await run.finished
        assert done is not None
        assert done.stop_reason is StopReason.STOPPED
        assert stage.cached(PROMPT) == "return 1"

    play(tmp_path, scene)


@pytest.mark.parametrize(
    "pieces",
    [
        ("x = 1\n", "\n``", "`", "\n"),
        ("x = 1\n\n", "This function takes a", " list of words", " and"),
        ("x = 1\n", "    y = 2\n" * 2, "    y = 2\n", "    y = 2\n"),
    ],
)
def test_run_ends_where_the_model_leaves_code(tmp_path: Path, pieces: tuple[str, ...]):
    """The engine is told at once, before the line or the text is complete."""
    grammar = grammar_of("python")
    place = Place("    ", "", (), False, "def f():\n", grammar)

    async def scene(stage: Stage) -> None:
        run, request = await stage.start(replace(PLAN, place=place))
        for piece in pieces[:-1]:
            request.write(piece)
        assert await request.stopped == "".join(pieces[:-1])
        await run.settled
        assert run.text in ("x = 1", "x = 1\n    y = 2")

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("edits", "cursor", "remaining"),
    [
        ([typed("r")], 11, "eturn"),
        ([typed("r"), typed("e", 11)], 12, "turn"),
        ([typed("re"), Edit(11, 12, "")], 11, "eturn"),
        ([typed("return (")], 18, ""),
    ],
)
def test_agreeing_edits_keep_the_run(
    tmp_path: Path, edits: list[Edit], cursor: int, remaining: str
):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        request.write("return")
        await stage.wait_text(run, "return")
        stage.session.take_edits(edits)
        assert stage.session.adopt(cursor, "") is run
        assert run.remaining == remaining
        assert not stage.timer.pending
        request.finish()
        await run.settled

    play(tmp_path, scene)


@pytest.mark.parametrize(
    "edits",
    [
        [typed("x")],
        [typed("r", 3)],
        [typed("r", 11)],
        [Edit(9, 10, "")],
        [Edit(10, 12, "r")],
        [typed("r"), typed("x", 11)],
    ],
)
def test_other_edits_end_the_run_at_once(tmp_path: Path, edits: list[Edit]):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        request.write("return")
        await stage.wait_text(run, "return")
        stage.session.take_edits(edits)
        assert run.is_refuted
        assert await request.cancelled is CancelCause.SUPERSEDED
        assert await run.finished is not None
        assert stage.cached(PROMPT) is None

    play(tmp_path, scene)


def test_passes_after_the_end_are_counted(tmp_path: Path):
    """The engine of this test says that it has made three."""

    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        request.write("return")
        await stage.wait_text(run, "return")
        stage.session.take_edits([typed("x")])
        await request.cancelled
        await run.finished
        assert run.late_steps == 2

    play(tmp_path, scene)


def test_typed_ahead_of_the_run_is_tested_when_text_comes(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        stage.session.take_edits([typed("re")])
        assert stage.session.adopt(12, "") is run
        request.write("r")
        await stage.wait_text(run, "r")
        assert not run.is_refuted
        request.write("x")
        assert await request.cancelled is CancelCause.SUPERSEDED
        assert run.is_refuted

    play(tmp_path, scene)


def test_bracket_that_the_editor_closed_agrees(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        request.write("f(x)")
        await stage.wait_text(run, "f(x)")
        stage.session.take_edits([typed("f"), typed("()", 11)])
        assert stage.session.adopt(12, "") is run
        assert run.remaining == "x)"
        request.finish()
        await run.settled

    play(tmp_path, scene)


def test_line_end_of_windows_agrees(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        request.write("a\n    b")
        await stage.wait_text(run, "a\n    b")
        stage.session.take_edits([typed("a\r\n")])
        assert stage.session.adopt(13, "") is run
        assert run.remaining == "    b"
        request.finish()
        await run.settled

    play(tmp_path, scene)


def test_edit_answers_who_waits_once(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        ticket = stage.session.begin()
        stage.session.take_edits([typed("r")])
        assert not await ticket.wait(run.settled)
        assert ticket.superseded.result() == "document_changed"
        stage.session.begin()
        assert ticket.superseded.result() == "document_changed"
        request.finish()
        await run.settled

    play(tmp_path, scene)


def test_newer_request_answers_the_older_one(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        first = stage.session.begin()
        second = stage.session.begin()
        assert stage.session.adopt(CURSOR, "") is run
        assert first.superseded.result() == "newer_request"
        request.answer("return 1")
        assert await second.wait(run.settled)

    play(tmp_path, scene)


def test_request_elsewhere_ends_the_run(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        _, request = await stage.start()
        stage.session.begin()
        assert stage.session.adopt(3, "") is None
        assert await request.cancelled is CancelCause.SUPERSEDED

    play(tmp_path, scene)


def test_run_that_nobody_adopts_ends(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        _, request = await stage.start()
        stage.session.take_edits([typed("r")])
        assert stage.timer.fire() == ADOPTION_GRACE_S
        assert await request.cancelled is CancelCause.SUPERSEDED

    play(tmp_path, scene)


def test_run_that_ends_before_it_is_sent_is_never_sent(tmp_path: Path):
    """Its cancel would come first, and the engine would write all of it for nobody."""

    async def scene(stage: Stage) -> None:
        run = stage.session.start(stage.question())
        stage.session.take_edits([typed("x", at=0)])
        assert await run.finished is None
        second, request = await stage.start()
        assert stage.engine.num_requests == 1
        request.answer("x")
        await second.settled

    play(tmp_path, scene)


def test_cancel_of_the_editor_ends_the_run_after_a_moment(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ticket = stage.session.begin()
        _, request = await stage.start()
        stage.session.end(ticket, is_cancelled=True)
        assert stage.timer.fire() == CANCEL_GRACE_S
        assert await request.cancelled is CancelCause.CLIENT

    play(tmp_path, scene)


def test_answered_request_leaves_its_run_alone(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ticket = stage.session.begin()
        run, request = await stage.start()
        stage.session.end(ticket, is_cancelled=False)
        assert not stage.timer.pending
        request.finish()
        await run.settled

    play(tmp_path, scene)


def test_run_without_a_waiter_fills_the_cache(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        request.answer("return 1")
        await run.settled
        await asyncio.sleep(0)
        assert stage.session.adopt(CURSOR, "") is None
        assert stage.cached(Prompt(PROMPT.prefix + "ret", "")) == "urn 1"

    play(tmp_path, scene)


def test_forced_text_is_part_of_the_suggestion(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        plan = RunPlan(PROMPT, CURSOR, "print", PLAN.site, PLAN.place)
        run, request = await stage.start(plan)
        assert stage.session.adopt(CURSOR, "pri") is run
        assert stage.session.adopt(CURSOR, "pop") is None
        assert await request.cancelled is CancelCause.SUPERSEDED
        run, request = await stage.start(plan)
        request.answer("(1)")
        await run.settled
        assert run.remaining == "print(1)"

    play(tmp_path, scene)


def test_lost_connection_is_an_error_of_the_run(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, _ = await stage.start()
        await stage.engine.kill()
        assert await run.finished is None
        assert run.error is not None
        assert run.error.code == "engine_unavailable"
        assert stage.cached(PROMPT) is None

    play(tmp_path, scene)


def test_failed_request_is_an_error_of_the_run(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        request.fail("engine_busy", "too many.")
        await run.settled
        assert run.error is not None
        assert run.error.code == "engine_busy"

    play(tmp_path, scene)


def test_closing_a_document_answers_and_ends(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ticket = stage.session.begin()
        _, request = await stage.start()
        stage.session.close()
        assert ticket.superseded.result() == "document_closed"
        assert await request.cancelled is CancelCause.CLIENT

    play(tmp_path, scene)


def test_pause_ends_early_when_superseded(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ticket = stage.session.begin()
        assert await ticket.pause(0)
        pause = asyncio.ensure_future(ticket.pause(60))
        await asyncio.sleep(0)
        stage.session.begin()
        assert not await pause

    play(tmp_path, scene)


def test_prompt_is_held_while_the_user_types(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        session, budget = stage.session, Budget(1000, 100)
        assert session.held_prompt(CURSOR, budget) is None
        session.hold(PROMPT, CURSOR, budget)
        session.take_edits([typed("f()")])
        session.take_edits([Edit(CURSOR + 1, CURSOR + 3, "oo()")])
        held = session.held_prompt(CURSOR + 5, budget)
        assert held is not None
        assert held.prefix == PROMPT.prefix + "foo()"
        assert session.held_prompt(CURSOR, budget) is None, "the cursor jumped"
        session.take_edits([Edit(0, 0, "import os\n")])
        assert session.held_prompt(CURSOR + 15, budget) is None, "text elsewhere changed"

    play(tmp_path, scene)


def test_what_was_shown_comes_back_as_it_was(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        run, request = await stage.start()
        request.answer("return a )")
        await run.settled
        stage.session.note_shown(PROMPT, "return a")
        assert stage.cached(PROMPT) == "return a"
        assert stage.cached(Prompt(PROMPT.prefix + "ret", "")) == "urn a"
        assert stage.cached(Prompt(PROMPT.prefix + "retx", "")) is None

    play(tmp_path, scene)


SHOWN = "return f(x)"
BEHIND = replace(PLAN, known=SHOWN, forced="\n", prompt=Prompt(PROMPT.prefix + SHOWN, ""))


class Ahead:
    """A session that shows a suggestion and may go on behind it."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.session = stage, stage.session
        self.ends: list[bool] = []
        self.num_asked = 0

    def show(self) -> None:
        self.session.note_shown(PROMPT, SHOWN)
        self.session.look_ahead(
            Lookahead(SHOWN, self.ask, lambda _, is_wanted: self.ends.append(is_wanted), Typed(10))
        )

    def ask(self) -> Question:
        self.num_asked += 1
        return self.stage.question(BEHIND)

    async def begin(self) -> FakeRequest:
        assert self.stage.timer.fire() == AHEAD_DELAY_S
        return await self.stage.engine.next_request()


def test_shown_suggestion_is_gone_on_from_and_there_when_accepted(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ahead = Ahead(stage)
        ahead.show()
        request = await ahead.begin()
        assert request.message.prefix == BEHIND.prompt.prefix
        request.answer("\n    g()\n")
        while stage.cached(BEHIND.prompt) is None:  # noqa: ASYNC110  # a run tells nobody of its end
            await asyncio.sleep(0)
        stage.session.take_edits([typed(SHOWN)])
        stage.session.begin()
        assert stage.session.adopt(CURSOR + len(SHOWN), "") is None
        found = stage.session.find_cached(BEHIND.prompt)
        assert found is not None
        assert found.is_ahead
        assert ahead.ends == [True]
        assert ahead.num_asked == 1

    play(tmp_path, scene)


def test_run_that_looks_ahead_is_adopted_when_the_suggestion_is_accepted(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ahead = Ahead(stage)
        ahead.show()
        request = await ahead.begin()
        stage.session.take_edits([typed("return f(")])
        stage.session.begin()
        assert stage.session.adopt(CURSOR + 9, "") is None, "what is shown is not longer yet"
        stage.session.take_edits([Edit(CURSOR + 9, CURSOR + 9, "x)")])
        stage.session.begin()
        run = stage.session.adopt(CURSOR + len(SHOWN), "")
        assert run is not None
        request.write("    g()")
        await stage.wait_text(run, SHOWN + "\n    g()")
        assert run.remaining == "\n    g()"
        assert ahead.ends == [True]
        request.finish()
        await run.settled

    play(tmp_path, scene)


@pytest.mark.parametrize(
    "disagree",
    [
        lambda session: session.take_edits([typed("x")]),
        lambda session: session.take_edits([Edit(0, 0, "x")]),
        lambda session: session.adopt(3, ""),
        lambda session: session.drop_ahead(),
        lambda session: session.close(),
    ],
    ids=["another key", "an edit elsewhere", "the cursor jumps", "another request", "closed"],
)
def test_looking_ahead_ends_when_anything_disagrees(
    tmp_path: Path, disagree: Callable[[TypingSession], object]
):
    async def scene(stage: Stage) -> None:
        ahead = Ahead(stage)
        ahead.show()
        request = await ahead.begin()
        disagree(stage.session)
        assert await request.cancelled is CancelCause.SUPERSEDED
        assert ahead.ends == [False]
        assert stage.cached(BEHIND.prompt) is None

    play(tmp_path, scene)


def test_real_request_ends_looking_ahead_first(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ahead = Ahead(stage)
        ahead.show()
        request = await ahead.begin()
        run, real = await stage.start()
        assert await request.cancelled is CancelCause.SUPERSEDED
        real.finish()
        await run.settled

    play(tmp_path, scene)


def test_nothing_is_asked_ahead_while_anything_else_goes_on(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ahead = Ahead(stage)
        run, request = await stage.start()
        ahead.show()
        assert stage.timer.fire() == AHEAD_DELAY_S
        assert ahead.num_asked == 0, "a run is at work"
        request.answer("return 1")
        await run.finished
        ticket = stage.session.begin()
        assert stage.timer.fire() == AHEAD_DELAY_S
        assert ahead.num_asked == 0, "a request waits"
        stage.session.end(ticket, is_cancelled=False)
        (await ahead.begin()).finish()
        assert ahead.num_asked == 1

    play(tmp_path, scene)


def test_typing_along_puts_looking_ahead_off(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ahead = Ahead(stage)
        ahead.show()
        stage.session.take_edits([typed("re")])
        request = await ahead.begin()
        stage.session.take_edits([Edit(CURSOR + 2, CURSOR + 2, "turn")])
        assert not request.cancelled.done()
        stage.session.take_edits([Edit(CURSOR + 6, CURSOR + 6, "!")])
        assert await request.cancelled is CancelCause.SUPERSEDED

    play(tmp_path, scene)


def test_suggestion_typed_to_its_end_before_anything_was_asked_leaves_nothing_to_do(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ahead = Ahead(stage)
        ahead.show()
        stage.session.take_edits([typed(SHOWN)])
        assert not stage.timer.pending
        assert ahead.ends == []

    play(tmp_path, scene)


def test_same_suggestion_shown_again_is_not_asked_behind_twice(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ahead = Ahead(stage)
        ahead.show()
        request = await ahead.begin()
        ahead.show()
        assert not stage.timer.pending
        assert not request.cancelled.done()
        request.finish()

    play(tmp_path, scene)


def test_alternatives_end_with_their_request(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        ticket = stage.session.begin()
        stage.session.start_alternative(stage.question())
        request = await stage.engine.next_request()
        stage.session.end(ticket, is_cancelled=False)
        assert await request.cancelled is CancelCause.SUPERSEDED
        stage.session.start_alternative(stage.question())
        request = await stage.engine.next_request()
        stage.session.take_edits([typed("x")])
        assert await request.cancelled is CancelCause.SUPERSEDED

    play(tmp_path, scene)
