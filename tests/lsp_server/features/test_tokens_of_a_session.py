"""What the engine gets, token by token: while somebody types, only the end of it may change.

A model that reads the text behind the cursor first reads all anew when that text changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from lsprotocol import types

from lsp_server.features.document_sync import did_change
from specengine.bench.workloads import example_file
from specengine.decoding.prompt import PromptLayout
from specengine.models import registry
from specengine.models.tokenizer import Tokenizer
from tests.lsp_server.stage import URI, Stage, play

pytestmark = pytest.mark.model

MAX_MOVED = 12
"""Tokens at the end that may be read again: the last words, and what was typed since."""

ABOVE = "        return sorted(job for job in self.jobs.values() if job.state == FAILED)\n"
SCRIPT = "".join(
    f"function helper{n}(queue, limit) {{\n  return queue.slice(0, limit + {n});\n}}\n\n"
    for n in range(20)
)


class Keyboard:
    """Types into the one document at one cursor, as editors tell it, and asks after each stroke."""

    def __init__(self, stage: Stage, layout: PromptLayout, cursor: int) -> None:
        self.stage = stage
        self.layout = layout
        self.cursor = cursor
        self.prompts: list[tuple[int, ...]] = []

    def insert(self, text: str, num_behind: int = 0) -> None:
        """Insert text; so much of it then stands behind the cursor."""
        self.replace(self.cursor, self.cursor, text)
        self.cursor -= num_behind

    def replace(self, start: int, end: int, text: str) -> None:
        document = self.stage.state.documents[URI].document
        where = types.Range(document.position(start), document.position(end))
        changes = [types.TextDocumentContentChangePartial(where, text)]
        version = types.VersionedTextDocumentIdentifier(2, URI)
        did_change(self.stage.state, types.DidChangeTextDocumentParams(version, changes))
        self.cursor = start + len(text)

    async def ask(self) -> None:
        """Ask, and let the engine say what nobody types."""
        document = self.stage.state.documents[URI].document
        position = document.position(self.cursor)
        answer = self.stage.ask(position.line, position.character)
        request = await self.stage.engine.next_request()
        message = request.message
        prompt = self.layout.lay_out(message.prefix, message.suffix, files=message.files)
        self.prompts.append(prompt.token_ids)
        request.answer("zq_nobody")
        await answer


def num_shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@pytest.fixture(scope="module")
def layout(default_model_dir: Path) -> PromptLayout:
    declared = registry.load(own_file=Path("no-own-models.toml"))
    return PromptLayout(
        declared.get(declared.default), Tokenizer.load(default_model_dir), max_tokens=1024
    )


Enter = Callable[[Keyboard, str], Awaitable[None]]


async def plain(keys: Keyboard, eol: str) -> None:
    keys.insert(f"{eol}        ")


async def as_a_line_below(keys: Keyboard, eol: str) -> None:
    """Some clients compare whole lines: the new one then begins behind the line end."""
    end = keys.cursor + len(eol)
    keys.replace(end, end, f"        {eol}")
    keys.cursor -= len(eol)


async def twice(keys: Keyboard, eol: str) -> None:
    """VS Code takes the indentation of an empty line away when the next one begins."""
    keys.insert(f"{eol}        ")
    await keys.ask()
    keys.replace(keys.cursor - 8, keys.cursor, f"{eol}        ")


@pytest.mark.parametrize("eol", ["\n", "\r\n"])
@pytest.mark.parametrize("enter", [plain, as_a_line_below, twice])
def test_enter_at_the_head_of_a_python_function(
    tmp_path: Path, layout: PromptLayout, enter: Enter, eol: str
):
    async def scene(stage: Stage) -> None:
        before, above, after = example_file().read_text("utf-8").partition(ABOVE)
        text = f"{before}{above}\n{after}".replace("\n", eol)
        await stage.connect()
        stage.open(text)
        keys = Keyboard(stage, layout, len(f"{before}{above}".replace("\n", eol)))
        keys.insert("    def running")
        await keys.ask()
        keys.insert("()", num_behind=1)
        await keys.ask()
        keys.insert("self")
        await keys.ask()
        keys.replace(keys.cursor, keys.cursor + 1, ")")
        keys.insert(":")
        await keys.ask()
        await enter(keys, eol)
        await keys.ask()
        assert_stable(keys)

    play(tmp_path, scene)


@pytest.mark.parametrize("indentation", ["  ", "\t"])
def test_enter_between_braces_that_the_editor_has_closed(
    tmp_path: Path, layout: PromptLayout, indentation: str
):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open(f"{SCRIPT}\n\n{SCRIPT}", language="javascript")
        keys = Keyboard(stage, layout, len(SCRIPT))
        keys.insert("function running")
        await keys.ask()
        keys.insert("()", num_behind=1)
        keys.replace(keys.cursor, keys.cursor + 1, ")")
        keys.insert(" ")
        keys.insert("{}", num_behind=1)
        await keys.ask()
        keys.insert(f"\n{indentation}\n", num_behind=1)
        await keys.ask()
        keys.insert("return")
        await keys.ask()
        assert_stable(keys)

    play(tmp_path, scene)


def test_enter_between_the_brackets_of_a_python_head(tmp_path: Path, layout: PromptLayout):
    async def scene(stage: Stage) -> None:
        before, above, after = example_file().read_text("utf-8").partition(ABOVE)
        await stage.connect()
        stage.open(f"{before}{above}\n{after}")
        keys = Keyboard(stage, layout, len(before + above))
        keys.insert("    def running")
        await keys.ask()
        keys.insert("()", num_behind=1)
        await keys.ask()
        keys.insert("\n        \n    ", num_behind=5)
        await keys.ask()
        assert_stable(keys)

    play(tmp_path, scene)


def assert_stable(keys: Keyboard) -> None:
    assert len(keys.prompts) >= 3
    for one, other in zip(keys.prompts, keys.prompts[1:], strict=False):
        assert len(other) > 250
        assert num_shared(one, other) >= len(one) - MAX_MOVED


def test_suggestion_in_a_closed_block_does_not_close_it_again(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("\nf()\n", language="javascript")
        stage.insert(0, 0, "if (x) ")
        await stage.item(0, 7, "zq\n")
        stage.insert(0, 7, "{}")
        await stage.item(0, 8, "zq\n")
        stage.insert(0, 8, "\n  \n")
        answer = stage.ask(1, 2)
        request = await stage.engine.next_request()
        assert request.message.prefix == "if (x) {\n  "
        assert request.message.suffix == "\nf()\n"
        request.write("g();\n}\n")
        await asyncio.wait_for(request.stopped, 5)
        result = await answer
        assert result is not None
        assert [item.insert_text for item in result.items] == ["g();"]

    play(tmp_path, scene)
