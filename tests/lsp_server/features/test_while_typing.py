"""Facts about what somebody who types sees, and what they are spared."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from lsprotocol import types

from lsp_server.prompt import Prompt
from lsp_server.settings import CompletionSettings, EngineSettings, Settings
from specengine.protocol import CancelCause
from tests.lsp_server.stage import URI, Stage, play, texts

INVOKED = types.InlineCompletionTriggerKind.Invoked


def test_who_asks_explicitly_gets_more_and_alternatives(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    a()\n    ")
        answer = stage.ask(2, 4, kind=INVOKED)
        requests = [await stage.engine.next_request() for _ in range(3)]
        messages = [request.message for request in requests]
        assert len({message.document for message in messages}) == 3, "none supersedes another"
        assert [message.sampling.seed for message in messages] == [0, 1, 2]
        assert [message.sampling.temperature for message in messages] == [0, 0.6, 0.6]
        assert {message.max_tokens for message in messages} == {192}
        for request, text in zip(
            requests, ("b()\n    c()\n", "d()\n", "b()\n    c()\n"), strict=True
        ):
            request.answer(text)
        assert texts(await answer) == ["b()\n    c()", "d()"], "the same one is not told twice"

    stage = play(tmp_path, scene)
    assert stage.trace.records[0].scope == "blocks"


def test_automatic_request_asks_for_one(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ")
        await stage.item(0, 4, "1\n")
        assert stage.engine.num_requests == 1

    play(tmp_path, scene)


def test_failed_alternative_leaves_the_others(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ")
        answer = stage.ask(0, 4, kind=INVOKED)
        first, second, third = [await stage.engine.next_request() for _ in range(3)]
        second.fail("engine_busy", "too many.")
        first.answer("1\n")
        third.answer("2\n")
        assert texts(await answer) == ["1", "2"]

    play(tmp_path, scene)


def test_late_alternative_is_taken_as_far_as_it_has_come(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        completion = CompletionSettings(patience_ms=1, alternatives=3)
        stage.state.settings = replace(stage.state.settings, completion=completion)
        await stage.connect()
        stage.open("def f():\n    ")
        answer = stage.ask(1, 4, kind=INVOKED)
        first, second, third = [await stage.engine.next_request() for _ in range(3)]
        second.write("b()\n    c()\n    d")
        third.write("e")
        await stage.settle()
        first.answer("a()\n\nx")
        assert texts(await answer) == ["a()", "b()\n    c()"]
        assert await second.cancelled is CancelCause.SUPERSEDED

    play(tmp_path, scene)


def test_explicit_request_is_answered_where_an_automatic_one_is_not(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.state.settings = replace(
            stage.state.settings, completion=CompletionSettings(alternatives=1)
        )
        stage.open("while x:\n    break")
        answer = stage.ask(1, 9, kind=INVOKED)
        (await stage.engine.next_request()).answer("\n    y()\n")
        assert texts(await answer) == ["\n    y()"]

    play(tmp_path, scene)


def test_next_suggestion_is_there_when_the_shown_one_is_accepted(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        await stage.item(1, 4, "a()\n\nb")
        session = stage.state.documents[URI].session
        ahead = await stage.engine.next_request()
        assert ahead.message.prefix == "def f():\n    a()\n"
        assert ahead.message.is_ahead
        ahead.answer("    b()\n\n\nc")
        while session.find_cached(Prompt("def f():\n    a()", "")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0)  # a run tells nobody of its end
        stage.insert(1, 4, "a()")
        answer = await stage.ask(1, 7)
        assert texts(answer) == ["\n    b()"]
        assert stage.engine.num_requests == 2

    stage = play(tmp_path, scene)
    record = next(record for record in stage.trace.records if record.trigger == "ahead")
    assert (record.outcome, record.exit, record.request, record.steps) == ("adopted", "ahead", 1, 3)
    assert ("cached", "ahead") in stage.exits


def test_ahead_that_is_not_wanted_is_counted(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        await stage.item(1, 4, "a()\n\nb")
        ahead = await stage.engine.next_request()
        ahead.write("    b()")
        stage.insert(1, 4, "x")
        await ahead.cancelled

    stage = play(tmp_path, scene)
    record = next(record for record in stage.trace.records if record.trigger == "ahead")
    assert (record.outcome, record.exit, record.steps) == ("superseded", "ahead", 3)


def test_request_in_another_document_ends_looking_ahead(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ", uri="file:///other.py")
        stage.open("def f():\n    ")
        await stage.item(1, 4, "a()\n\nb")
        ahead = await stage.engine.next_request()
        answer = stage.ask(0, 4, uri="file:///other.py")
        assert await ahead.cancelled is CancelCause.SUPERSEDED
        (await stage.engine.next_request()).answer("1\n")
        assert texts(await answer) == ["1"]

    play(tmp_path, scene)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(completion=CompletionSettings(look_ahead=False)),
        Settings(engine=EngineSettings(backend="upstream")),
    ],
    ids=["by a setting", "on somebody's server"],
)
def test_looking_ahead_can_be_off(tmp_path: Path, settings: Settings):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.state.settings = settings
        stage.open("def f():\n    ")
        await stage.item(1, 4, "a()\n\nb")
        assert stage.state.documents[URI].session._ahead is None  # pyright: ignore[reportPrivateUsage]

    play(tmp_path, scene)


def test_suggestion_stays_as_it_is_while_the_user_types_along(tmp_path: Path):
    """What the rules would make of the rest alone does not matter."""

    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        item = await stage.item(1, 4, "x = -y.z\n\nb")
        shown = str(item.insert_text)
        for at in range(1, len(shown)):
            stage.insert(1, 3 + at, shown[at - 1])
            assert texts(await stage.ask(1, 4 + at)) == [shown[at:]]
        assert stage.engine.num_requests == 1

    play(tmp_path, scene)


def test_block_that_the_editor_closes_meanwhile_is_not_closed_again(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("f()\n", language="javascript")
        stage.insert(1, 0, "i")
        await stage.item(1, 1, "f (x) {\n  a();\n}\ng")
        stage.insert(1, 1, "f (x) ")
        stage.insert(1, 7, "{}")
        stage.insert(1, 8, "\n  \n")
        assert texts(await stage.ask(2, 2)) == ["a();"]
        stage.insert(2, 2, "a();")
        assert texts(await stage.ask(2, 6)) == []
        assert stage.engine.num_requests == 1

    play(tmp_path, scene)


def test_block_that_the_editor_closes_ends_a_text_that_goes_on_behind_it(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.state.settings = replace(
            stage.state.settings, completion=CompletionSettings(alternatives=1)
        )
        stage.open("f()\nif (x) ", language="javascript")
        answer = stage.ask(1, 7, kind=INVOKED)
        (await stage.engine.next_request()).answer("{\n  a();\n}\nb();")
        assert texts(await answer) == ["{\n  a();\n}\nb();"]
        stage.insert(1, 7, "{}")
        stage.insert(1, 8, "\n  \n")
        assert texts(await stage.ask(2, 2)) == ["a();"]

    play(tmp_path, scene)


def test_going_back_shows_what_was_shown(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        await stage.item(1, 4, "x = 1\n\nb")
        stage.insert(1, 4, "y")
        answer = stage.ask(1, 5)
        (await stage.engine.next_request()).answer(" = 2\n")
        assert texts(await answer) == [" = 2"]
        stage.delete(1, 4, 5)
        assert texts(await stage.ask(1, 4)) == ["x = 1"]
        assert stage.engine.num_requests == 2

    play(tmp_path, scene)


def test_key_that_disagrees_asks_with_the_suffix_as_it_was(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    x\n\ny = 1\n")
        await stage.item(1, 5, " = 1\n")
        stage.insert(1, 5, "()")
        answer = stage.ask(1, 6)
        request = await stage.engine.next_request()
        assert request.message.prefix == "def f():\n    x("
        assert request.message.suffix == "\n\ny = 1\n", "without the closing bracket"
        request.answer("a)\n")
        (item,) = (await answer or types.InlineCompletionList([])).items
        assert item.insert_text == "a"
        assert item.range == types.Range(types.Position(1, 6), types.Position(1, 6))

    play(tmp_path, scene)


def test_without_following_each_key_is_asked_anew(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        completion = CompletionSettings(follow_typing=False)
        stage.state.settings = replace(stage.state.settings, completion=completion)
        stage.open("def f():\n    ")
        await stage.item(1, 4, "return 1\n")
        stage.insert(1, 4, "r")
        item = await stage.item(1, 5, "eturn 1\n")
        assert item.insert_text == "eturn 1"
        assert stage.engine.num_requests == 2

    play(tmp_path, scene)


def test_keys_faster_than_the_engine_are_answered_by_the_first_request(tmp_path: Path):
    """Cancelling on each key, a slow model would never answer at all."""

    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        answers = [stage.ask(1, 4)]
        request = await stage.engine.next_request()
        for at, key in enumerate("retu"):
            stage.insert(1, 4 + at, key)
            answers.append(stage.ask(1, 5 + at))
            await asyncio.sleep(0)
        request.answer("return 1\n")
        *old, last = await asyncio.gather(*answers)
        assert old == [None] * 4
        assert texts(last) == ["rn 1"]
        assert not request.cancelled.done()
        assert stage.engine.num_requests == 1

    play(tmp_path, scene)


def test_burst_of_other_keys_leaves_one_request_alive(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        answers = [stage.ask(1, 4)]
        requests = [await stage.engine.next_request()]
        for at, key in enumerate("xyz"):
            requests[-1].write("return")
            await stage.settle()
            stage.insert(1, 4 + at, key)
            answers.append(stage.ask(1, 5 + at))
            requests.append(await stage.engine.next_request())
        assert all(request.cancelled.done() for request in requests[:-1])
        requests[-1].answer(" = 1\n")
        *old, last = await asyncio.gather(*answers)
        assert old == [None] * 3
        assert texts(last) == [" = 1"]

    play(tmp_path, scene)


def test_editor_at_rest_asks_for_nothing(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        stage.insert(1, 4, "x")
        await stage.settle()
        assert stage.engine.num_requests == 0
        await stage.item(1, 5, " = 1\n")
        (await stage.engine.next_request()).answer("    y = 2\n\nz")
        await stage.settle()
        assert stage.engine.num_requests == 2, "a look ahead goes one step, not on and on"

    play(tmp_path, scene)


def test_old_suggestion_does_not_come_back_after_a_change_around_it(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("a = 1\nb = \nc = 3\n")
        await stage.item(1, 4, "2\n")
        stage.insert(2, 0, "d")
        answer = stage.ask(1, 4)
        request = await stage.engine.next_request()
        assert request.message.suffix == "\ndc = 3\n"
        request.answer("4\n")
        assert texts(await answer) == ["4"]

    play(tmp_path, scene)


def test_accepting_a_word_leaves_the_rest_as_it_was(tmp_path: Path):
    """Nothing is doubled, and the engine is not asked."""

    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        await stage.item(1, 4, "return self.value\n")
        column = 4
        for word, rest in (("return", " self.value"), (" self", ".value"), (".", "value")):
            stage.insert(1, column, word)
            column += len(word)
            assert texts(await stage.ask(1, column)) == [rest]
        assert stage.engine.num_requests == 1

    play(tmp_path, scene)


def test_accepting_a_line_leaves_the_lines_below(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        await stage.item(1, 4, "a()\n    b()\n\nc")
        stage.insert(1, 4, "a()\n")
        assert texts(await stage.ask(2, 0)) == ["    b()"]
        stage.insert(2, 0, "    ")
        assert texts(await stage.ask(2, 4)) == ["b()"]

    play(tmp_path, scene)


def test_document_with_tabs_gets_tabs(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("func f() {\n\tif a {\n\t\tb()\n\t}\n\t", language="go")
        item = await stage.item(4, 1, "for {\n        c()\n    }\n")
        assert item.insert_text == "for {\n\t\tc()\n\t}"

    play(tmp_path, scene)


def test_several_cursors_end_what_was_going_on(tmp_path: Path):
    """Text is typed in two places at once, in one notification."""

    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("a = \nb = \n")
        answer = stage.ask(0, 4)
        request = await stage.engine.next_request()
        request.write("1")
        await stage.settle()
        stage.insert_everywhere((1, 4, "1"), (0, 4, "1"))
        assert await request.cancelled is CancelCause.SUPERSEDED
        assert await answer is None
        answer = stage.ask(0, 5)
        request = await stage.engine.next_request()
        assert (request.message.prefix, request.message.suffix) == ("a = 1", "\nb = 1\n")
        request.finish()
        await answer

    play(tmp_path, scene)


def test_wide_characters_above_leave_the_cursor_where_it_is(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("# 😀😀 日本\nx = '😀' + \ny = 2\n")
        answer = stage.ask(1, 11)
        request = await stage.engine.next_request()
        assert request.message.prefix == "# 😀😀 日本\nx = '😀' + "
        request.answer("'日'\n")
        result = await answer
        assert result is not None
        cursor = types.Position(1, 11)
        assert result.items[0].range == types.Range(cursor, cursor)

    play(tmp_path, scene)


def test_engine_that_failed_once_is_asked_again(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ")
        answer = stage.ask(0, 4)
        (await stage.engine.next_request()).fail("internal_fault", "a bug.")
        assert texts(await answer) == []
        await stage.item(0, 4, "1\n")

    play(tmp_path, scene)


def test_slow_answer_is_shown_when_it_comes(tmp_path: Path):
    """No clock drops it; only an edit or another request does."""

    async def scene(stage: Stage) -> None:
        completion = CompletionSettings(patience_ms=1, look_ahead=False)
        stage.state.settings = replace(stage.state.settings, completion=completion)
        await stage.connect()
        stage.open("def f():\n    ")
        answer = stage.ask(1, 4)
        request = await stage.engine.next_request()
        await asyncio.wait({answer}, timeout=0.02)
        assert not answer.done()
        request.write("a()\n    b")
        assert texts(await answer) == ["a()"]
        request.answer("()\n\nc")

    play(tmp_path, scene)


def test_lines_on_the_screen_stay_while_the_rest_is_written(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        completion = CompletionSettings(patience_ms=1, look_ahead=False)
        stage.state.settings = replace(stage.state.settings, completion=completion)
        await stage.connect()
        stage.open("def f():\n    ")
        answer = stage.ask(1, 4)
        request = await stage.engine.next_request()
        request.write("a = 1\n    b")
        assert texts(await answer) == ["a = 1"]
        patient = replace(completion, patience_ms=3_600_000)
        stage.state.settings = replace(stage.state.settings, completion=patient)
        stage.insert(1, 4, "a")
        assert texts(await stage.ask(1, 5)) == [" = 1"]
        stage.insert(1, 5, " = 1")
        answer = stage.ask(1, 9)
        request.answer("()\n\nc")
        assert texts(await answer) == ["\n    b()"]
        assert stage.engine.num_requests == 1

    play(tmp_path, scene)


@pytest.mark.parametrize("rest", ["\n    b()\rc", "    b()\rc"], ids=["windows", "old mac"])
def test_line_end_at_the_end_of_a_piece_is_one(tmp_path: Path, rest: str):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        answer = stage.ask(1, 4)
        request = await stage.engine.next_request()
        request.write("a()\r")
        request.answer(rest)
        assert texts(await answer) == ["a()\n    b()"]

    play(tmp_path, scene)


def test_answer_stays_on_its_line(tmp_path: Path):
    """An item whose range spans lines is not shown at all."""

    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("f(g()\n)\n")
        item = await stage.item(0, 4, "a)\n)\n")
        assert item.range is not None
        assert item.range.start.line == item.range.end.line == 0

    play(tmp_path, scene)


@pytest.mark.parametrize("accepts", [False, True])
def test_a_blank_line_in_the_middle_of_a_run_is_shown_as_it_is(tmp_path: Path, accepts: bool):
    async def scene(stage: Stage) -> None:
        completion = CompletionSettings(patience_ms=1)
        stage.state.settings = replace(stage.state.settings, completion=completion)
        await stage.connect()
        stage.open("def f(x):\n")
        answer = stage.ask(1, 0)
        request = await stage.engine.next_request()
        request.write("    a = 1\n")
        assert texts(await answer) == ["    a = 1"]
        stage.insert(1, 0, "    a = 1")
        stage.insert(1, 9, "\n")
        answer = stage.ask(2, 0)
        await stage.settle()
        request.write("\n    if x:\n")
        assert texts(await answer) == ["\n    if x:"]
        rest = "\n        a = 2\n    return a"
        if accepts:
            stage.insert(2, 0, "\n    if x:")
            request.answer(f"{rest[1:]}\n")
            assert texts(await stage.ask(3, 9)) == [rest]
        else:
            request.answer(f"{rest[1:]}\n")
            while (last := texts(await stage.ask(2, 0))) == ["\n    if x:"]:
                await stage.settle()
            assert last == [f"\n    if x:{rest}"]
        assert stage.engine.num_requests == 1

    play(tmp_path, scene)
